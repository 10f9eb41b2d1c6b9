"""Mount view of a session: its file system.

Covers: a read-only root with the interpreter, its libraries and a synthetic /etc and /dev; private
/tmp (which is /var/tmp too), /workspace and /dev/shm of limited size; terminals in /dev/pts; /proc
with the session's own processes. Does not cover: kernel bugs (seccomp), network (namespaces),
memory of a tmpfs beyond its size.

The zygote stages the root once, in a mount namespace of its own into which it then pivots. A
session starts in a copy of that view and adds only its private mounts. No path leads from there to
the host's tree. (The zygote still sees the host's /proc, which each session covers with its own;
modules to preload are therefore trusted.) In the session's user namespace the copied mounts are
locked (mount_namespaces(7)): no process inside can remove one or make it writable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from ..native import libc
from ..native.libc import call
from ..native.library import Rows, perform
from . import slots

WORKSPACE = "/workspace"
TEMPORARY = "/tmp"
FILE_SYSTEMS = (TEMPORARY, WORKSPACE, "/dev/shm")
PRIVATE = (*FILE_SYSTEMS, "/var/tmp")

# A tmpfs file costs kernel memory besides its size; this limits that to some 64 MiB a mount.
_INODES = 65_536
_INODE_SIZE = 1 << 10  # with its name: shmem_inode_cache has 0.7 KiB, a dentry 0.2
_TERMINALS = "/dev/pts"
# Of the 3,072 that the kernel has for all mounts but the host's (sysctl kernel.pty). Each takes 30
# KiB of its memory, and up to 128 KiB of what nobody reads.
_MAX_TERMINALS = 32
# Place in the template for directories below a private mount, which hides them in each session.
_ASIDE = "/run/aside"
_SHM_SIZE = 64 << 20  # as in container engines
_SCRATCH = 256 << 20  # for modules that write when imported; the size of a workspace

_DEVICES = ("null", "zero", "full", "random", "urandom")
_DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "fd/0",
    "stdout": "fd/1",
    "stderr": "fd/2",
}

# Top-level entries of a system that are links into /usr, or directories where /usr is not merged.
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

# Read by the dynamic loader, fontconfig, matplotlib, Debian's BLAS, pip and agents' tools. None
# identifies the host: /usr shows its distribution too.
_ETC = (
    "alternatives",
    "debian_version",
    "fonts",
    "ld.so.cache",
    "localtime",
    "matplotlibrc",
    "mime.types",
    "os-release",
)
_MAX_ETC = 4 << 20  # the largest, ld.so.cache, has some 30 KiB, on a full desktop 300
_ETC_FILES = {
    "passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\nuser:x:1000:1000:user:/workspace:/bin/sh\n",
    "group": "root:x:0:\nuser:x:1000:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "hostname": "repl\n",
}


def stage(binds: Mapping[str, str], links: Mapping[str, str]) -> None:
    """Build the read-only root and make it this process's root, without access to the host's tree.

    `binds` maps paths inside to paths of the host without links; `links` maps symbolic links to
    their targets. Needs a mount namespace of this process's own, and the right to mount in it.
    """
    libc.mount("", "/", "", libc.MS_REC | libc.MS_PRIVATE)
    # Any directory will do; the first pivot moves the tmpfs away from it.
    libc.mount("tmpfs", "/tmp", "tmpfs", libc.MS_NOSUID | libc.MS_NODEV, "mode=755,size=16m")
    os.mkdir("/tmp/host")
    os.mkdir("/tmp/root")
    libc.pivot_root("/tmp", "/tmp/host")
    os.chdir("/")
    hidden = {place: binds[path] for path, place in covered(binds).items()}
    _fill({**binds, **hidden})
    _link(links)
    # pivot_root needs a mount point; the self-bind makes the plain directory one.
    libc.mount("/root", "/root", "", libc.MS_BIND | libc.MS_REC)
    os.chdir("/root")
    libc.pivot_root(".", ".")
    libc.umount(".", libc.MNT_DETACH)
    os.chdir("/")
    libc.mount_setattr("/", libc.MOUNT_ATTR_RDONLY, recursive=False)


def _fill(binds: Mapping[str, str]) -> None:
    root = "/root"
    for directory in ("proc", "dev", "etc", "usr", "root", "home"):
        os.makedirs(f"{root}/{directory}")
    for path in (*PRIVATE, _TERMINALS):
        os.makedirs(root + path, exist_ok=True)
    _bind("/usr", "/usr")
    for name in _SYSTEM:
        if os.path.islink(f"/host/{name}"):
            os.symlink(os.readlink(f"/host/{name}"), f"{root}/{name}")
        elif os.path.isdir(f"/host/{name}"):
            _bind(f"/{name}", f"/{name}")
    _fill_etc()
    for inside, outside in sorted(binds.items()):
        _bind(outside, inside)
    _fill_dev()
    # A new /proc may be mounted in a user namespace only while a complete one is visible
    # (mount_too_revealing in fs/namespace.c); each session covers this one with its own.
    libc.mount("/host/proc", f"{root}/proc", "", libc.MS_BIND | libc.MS_REC)


def _link(links: Mapping[str, str]) -> None:
    """Make the links that no mount shows already."""
    for path, target in links.items():
        place = f"/root{path}"
        if not os.path.lexists(place) and not path.startswith(PRIVATE):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.symlink(target, place)


def _fill_etc() -> None:
    for name, text in _ETC_FILES.items():
        _write(f"/root/etc/{name}", text.encode())
    for name in _ETC:
        if os.path.exists(f"/host/etc/{name}"):
            # Copied, because each session copies every mount of its template, and these files are
            # small.
            _copy(f"/host/etc/{name}", f"/root/etc/{name}")


def _copy(source: str, target: str) -> None:
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
    elif os.path.isdir(source):
        os.mkdir(target)
        for name in os.listdir(source):
            _copy(f"{source}/{name}", f"{target}/{name}")
    else:
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        _write(target, os.read(fd, _MAX_ETC))
        os.close(fd)


def _write(target: str, data: bytes) -> None:
    # Without the codecs of open(): nothing can be imported until the interpreter is visible.
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o444)
    os.write(fd, data)
    os.close(fd)


def _fill_dev() -> None:
    for name in _DEVICES:
        target = f"/root/dev/{name}"
        os.close(os.open(target, os.O_CREAT | os.O_CLOEXEC, 0o666))
        libc.mount(f"/host/dev/{name}", target, "", libc.MS_BIND)
        # Devices stay writable all the same; the times of the host's nodes do not change.
        attributes = libc.MOUNT_ATTR_RDONLY | libc.MOUNT_ATTR_NOSUID
        libc.mount_setattr(target, attributes, recursive=False)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"/root/dev/{name}")


def _bind(outside: str, inside: str) -> None:
    """Show `outside` of the host at `inside`, read-only with everything mounted below it."""
    source, target = f"/host{outside}", f"/root{inside}"
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_CLOEXEC, 0o444))
    libc.mount(source, target, "", libc.MS_BIND | libc.MS_REC)
    attributes = libc.MOUNT_ATTR_RDONLY | libc.MOUNT_ATTR_NOSUID | libc.MOUNT_ATTR_NODEV
    libc.mount_setattr(target, attributes, recursive=True)


def mount_proc_rows() -> Rows:
    """Return the rows that show the processes of this pid namespace, and only those."""
    flags = libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC
    yield call("mount", b"proc", b"/proc", b"proc", flags, 0)


@contextmanager
def writable(covered: Mapping[str, str]) -> Iterator[None]:
    """Provide the private mounts of a session within the context; they are removed afterwards."""
    perform(mount_private_rows(_SCRATCH, os.geteuid()))
    try:
        perform(uncover_rows(covered))
        yield
    finally:
        for path in PRIVATE:
            libc.umount(path, libc.MNT_DETACH)


def covered(paths: Iterable[str]) -> dict[str, str]:
    """Map each of `paths` that a private mount hides to the template's other path of it."""
    hidden = [path for path in paths if path.startswith(tuple(f"{place}/" for place in PRIVATE))]
    return {path: f"{_ASIDE}/{number}" for number, path in enumerate(sorted(hidden))}


