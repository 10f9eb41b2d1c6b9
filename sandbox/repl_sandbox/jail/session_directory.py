"""A session's own directory, for tiers without a mount view and its private mounts.

Covers: making it accessible only to the session's user; measuring its size; removing it with all
content, whatever its depth and permissions. Does not cover: access by others (users, landlock), and
a size that the kernel enforces: files that are unlinked and still open are not found by a walk
(Limits.file_size and Limits.open_files limit those).

All directories of one sandbox are below one *base*. The process that makes the base holds a lock on
it for life, so that a later sandbox can recognise and remove a base left behind by a crash.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress

WORKSPACE = "workspace"
TEMPORARY = "tmp"
# Empty: pytest looks for its configuration in all directories above the tests, where files of the
# host that cannot be read would end it, and goes no further than this one.
_LAST_CONFIGURATION = "pytest.ini"

_PREFIX = "repl-sandbox-"
BRANCH = "branch-"
# Branches of branches whose directories are below those of the branch that they were made of. Each
# is under a ruleset more, of which the kernel stacks sixteen.
_MAX_NESTED = 12
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# The clock of the last tick, by which files are dated: CLOCK_REALTIME_COARSE of clock_gettime(2).
_COARSE = 5
# A file costs more than its data; the number equals that of the private mounts in other tiers.
_MAX_FILES = 65_536
_BLOCK = 512  # unit of st_blocks, stat(2)
_DEEPEST = 64  # a walk takes a descriptor for each level
_TOO_MUCH = 1 << 62
_ATTEMPTS = 1000  # to remove directories that session code closes or fills again: see `_open_base`
_AGAIN = (errno.EACCES, errno.EPERM, errno.ENOTEMPTY)


def branch_directory(parent: str, number: int) -> str:
    """Return the path of the directory of branch `number`: below that of `parent`, which copies its
    files there. It has a workspace and temporary files, as a session's directory.
    """
    if nesting(parent) > _MAX_NESTED:
        parent = parent.rpartition("/")[0]
    return f"{parent}/{BRANCH}{number}"


def nesting(folder: str) -> int:
    """Return how many branches the directory `folder` of a branch is inside of, itself included."""
    return folder.count(f"/{BRANCH}")


def is_protected(folder: str) -> bool:
    """Return whether the branch whose directory is `folder` may be kept to it."""
    return nesting(folder) <= _MAX_NESTED


def is_of_branch(name: str) -> bool:
    """Return whether `name` is that of a directory of branches."""
    return name.startswith(BRANCH)


def make_base(place: str) -> str:
    """Make a new base below the directory `place`; remove bases there without a live owner.

    Others may pass through it and not list it. The lock is held until this process and its forks
    end.
    """
    _sweep(place)
    token = _token()
    # Renamed only once it is locked: another sandbox's sweep could take it for left behind.
    new = f"{place}/.{_PREFIX}{token}"
    os.mkdir(new, 0o700)
    fcntl.flock(os.open(new, _DIRECTORY), fcntl.LOCK_SH)
    os.chmod(new, 0o711)
    base = f"{place}/{_PREFIX}{token}"
    os.rename(new, base)
    return base


def make(folder: str, owner: int | None) -> None:
    """Make a session's directory for uid and gid `owner` alone; None: for this process's own."""
    try:
        os.mkdir(folder, 0o700)
    except PermissionError:
        os.close(_open_base(folder.rpartition("/")[0]))  # session code closed it: see there
        os.mkdir(folder, 0o700)
    _make_contents(folder, owner)


def clear(
    folder: str, owner: int | None, emptied: Collection[str], others: Collection[str]
) -> None:
    """Remove all content of `folder` but the directories `others`, and `emptied`, which are
    emptied, and the directories on the way there.

    Those stay the same directories: running processes work in them, and the ruleset that the
    snapshots of a worker have for life refers to this `folder`, not to a new one of the same name.
    """
    base, _, name = folder.rpartition("/")
    _insist(lambda: _clear(base, name, emptied, others))
    os.chmod(folder, 0o700)
    _make_contents(folder, owner)


def make_room(
    folder: str, limit: int, others: Collection[str], restored: float = float("inf")
) -> list[str] | None:
    """Remove files below `folder` until all take at most `limit` bytes, the last changed first;
    a file that has room once the others are gone stays.

    Files that changed at `restored` nanoseconds or later have got an earlier content back, and go
    last. The directories `others` below `folder` are left as they are; if they alone exceed the
    limit, nothing is removed. The time of a change is the kernel's, which code cannot set. Returns
    the paths of the removed files; None if there are too many to choose among.
    """
    try:
        if use(folder, limit) <= limit:
            return []
        if use(folder, _TOO_MUCH - 1) >= _TOO_MUCH:  # too many, or too deep
            return None
        fd = _open_folder(folder)
        try:
            files = sorted(_files(fd, restored))
            if sum(size for *_, size, path in files if is_below(path, others)) > limit:
                return []
            return _remove_latest(folder, fd, limit, files, others)
        finally:
            os.close(fd)
    except OSError:  # the code has closed or replaced a directory
        return None


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Return whether `path` is in one of `folders`."""
    return any(path.startswith(f"{folder}/") for folder in folders)


