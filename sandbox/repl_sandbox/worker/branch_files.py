"""The files of a branch: copies of the workspace and the temporary directory that it leaves."""

from __future__ import annotations

import gc
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .imports import loaded
from .shared_mappings import SharedMapping

# Copies the directories of a session for a branch of it.

_MAX_NAMED = 20
_PIECE = 1 << 20
# The amount that is copied in a millisecond or two.
_FEW_FILES, _FEW_BYTES = 64, 1 << 20


def is_small(folder: str, ignored: str) -> bool:
    """Return whether the files below `folder` are few enough to copy at once; read no others.

    Not those in directories whose names begin with `ignored`.
    """
    waiting, files, size = [folder], 0, 0
    while waiting:
        place = waiting.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if place == folder and entry.name.startswith(ignored):
                        continue
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


def copy_workspaces(pairs: Sequence[tuple[str, str]], ignored: str) -> list[str]:
    """Make the second directory of each pair of all files below the first, except in directories
    whose names begin with `ignored`; return the names of those that were left.

    Raises:
        OSError: a directory cannot be made.
    """
    not_copied: list[str] = []
    for old, new in pairs:
        os.makedirs(new, exist_ok=True)
        _copy_below(old, new, ignored, not_copied)
    names = [f"file {path!a}: not copied" for path in not_copied]
    more = len(names) - _MAX_NAMED
    return names if more <= 0 else [*names[:_MAX_NAMED], f"{more:,} more files"]


def _copy_below(old: str, new: str, ignored: str, not_copied: list[str]) -> None:
    # No recursion: code decides how deeply directories are nested.
    waiting = [""]
    copied: dict[int, str] = {}  # by inode, where files with other names are
    try:
        device = os.stat(old).st_dev
    except OSError:  # the code has removed it
        not_copied.append(".")
        return
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(f"{old}/{folder}"))
        except OSError:
            not_copied.append(folder or ".")
            continue
        for entry in entries:
            path = f"{folder}{entry.name}"
            if not folder and entry.name.startswith(ignored):
                continue
            try:
                if entry.stat(follow_symlinks=False).st_dev != device:
                    continue  # a mount of the host's
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


# `BranchDirectories`: a branch's own workspace and temporary directory, copies of those it
# leaves.
#
# Absolute paths that code or a library has kept lead to the original's files. A branch cannot
# change these: a Landlock ruleset more, which the kernel adds to that of the session, refuses it.
# Objects of the standard library that are known to keep a path get that of the copy.

# native/interposed.h: the place of shared memory of a branch whose session has it in /dev/shm.
SHARED = "REPL_BRANCH_SHM"

# Set by the engine where they are paths.
_VARIABLES = ("HOME", "TMPDIR", "MPLCONFIGDIR", "XDG_CACHE_HOME", "REPL_SESSION_TMP", SHARED)
_MOUNTED = "/tmp"  # mounts.TEMPORARY of the jail, which a worker does not load
_GONE = " (deleted)"  # the kernel's, for a file without a name
_get_referrers = gc.get_referrers
_chdir, _getcwd, _lexists = os.chdir, os.getcwd, os.path.lexists