def uncover_rows(covered: Mapping[str, str]) -> Rows:
    """Return the rows that show the hidden paths again, read-only as before.

    The private mounts are new and empty.
    """
    created, shown = {*PRIVATE}, tuple[str, ...]()
    for path, source in sorted(covered.items()):  # before paths inside of it
        target = path.encode()
        if not path.startswith(shown):
            for folder in _above(path):
                if folder not in created:
                    created.add(folder)
                    yield call("mkdirat", libc.AT_FDCWD, folder.encode(), 0o777)
            if os.path.isdir(source):
                yield call("mkdirat", libc.AT_FDCWD, target, 0o777)
            else:
                flags = os.O_CREAT | os.O_CLOEXEC
                yield call("openat", libc.AT_FDCWD, target, flags, 0o444, keeps=slots.OPENED)
                yield call("close", slots.OPENED)
        shown = (*shown, f"{path}/")
        yield call("mount", source.encode(), target, b"", libc.MS_BIND | libc.MS_REC, 0)


def _above(path: str) -> list[str]:
    """Return the parent directories of a path, from the private mount on."""
    folders = (path[:at] for at, each in enumerate(path) if each == "/")
    return [folder for folder in folders if folder.startswith(PRIVATE)]


def capacity(workspace_size: int) -> int:
    """Return the most memory that the private mounts can use, including files of no size."""
    inodes = len(FILE_SYSTEMS) * _INODES * _INODE_SIZE
    return 2 * workspace_size + _SHM_SIZE + inodes


def mount_private_rows(workspace_size: int, owner: int) -> Rows:
    """Return the rows of the session's own writable mounts, empty, owned by uid `owner`."""
    inside = f"nr_inodes={_INODES},uid={owner},gid={owner}"
    for path, mode, size in (
        ("/tmp", 1777, workspace_size),
        (WORKSPACE, 700, workspace_size),
        ("/dev/shm", 1777, _SHM_SIZE),
    ):
        options = f"mode={mode},size={size},{inside}".encode()
        flags = libc.MS_NOSUID | libc.MS_NODEV
        yield call("mount", b"tmpfs", path.encode(), b"tmpfs", flags, options)
    # Tools of agents leave programs there that have to outlive a command.
    yield call("mount", b"/tmp", b"/var/tmp", b"", libc.MS_BIND, 0)


def mount_terminals_rows(owner: int) -> Rows:
    """Return the rows that mount the session's own terminals, none yet: devpts, pts(4)."""
    options = f"newinstance,ptmxmode=0666,mode=620,gid={owner},max={_MAX_TERMINALS}".encode()
    flags = libc.MS_NOSUID | libc.MS_NOEXEC
    yield call("mount", b"devpts", _TERMINALS.encode(), b"devpts", flags, options)