def _open_folder(folder: str) -> int:
    base, _, name = folder.rpartition("/")
    base_fd = _open_base(base)
    try:
        return _open(base_fd, name)
    finally:
        os.close(base_fd)


def await_tick() -> int:
    """Return the time, in nanoseconds, once no file can have changed at that time yet."""
    before = time.clock_gettime_ns(_COARSE)
    while (now := time.clock_gettime_ns(_COARSE)) <= before:
        time.sleep(0.001)
    return now


def _remove_latest(
    folder: str,
    fd: int,
    limit: int,
    files: list[tuple[bool, int, int, str]],
    others: Collection[str],
) -> list[str] | None:
    """Remove the last of `files` until the limit is kept; as of `make_room`."""
    own = [(size, path) for *_, size, path in files if not is_below(path, others)]
    needed = _latest(own, use(folder, _TOO_MUCH - 1) - limit)
    # If a file has grown meanwhile, the others follow.
    going = set(needed)
    rest = [path for _, path in reversed(own) if path not in going]
    removed: list[str] = []
    for done, path in enumerate((*needed, *rest)):
        if done >= len(needed) and use(folder, limit) <= limit:
            break
        with suppress(FileNotFoundError):  # as those of a branch that ends
            name, above = _opened_above(fd, path)
            try:
                os.unlink(name, dir_fd=above)
            finally:
                os.close(above)
            removed.append(path)
    return removed if use(folder, limit) <= limit else None


def _latest(files: list[tuple[int, str]], excess: int) -> list[str]:
    """Return which of `files`, sizes and paths from the earliest to the latest, have to go so that
    they take `excess` bytes less: the latest, but none that has room once the others are gone.
    """
    chosen = []
    for size, path in reversed(files):
        if excess <= 0:
            break
        chosen.append((size, path))
        excess -= size
    removed = []
    for size, path in reversed(chosen):
        if excess + size <= 0:
            excess += size
        else:
            removed.append(path)
    return removed[::-1]


