"""The thin layer over libc: kernel calls that the standard library lacks, errno in, OSError out.

Covers: calling convention, names for numbers, errno. Does not cover: any order or policy; that is
the recipe's. Constants are those of the kernel's uapi headers, named as there.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

# uapi/linux/sched.h
CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000
CLONE_PARENT: Final = 0x00008000

# uapi/linux/mount.h
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000
MNT_DETACH: Final = 0x2
MOUNT_ATTR_RDONLY: Final = 0x1
MOUNT_ATTR_NOSUID: Final = 0x2
MOUNT_ATTR_NODEV: Final = 0x4

# uapi/linux/fcntl.h
AT_FDCWD: Final = -100
AT_RECURSIVE: Final = 0x8000

# uapi/linux/prctl.h
PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_CAPBSET_READ: Final = 23
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAP_AMBIENT: Final = 47
PR_CAP_AMBIENT_CLEAR_ALL: Final = 4

SIGKILL: Final = 9
SIGCHLD: Final = 17
# Bytes; more than struct sigaction has in any C library.
_SIGACTION_SIZE: Final = 256
# Waits of so many milliseconds, in which a fork of a fork is made, also of gigabytes. They are not
# one: when this process is not run for seconds, the other may not be either, and that counts once.
_WAIT_BETWEEN: Final = 200
_MOST_WAITS: Final = 10

# uapi/asm-generic/mman-common.h
MADV_HUGEPAGE: Final = 14
MADV_POPULATE_WRITE: Final = 23

# uapi/linux/sched.h, for clone3 alone
CLONE_INTO_CGROUP: Final = 0x2_0000_0000

# Calls without a wrapper in glibc 2.36, and one that os has only as what raises, by machine:
# (x86-64, aarch64), from the kernel's tables.
_NUMBERS: Final = {
    "clone": (56, 220),
    "openat": (257, 56),
    "clone3": (435, 435),
    "pivot_root": (155, 41),
    "capset": (126, 91),
    "close_range": (436, 436),
    "process_madvise": (440, 440),
    "mount_setattr": (442, 442),
    "seccomp": (317, 277),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
}
_column: Final = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine)

_libc = ctypes.CDLL(None, use_errno=True)
# PyDLL keeps the GIL held: a clone through it leaves the child with the interpreter's lock.
_libc_with_gil = ctypes.PyDLL(None, use_errno=True)
_long = ctypes.c_long
# Declared once, so that a call does not have to make its arguments' types.
_prctl_of_ints = ctypes.CDLL(None, use_errno=True).prctl
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_libc.syscall.restype = _long
_libc.malloc.restype = ctypes.c_void_p
_libc_with_gil.syscall.restype = _long
# Looked up here, once: in a forked process the search through all libraries copies some 60 pages.
_fork = _libc_with_gil.fork
_clone = ctypes.PyDLL(None).syscall
_CLONE: Final = -1 if _column is None else _NUMBERS["clone"][_column]
_sethostname = _libc.sethostname


def number(name: str) -> int:
    """The number of system call `name` on this machine; OSError where it is not known."""
    if _column is None:
        raise OSError(0, f"no system call numbers for {os.uname().machine}")
    return _NUMBERS[name][_column]


def _fail(call: str) -> NoReturn:
    """Raise OSError for a call that has just failed."""
    code = ctypes.get_errno()
    raise OSError(code, f"{call}: {os.strerror(code)}")


def _check(result: int, call: str) -> int:
    return result if result != -1 else _fail(call)


class Call:
    """System call `name` with arguments of `kinds`, ctypes' types: a function of C, prepared once.

    In a process that has just been forked each Python function on the way costs some microseconds,
    for its pages and lines of cache are nobody's yet; so do objects made for arguments.
    """

    def __init__(self, name: str, *kinds: type[ctypes._SimpleCData[Any]]) -> None:
        self._name = name
        # By a library object of its own, because a function's types belong to the function.
        function = ctypes.CDLL(None, use_errno=True).syscall
        function.argtypes = (_long, *kinds)
        function.restype = _long
        # As it is: -1 where it fails, and then `failed` has to follow.
        self.raw: Callable[..., int] = partial(function, -1 if _column is None else number(name))

    def __call__(self, *args: int | bytes) -> int:
        """What it returns; raises OSError with its errno."""
        result = self.raw(*args)
        return result if result != -1 else self.failed()

    def failed(self) -> NoReturn:
        """Raise OSError for a call of `raw` that has just failed."""
        number(self._name)  # which raises where there is none
        _fail(self._name)


def unshare(flags: int) -> None:
    """unshare(2)."""
    if _libc.unshare(flags):
        _fail("unshare")


def setns(fd: int, kind: int) -> None:
    """setns(2): be in the namespace that is open as `fd`, which is one of `kind`."""
    if _libc.setns(fd, kind):
        _fail("setns")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2)."""
    if _libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
    ):
        _fail(f"mount {target}")


