"""Files read and written with care: regular ones, within a bound, private, replaced whole."""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from errno import EFBIG, EINVAL, EISDIR
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

# Atomic appends of lines to a file.


def append_line(file: int, line: bytes) -> None:
    """Append `line` completely, or append nothing and raise OSError; `file` was opened with
    O_APPEND.
    """
    done = os.write(file, line)
    if done == len(line):
        return
    # A disk that fills up accepts a part of the line and reports the reason on the next write.
    start = os.lseek(file, 0, os.SEEK_END) - done
    try:
        while done < len(line):
            done += os.write(file, line[done:])
    except OSError:
        os.ftruncate(file, start)
        raise


# Files that only their owner can read: they hold contexts, answers and code of users.

PRIVATE: Final = 0o600


def make_private(fd: int) -> None:
    """Restrict an open file to its owner, whatever its mode was.

    Devices and pipes stay as they are, and so do files whose mode the file system or the owner does
    not let this process change.
    """
    if stat.S_ISREG(os.fstat(fd).st_mode):
        with suppress(OSError):
            os.fchmod(fd, PRIVATE)


# Regular files read within a bound: pipes never begin, devices never end.
#
# A pipe without a writer would block its reader in `open`, `/dev/zero` would fill the memory, and
# so would a sparse file of a terabyte.

MAX_BYTES: Final = 4 << 30  # of one file, as a whole in memory

_KINDS: Final = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading; links are followed.

    Raises:
        OSError: naming `path`: it cannot be opened, or is a directory, a pipe or a device.
    """
    # The flags beside O_RDONLY: a pipe without a writer opens at once, and bytes stay as they are.
    flags = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        file = os.open(path, os.O_RDONLY | flags)
    except OSError as error:
        raise _without_kind(path) or error from None
    try:
        if (refused := refusal(path, os.fstat(file).st_mode)) is not None:
            raise refused
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise


def read_regular(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Read a regular file; OSError as of `open_regular`, and for more than `max_bytes`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        # A file of /proc says 0, and any file may grow meanwhile.
        data = file.read(max_bytes + 1) if size <= max_bytes else b""
        if size > max_bytes or len(data) > max_bytes:
            raise OSError(EFBIG, f"has more than {max_bytes:,} bytes", os.fspath(path))
        return data


def read_regular_text(path: str | os.PathLike[str]) -> str:
    """Read a regular file of UTF-8 text, without its BOM, with `\\n` for every end of a line.

    Raises:
        OSError: as of `read_regular`.
        UnicodeDecodeError: the file is no such text.
    """
    return read_regular(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def _without_kind(path: str | os.PathLike[str]) -> OSError | None:
    """Return the refusal of what cannot be opened at all, such as a socket."""
    try:
        return refusal(path, os.stat(path).st_mode)
    except OSError:
        return None


def refusal(path: str | os.PathLike[str], mode: int) -> OSError | None:
    """Return the error for a `mode` that is not that of a regular file, naming `path`."""
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISDIR(mode):
        return IsADirectoryError(EISDIR, os.strerror(EISDIR), os.fspath(path))
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "no file")
    message = f"is {kind}; write its content to a regular file and name that"
    return OSError(EINVAL, message, os.fspath(path))


# The path that a completely written file replaces.


def replace_target(path: str | os.PathLike[str]) -> Path:
    """Return the path that renaming a file to `path` replaces: for a link, its target.

    As root, a rename would replace even a device such as /dev/null for the whole system.

    Raises:
        OSError: a device, a pipe or a socket is there.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path))
    return target


# Comparison of two runs of the same code: fields that must be equal, and normalized values.

# Fields of a result that must be equal. Times and memory differ each time, sizes between builds,
# figures between library versions.
RESULT = ("stdout", "stderr", "success", "exception", "value", "locals_snapshot", "truncated")

# The default `repr` of an object contains its address, which differs in each process.
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")


def normalized(value: Any) -> Any:
    """Return the JSON `value` with all object addresses in its texts made equal."""
    if isinstance(value, str):
        return _ADDRESS.sub("0x", value)
    if isinstance(value, dict):
        return {key: normalized(item) for key, item in value.items()}
    if isinstance(value, list):
        return [normalized(item) for item in value]
    return value
