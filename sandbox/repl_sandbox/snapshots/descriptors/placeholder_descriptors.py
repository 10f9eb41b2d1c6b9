"""Placeholders, which keep the number of a lost descriptor from being reused.

A copied object has its descriptor's number. If that were free, the next `open` would get it, and
the object would write into that file, or close it when it is collected.

A placeholder is an O_PATH descriptor of a symbolic link: reading, writing, mapping, polling or
locking it is EBADF, as for a closed one, nothing can be opened through it, and no process waits for
its end. The object that has the number closes the placeholder as it would have closed its file;
then the number is free.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable

_LINK = "/proc/self"
_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

_open, _close, _dup2, _fstat = os.open, os.close, os.dup2, os.fstat


def place(numbers: Collection[int]) -> None:
    """Put a placeholder at each of `numbers`, in place of what is open there.

    Raises:
        OSError: there is no number left for one more descriptor, or no /proc.
    """
    if not numbers:
        return
    first = _open(_LINK, _FLAGS)
    for fd in numbers:
        if fd != first:
            _keep(first, fd)
    if first not in numbers:
        _close(first)


def _keep(placeholder: int, fd: int) -> None:
    try:
        _dup2(placeholder, fd, inheritable=False)
    except OSError as error:
        if error.errno != errno.EBADF:  # the limit is below it, so nothing else gets it either
            raise


def placed(numbers: Iterable[int]) -> set[int]:
    """The `numbers` that still have the placeholder."""
    return {fd for fd in numbers if _is_link(fd)}


def _is_link(fd: int) -> bool:
    try:
        return stat.S_ISLNK(_fstat(fd).st_mode)
    except OSError:
        return False