def umount(target: str, flags: int) -> None:
    """umount2(2)."""
    _check(_libc.umount2(target.encode(), flags), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    """pivot_root(2)."""
    new, old = ctypes.c_char_p(new_root.encode()), ctypes.c_char_p(put_old.encode())
    _check(_libc.syscall(_long(number("pivot_root")), new, old), "pivot_root")


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


def mount_setattr(path: str, attributes: int, *, recursive: bool) -> None:
    """mount_setattr(2), Linux 5.12: set `attributes` on the mount at `path` and those below it."""
    attr = _MountAttr(attributes, 0, 0, 0)
    result = _libc.syscall(
        _long(number("mount_setattr")),
        _long(AT_FDCWD),
        ctypes.c_char_p(path.encode()),
        _long(AT_RECURSIVE if recursive else 0),
        ctypes.byref(attr),
        _long(ctypes.sizeof(attr)),
    )
    _check(result, f"mount_setattr {path}")


def prctl(option: int, first: int = 0, second: int = 0) -> int:
    """prctl(2) with up to two integer arguments."""
    result: int = _libc.prctl(option, first, second, 0, 0)
    return result if result != -1 else _check(result, f"prctl {option}")


def knows_capability(capability: int) -> bool:
    """Whether this kernel has a capability of that number."""
    return bool(_libc.prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0)


def empty_bounding_set(last: int) -> None:
    """PR_CAPBSET_DROP for every capability up to `last`: one loop, because each session runs it."""
    call = _prctl_of_ints
    for capability in range(last + 1):
        if call(PR_CAPBSET_DROP, capability, 0, 0, 0):
            _fail(f"prctl {PR_CAPBSET_DROP}")


def advise_huge_pages(address: int, size: int) -> None:
    """madvise(2) with MADV_HUGEPAGE for the whole pages from `address` on: before they are used.

    An advice: where the kernel has no such pages or they are switched off, nothing happens.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    first, last = -(-address // page) * page, (address + size) // page * page
    if last > first:
        _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_HUGEPAGE)


_process_madvise: Final = Call(
    "process_madvise", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint
)


def populate(runs: int, count: int) -> None:
    """process_madvise(2) on this process, MADV_POPULATE_WRITE: have pages as if written to.

    `runs` is the address of an array of `count` struct iovec. OSError (EINVAL) where the kernel
    takes this advice from no process, not even about itself, as before Linux 6.13.
    """
    me = os.pidfd_open(os.getpid())
    try:
        if _process_madvise.raw(me, runs, count, MADV_POPULATE_WRITE, 0) == -1:
            _process_madvise.failed()
    finally:
        os.close(me)


def trim_heap() -> None:
    """malloc_trim(3): give the kernel back what was freed, where the C library can (glibc)."""
    try:
        trim = _libc.malloc_trim
    except AttributeError:
        return
    trim(ctypes.c_size_t(0))


def keep_freed(size: int) -> None:
    """Have the allocator keep blocks of up to `size` bytes that are freed for who asks next.

    glibc gives a block back to the kernel if it is larger than the largest that was freed before,
    128 KiB at first, and what lies free at the end of its heap beyond twice that: mallopt(3),
    M_MMAP_THRESHOLD. Other C libraries have rules of their own.
    """
    _libc.free(ctypes.c_void_p(_libc.malloc(ctypes.c_size_t(size))))


def sethostname(name: str) -> None:
    """sethostname(2)."""
    encoded = name.encode()
    if _sethostname(encoded, ctypes.c_size_t(len(encoded))):
        _fail("sethostname")


_close_range: Final = Call("close_range", ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)


def close_range(first: int, last: int) -> None:
    """close_range(2), Linux 5.9: close every descriptor from `first` to `last`, both included."""
    if _close_range.raw(first, last, 0):
        _close_range.failed()


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint32) for n in ("effective", "permitted", "inheritable")]


_LINUX_CAPABILITY_VERSION_3: Final = 0x20080522
_cap_header = _CapHeader(_LINUX_CAPABILITY_VERSION_3, 0)
_cap_none = (_CapData * 2)()
_cap_addresses: Final = ctypes.addressof(_cap_header), ctypes.addressof(_cap_none)
_capset: Final = Call("capset", ctypes.c_void_p, ctypes.c_void_p)


def capset_none() -> None:
    """capset(2): give up every effective, permitted and inheritable capability."""
    if _capset.raw(*_cap_addresses):
        _capset.failed()


def fork_into(flags: int) -> int:
    """clone(2) as a fork into new namespaces: 0 in the child, its pid in the parent.

    For a process with one thread, as the zygote checks that it is. CPython's fork hooks and glibc's
    repair what other threads may hold; there are none, and running them costs half a millisecond
    of copied pages. The GIL stays with the caller, whose thread keeps its identity in the child.
    """
    # x86-64 and aarch64 order the last two arguments differently; all of them are null here.
    arguments = (number("clone"), flags | SIGCHLD, 0, 0, 0, 0)
    # A list, and no map: of a tuple made of what has no length CPython keeps the memory, for two
    # thousand of them.
    return _check(_libc_with_gil.syscall(*[_long(each) for each in arguments]), "clone")


class _CloneArgs(ctypes.Structure):
    # uapi/linux/sched.h, struct clone_args of Linux 5.7
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            *("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size"),
            *("tls", "set_tid", "set_tid_size", "cgroup"),
        )
    ]


def fork_into_group(flags: int, folder: int) -> int:
    """clone3(2), else as `fork_into`: the child is in the cgroup whose folder is open as `folder`.

    Version 2 only. To move a process there after its birth takes the kernel up to 25 ms: it waits
    until no fork is under way on any processor (cgroup_threadgroup_rwsem).
    """
    arguments = _CloneArgs(flags=flags | CLONE_INTO_CGROUP, exit_signal=SIGCHLD, cgroup=folder)
    size = ctypes.sizeof(arguments)
    call = (_long(number("clone3")), ctypes.byref(arguments), _long(size))
    return _check(_libc_with_gil.syscall(*call), "clone3")


def fork() -> int:
    """fork(3) for a process with one thread, without CPython's hooks; see `fork_into`."""
    return _check(_fork(), "fork")


def fork_beside() -> int:
    """clone(2) as a fork whose child is the caller's sibling; 0 in the child.

    Its parent is the caller's, who reaps it: the caller's own waits never meet it. For a process
    with one thread, as `fork`.
    """
    # Plain integers, and no errno: what ctypes makes for these, the child would have to take down,
    # and each page that it touches takes longer than the call.
    pid: int = _clone(_CLONE, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0)
    if pid == -1:
        raise OSError(errno.EAGAIN, "clone: no room for another process")
    return pid


def fork_beside_threads() -> int:
    """As `fork_beside`, for a process with other threads; the child has the caller's alone.

    What these threads hold of the C library and of CPython is repaired by fork(3) and by CPython's
    hooks, those of os.register_at_fork among them. fork(3) makes only children, so one is made that
    makes another and ends: that one goes to whoever adopts the orphans of this session, its init.
    Of the end of the one between no handler hears, in whichever thread.
    """
    handled = ctypes.create_string_buffer(_SIGACTION_SIZE)
    quiet = ctypes.create_string_buffer(_SIGACTION_SIZE)  # all zero: SIG_DFL
    _libc_with_gil.sigaction(SIGCHLD, quiet, handled)
    had_ended = _has_ended()
    try:
        pid = _fork_by_another()
    finally:
        _libc_with_gil.sigaction(SIGCHLD, handled, None)
    if pid and not had_ended and _has_ended():
        os.kill(os.getpid(), SIGCHLD)  # of a child of the code's that nobody was told of
    return pid


def _has_ended() -> bool:
    """Whether a child waits to be waited for."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _fork_by_another() -> int:
    hooks = ctypes.pythonapi
    reading, writing = os.pipe2(os.O_CLOEXEC)
    hooks.PyOS_BeforeFork()
    between = _fork()
    if between == 0:
        hooks.PyOS_AfterFork_Child()
        child = _fork()
        if child == 0:
            os.close(reading)
            os.close(writing)
            return 0
        os.write(writing, str(child).encode())
        os._exit(0)
    hooks.PyOS_AfterFork_Parent()
    os.close(writing)
    try:
        _check(between, "fork")
        answer = _said(reading)
        if answer is None:
            # Held up by a hook of the code's, or by a lock of a C library that a thread held.
            os.kill(between, SIGKILL)
        os.waitpid(between, 0)
    finally:
        os.close(reading)
    if answer is None or answer == -1:
        raise OSError(errno.EAGAIN, "fork: no room for a second one, or no end of the first")
    return answer


def _said(reading: int) -> int | None:
    """The number that comes by a pipe; None if none does in time."""
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    for _ in range(_MOST_WAITS):
        if poller.poll(_WAIT_BETWEEN):
            return int(os.read(reading, 16) or b"-1")
    return None
