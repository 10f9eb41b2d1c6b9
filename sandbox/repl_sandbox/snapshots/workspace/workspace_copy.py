"""A branch's own workspace: a copy of the one that it leaves, and the change of directory."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

_MAX_NAMED = 20
_PIECE = 1 << 20
# The amount that is copied in a millisecond or two.
_FEW_FILES, _FEW_BYTES = 64, 1 << 20


def is_little(folder: str) -> bool:
    """Return whether the files below `folder` are few enough to copy at once; read no others."""
    waiting, files, size = [folder], 0, 0
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    files += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_size
                    if files > _FEW_FILES or size > _FEW_BYTES:
                        return False
        except OSError:
            return False
    return True


def copy(old: str, new: str) -> list[str]:
    """Make directory `new` of all files below `old`; return the names of those that were left.

    Raises:
        OSError: the directory cannot be made.
    """
    not_copied: list[str] = []
    try:
        os.mkdir(new)
    except OSError:
        os.makedirs(new, exist_ok=True)
    _copy_below(old, new, not_copied)
    names = [f"file {path!a}: not copied" for path in not_copied]
    more = len(names) - _MAX_NAMED
    return names if more <= 0 else [*names[:_MAX_NAMED], f"{more:,} more files"]


def enter(old: str, new: str) -> None:
    """Change to `new`, which is a copy of `old`.

    HOME and the current directory lead to the new one. An absolute path that the code has noted
    still leads to the old one: branches of a session trust one another.
    """
    with suppress(OSError):
        current = os.getcwd()
        if f"{current}/".startswith(f"{old}/"):
            os.chdir(new + current[len(old) :])
    # Boundary: `os.putenv` is the code's, where the code has replaced it.
    with suppress(Exception):
        os.environ["HOME"] = new


def _copy_below(old: str, new: str, not_copied: list[str]) -> None:
    # No recursion: code decides how deeply directories are nested.
    waiting = [""]
    copied: dict[int, str] = {}  # by inode, where files with other names are
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(f"{old}/{folder}"))
        except OSError:
            not_copied.append(folder or ".")
            continue
        for entry in entries:
            path = f"{folder}{entry.name}"
            try:
                if entry.is_dir(follow_symlinks=False):
                    os.mkdir(f"{new}/{path}", stat.S_IMODE(entry.stat().st_mode) | 0o700)
                    waiting.append(f"{path}/")
                elif not _copy(entry, f"{new}/{path}", copied):
                    not_copied.append(path)
            except OSError:
                not_copied.append(path)


def _copy(entry: os.DirEntry[str], target: str, copied: dict[int, str]) -> bool:
    """Copy a link or a regular file; nothing else has a content of its own."""
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), target)
        return True
    if not entry.is_file(follow_symlinks=False):
        return False
    status = entry.stat(follow_symlinks=False)
    if status.st_ino in copied:
        os.link(copied[status.st_ino], target)
        return True
    # Non-blocking: it may be a pipe by now, and would wait for a writer.
    source = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(target, flags, stat.S_IMODE(status.st_mode) & 0o777)
    try:
        while piece := os.read(source, _PIECE):
            while piece:
                piece = piece[os.write(fd, piece) :]
        os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(source)
        os.close(fd)
    if status.st_nlink > 1:
        copied[status.st_ino] = target
    return True