def _make_contents(folder: str, owner: int | None) -> None:
    for path in (f"{folder}/{WORKSPACE}", f"{folder}/{TEMPORARY}"):
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
    last = f"{folder}/{_LAST_CONFIGURATION}"
    with suppress(FileExistsError):
        os.close(os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for path in (folder, f"{folder}/{WORKSPACE}", f"{folder}/{TEMPORARY}", last):
        if owner is not None:
            os.chown(path, owner, owner, follow_symlinks=False)


def remove(folder: str, seconds: float = float("inf")) -> bool:
    """Remove `folder` with files of any owner; False if that was not done within `seconds`.

    No process may be left that writes there. A later call continues the removal.
    """
    base, _, name = folder.rpartition("/")
    until = time.monotonic() + seconds
    try:
        return _insist(lambda: _remove(base, name, until))
    except TimeoutError:
        return False


def _insist(act: Callable[[], None]) -> bool:
    """Return whether `act` succeeds in the end, though others may close or fill again an emptied
    directory.
    """
    for _ in range(_ATTEMPTS):
        try:
            act()
            return True
        except OSError as error:
            if error.errno not in _AGAIN:
                raise
    return False


def _remove(base: str, name: str, until: float, excluded: Collection[str] = ()) -> None:
    base_fd = _open_base(base)
    try:
        # Directories from within are moved beside it as "NAME.TOKEN", one level deep, because a
        # path can be too long for the kernel and too deep for a recursion.
        while found := [
            each
            for each in os.listdir(base_fd)
            if each.partition(".")[0] == name and each not in excluded
        ]:
            for each in found:
                _empty(base_fd, each, (base_fd, name), until)
                os.rmdir(each, dir_fd=base_fd)
    finally:
        os.close(base_fd)


def _files(folder: int, restored: float) -> Iterator[tuple[bool, int, int, str]]:
    """Yield if it was not restored, the time of change, the size and the path of each file below
    directory `folder`.
    """
    pending = os.listdir(folder)
    while pending:
        path = pending.pop()
        with suppress(FileNotFoundError):  # as those of a branch that ends
            name, above = _opened_above(folder, path)
            try:
                status = os.stat(name, dir_fd=above, follow_symlinks=False)
                if not stat.S_ISDIR(status.st_mode):
                    changed, size = status.st_ctime_ns, status.st_blocks * _BLOCK
                    yield changed < restored, changed, size, path
                    continue
                fd = _open(above, name)
                try:
                    pending += [f"{path}/{each}" for each in os.listdir(fd)]
                finally:
                    os.close(fd)
            finally:
                os.close(above)


def _opened_above(folder: int, path: str) -> tuple[str, int]:
    """Return the last name of `path`, and a descriptor of its directory below `folder`."""
    *above, name = path.split("/")
    fd = os.dup(folder)
    for each in above:
        try:
            inner = _open(fd, each)
        finally:
            os.close(fd)
        fd = inner
    return name, fd


def _clear(base: str, name: str, emptied: Collection[str], others: Collection[str]) -> None:
    never = float("inf")
    base_fd = _open_base(base)
    try:
        fd = _open(base_fd, name)
        try:
            for path in emptied:
                # The code may have removed or replaced it.
                with suppress(FileNotFoundError, NotADirectoryError):
                    last, above = _opened_above(fd, path)
                    try:
                        _empty(above, last, (base_fd, name), never)
                    finally:
                        os.close(above)
        finally:
            os.close(fd)
        kept = {path.partition("/")[0] for path in (*emptied, *others)}
        _empty(base_fd, name, (base_fd, name), never, kept)
    finally:
        os.close(base_fd)
    _remove(base, name, never, (name,))


def remove_base(base: str) -> None:
    """Remove `base` with all content."""
    base_fd = _open_base(base)
    try:
        names = {each.partition(".")[0] for each in os.listdir(base_fd)}
    finally:
        os.close(base_fd)
    for name in names:
        remove(f"{base}/{name}")
    os.rmdir(base)


def use(folder: str, limit: int) -> int:
    """Return the bytes used by files below `folder`; the walk stops beyond `limit`.

    More than 65,536 files, or directories nested over 64 deep, count as more than any size.

    Raises:
        PermissionError: a directory was closed to this process during the walk.
    """
    total = files = 0
    base, _, name = folder.rpartition("/")
    base_fd = _open_base(base)
    try:
        for size in _sizes(base_fd, name, _DEEPEST):
            total += size
            files += 1
            if total > limit or files > _MAX_FILES:
                return max(total, limit + 1)
    finally:
        os.close(base_fd)
    return total


def _open_base(base: str) -> int:
    """Return a descriptor of `base`, made accessible to this process again if needed.

    Where sessions have this process's user, their code can close the base to it: chmod(2) checks
    only the owner, and no filter and no ruleset can distinguish paths there.
    """
    place, _, name = base.rpartition("/")
    place_fd = os.open(place or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _open(place_fd, name)
    finally:
        os.close(place_fd)


def _empty(
    parent: int, name: str, moves: tuple[int, str], until: float, excluded: Collection[str] = ()
) -> None:
    """Unlink the files in directory `name` of `parent`; move the directories in it elsewhere.

    `moves`: to which directory, and the beginning of their new names.

    Names in `excluded` stay.
    """
    base, stem = moves
    fd = _open(parent, name)
    try:
        for entry in os.listdir(fd):
            if time.monotonic() > until:
                raise TimeoutError
            try:
                os.unlink(entry, dir_fd=fd)
            except (IsADirectoryError, PermissionError):
                if entry in excluded:
                    continue
                os.close(_open(fd, entry))  # a directory must be writable to get another parent
                moved = f"{stem}.{_token()}"
                os.rename(entry, moved, src_dir_fd=fd, dst_dir_fd=base)
    finally:
        os.close(fd)


def _open(parent: int, name: str) -> int:
    """Return a descriptor of the directory `name` in `parent`, for listing and changing it.

    Its owner may have removed the permissions. By descriptor, because a name could be replaced by a
    link between two calls.
    """
    path = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if not os.access(f"/proc/self/fd/{path}", os.R_OK | os.W_OK | os.X_OK):
            os.chmod(f"/proc/self/fd/{path}", 0o700)
        return os.open(".", _DIRECTORY, dir_fd=path)
    finally:
        os.close(path)


def _sizes(parent: int, name: str, deeper: int) -> Iterator[int]:
    """Yield the size of each file below directory `name`; others may change the tree meanwhile."""
    try:
        fd = _open(parent, name)
    except PermissionError:
        raise
    except OSError:
        return  # it is gone, or replaced
    try:
        for entry in os.listdir(fd):
            try:
                status = os.stat(entry, dir_fd=fd, follow_symlinks=False)
            except PermissionError:
                raise
            except OSError:
                continue
            yield status.st_blocks * _BLOCK
            if stat.S_ISDIR(status.st_mode):
                yield from _sizes(fd, entry, deeper - 1) if deeper else (_TOO_MUCH,)
    finally:
        os.close(fd)


def _token() -> str:
    # Not from the module secrets: its `random` would be in every session, in the same state.
    return os.urandom(8).hex()


def _sweep(place: str) -> None:
    for name in os.listdir(place):
        if not name.startswith(_PREFIX):
            continue
        try:
            if os.stat(f"{place}/{name}", follow_symlinks=False).st_uid != os.geteuid():
                continue
            fd = _open_base(f"{place}/{name}")
        except OSError:
            continue
        try:
            if os.fstat(fd).st_uid == os.geteuid():
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_base(f"{place}/{name}")
        except OSError:
            pass  # locked by a live owner, or another sweep removes it
        finally:
            os.close(fd)