@dataclass(frozen=True, slots=True)
class BranchDirectories:
    """Pairs of directories: of the session that a branch leaves, and the branch's own.

    `branches`: the beginning of the names of directories of branches, which are not copied.
    `shared`: of shared memory with names, where the session's is not below `temporary`.
    """

    workspace: tuple[str, str]
    temporary: tuple[str, str]
    branches: str
    shared: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, workspace: str, temporary: str, own: str, branches: str) -> BranchDirectories:
        """Those of a session with `workspace` and `temporary`, and of a branch in `own`."""
        new, new_temporary = (f"{own}/{old.rpartition('/')[2]}" for old in (workspace, temporary))
        is_apart = temporary == _MOUNTED  # as /dev/shm is a mount of the session's
        shared = (("/dev/shm", shared_in(new_temporary)),) if is_apart else ()
        return cls((workspace, new), (temporary, new_temporary), branches, shared)

    @property
    def own(self) -> str:
        """The directory of the branch."""
        return self.workspace[1].rpartition("/")[0]

    def moved(self, path: str) -> str:
        """Return the path of the copy of `path`; `path` itself if there is none."""
        for old, new in self._pairs:
            if f"{path}/".startswith(f"{old}/") and not f"{path}/".startswith(f"{self.own}/"):
                copied = new + path[len(old) :]
                return copied if _lexists(copied) else path
        return path

    def is_to_copy(self, mapping: SharedMapping) -> bool:
        """Return whether a branch needs `mapping` for itself: it could change what is the
        original's, or is a file that it has a copy of.
        """
        return mapping.is_writable or any(mapping.is_below(old) for old, _ in self._pairs)

    def of_mapping(self, path: str) -> str:
        """As `moved`, for the kernel's name of a mapped file.

        Where that has no copy: a new name, marked as gone.
        """
        copy = self.moved(path)
        return copy if copy != path else f"{self.temporary[1]}/.{os.urandom(8).hex()}{_GONE}"

    @property
    def _pairs(self) -> tuple[tuple[str, str], ...]:
        return self.workspace, self.temporary, *self.shared

    def is_little(self) -> bool:
        """Return whether the files are few enough to copy at once."""
        return all(is_small(old, self.branches) for old, _ in self._pairs)

    def copy(self) -> list[str]:
        """Make the branch's directories; return the names of files that are not copied.

        Raises:
            OSError: a directory cannot be made.
        """
        return copy_workspaces(self._pairs, self.branches)

    def enter(self, *, with_files: bool) -> None:
        """Change to the branch's workspace, and lead the environment and known objects there.

        `with_files`: files are open, which may be the temporary ones of such objects.
        """
        with suppress(OSError):
            current = _getcwd()
            if (new := self.moved(current)) != current:
                _chdir(new)
        # Boundary: `os.putenv` and the objects are the code's, where the code has replaced them.
        with suppress(Exception):
            for name in _VARIABLES:
                if name in os.environ:
                    os.environ[name] = self.moved(os.environ[name])
            for _, own in self.shared:
                os.environ[SHARED] = own
        for holder, name in _path_holders(with_files=with_files):
            with suppress(Exception):
                setattr(holder, name, self._of_copy(getattr(holder, name)))

    def _of_copy(self, value: Any) -> Any:
        """Return `value` with each path of the original replaced."""
        if type(value) is str:
            return self.moved(value)
        if type(value) is tuple:
            return tuple(self._of_copy(each) for each in value)
        return value


def shared_in(temporary: str) -> str:
    """Return the directory of shared memory of a branch with the directory `temporary`."""
    return f"{temporary}/.shm"


def _path_holders(*, with_files: bool) -> Iterator[tuple[Any, str]]:
    """Yield objects of the standard library that keep a path, and the names of its attributes."""
    tempfile, logging, weakref = map(loaded, ("tempfile", "logging", "weakref"))
    if tempfile is not None:
        yield tempfile, "tempdir"
        wrapper = getattr(tempfile, "_TemporaryFileWrapper", None)
        for found in instances(wrapper) if with_files else ():
            yield found, "name"
            yield found._closer, "name"
    for reference in list(getattr(logging, "_handlerList", ())):
        if hasattr(handler := reference(), "baseFilename"):
            yield handler, "baseFilename"
    # Of TemporaryDirectory, among others.
    finalize = getattr(weakref, "finalize", None)
    for info in list(getattr(finalize, "_registry", {}).values()):
        yield info, "args"
        if tempfile is not None and isinstance(
            found := info.weakref(), tempfile.TemporaryDirectory
        ):
            yield found, "name"


def instances(kind: Any) -> list[Any]:
    """Return the objects of exactly the class `kind`, which Python code or a C type has made."""
    # By the references to their class: a list of all objects would count a reference to each, and
    # so copy each page.
    return [each for each in _get_referrers(kind) if type(each) is kind] if kind else []
