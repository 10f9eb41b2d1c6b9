"""Calls of the C library and the kernel that the standard library lacks: errno in, OSError out."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

from .library import Argument, Slot, SyscallRow

# Requests to the kernel and the C library's allocator about this process's memory.

# uapi/asm-generic/mman-common.h
_MADV_DONTNEED: Final = 4
_MADV_HUGEPAGE: Final = 14
_MADV_NOHUGEPAGE: Final = 15

_heap = ctypes.CDLL(None)
_heap.malloc.restype = ctypes.c_void_p


def advise_huge_pages(address: int, size: int) -> None:
    """madvise(2) with MADV_HUGEPAGE for the whole pages from `address` on, before their first use.

    This is advice: where the kernel has no such pages or they are switched off, nothing happens.
    """
    _madvise(address, size, _MADV_HUGEPAGE)


def _madvise(address: int, size: int, *advices: int) -> None:
    """madvise(2) for the whole pages from `address` on. A refusal of advice is no error."""
    page = os.sysconf("SC_PAGE_SIZE")
    first, last = -(-address // page) * page, (address + size) // page * page
    if last > first:
        for advice in advices:
            _heap.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), advice)


def trim_heap() -> None:
    """malloc_trim(3): return freed memory to the kernel, where the C library can (glibc)."""
    try:
        trim = _heap.malloc_trim
    except AttributeError:
        return
    trim(ctypes.c_size_t(0))


def keep_freed(size: int) -> None:
    """Make the allocator keep freed blocks of up to `size` bytes for later requests.

    glibc returns a block to the kernel if it is larger than the largest that was freed before, 128
    KiB at first, and free memory at the end of its heap beyond twice that: mallopt(3),
    M_MMAP_THRESHOLD. Other C libraries have rules of their own.
    """
    _heap.free(ctypes.c_void_p(_heap.malloc(ctypes.c_size_t(size))))


def empty_end(size: int) -> None:
    """Keep `size` bytes or more free at the end of the heap, without pages; small blocks go there.

    Where glibc uses huge pages, `malloc_trim` shortens a heap by whole ones only, and the first
    byte of the next would allocate all of it. Elsewhere, and in glibc before 2.33, nothing happens.
    """
    try:
        info = _heap.mallinfo2
    except AttributeError:
        return
    info.restype = _Mallinfo2
    keep_freed(size)  # the heap has grown by the missing part
    free = info().keepcost - os.sysconf("SC_PAGE_SIZE")
    if free > 0 and (block := _heap.malloc(ctypes.c_size_t(free))) is not None:
        _madvise(block, free, _MADV_DONTNEED, _MADV_NOHUGEPAGE)
        _heap.free(ctypes.c_void_p(block))


class _Mallinfo2(ctypes.Structure):
    """struct mallinfo2 of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


# Bindings to libc: kernel calls that the standard library lacks, errno in, OSError out.
#
# Covers: calling convention, names for numbers, errno. Does not cover: any order or policy, which
# belong to the recipe. Constants have the names and values of the kernel's uapi headers.

# uapi/linux/sched.h
CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000
CLONE_PARENT: Final = 0x00008000
CLONE_THREAD: Final = 0x00010000

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

# Calls of batches, and others without a wrapper in glibc 2.36: (x86-64, aarch64), from the kernel's
# tables; -1 where there is none.
_NUMBERS: Final = {
    "capset": (126, 91),
    "chdir": (80, 49),
    "clone": (56, 220),
    "clone3": (435, 435),
    "close": (3, 57),
    "close_range": (436, 436),
    "dup": (32, 23),
    "dup3": (292, 24),
    "faccessat": (269, 48),
    "fork": (57, -1),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "mkdirat": (258, 34),
    "mmap": (9, 222),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "openat": (257, 56),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "read": (0, 63),
    "sched_getattr": (315, 275),
    "sched_setattr": (314, 274),
    "seccomp": (317, 277),
    "setgroups": (116, 159),
    "sethostname": (170, 161),
    "setresgid": (119, 149),
    "setresuid": (117, 147),
    "setsid": (112, 157),
    "unshare": (272, 97),
    "vfork": (58, -1),
    "write": (1, 64),
}
_column: Final = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine)

_libc = ctypes.CDLL(None, use_errno=True)
_long = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def number(name: str) -> int:
    """Return the number of system call `name` on this machine; OSError if unknown."""
    if _column is None:
        raise OSError(0, f"no system call numbers for {os.uname().machine}")
    return _NUMBERS[name][_column]


def call(
    name: str,
    *arguments: Argument,
    keeps: Slot | None = None,
    least: int = 0,
    exactly: bool = False,
    tolerated: tuple[int, ...] = (),
    reason: str = "",
) -> SyscallRow:
    """Return system call `name` as a row of a batch; see `native.library.SyscallRow`."""
    return SyscallRow(name, number(name), arguments, keeps, least, exactly, tolerated, reason)


def set_scheduling(thread: int, policy: int, nanoseconds: int) -> None:
    """Set the policy and slice of `thread` (sched_setattr(2)); 0 is the kernel's default slice.

    Its nice value stays. A thread in the idle or a real-time class stays as it is. OSError if it
    has ended or belongs to another user.
    """
    attributes = ctypes.create_string_buffer(_SCHED_ATTR.size)
    if _libc.syscall(number("sched_getattr"), thread, attributes, _SCHED_ATTR.size, 0):
        fail("sched_getattr")
    size, before, flags, nice, *_ = _SCHED_ATTR.unpack(attributes)
    if before not in (os.SCHED_OTHER, os.SCHED_BATCH):
        return
    _SCHED_ATTR.pack_into(attributes, 0, size, policy, flags, nice, 0, nanoseconds, 0, 0)
    if _libc.syscall(number("sched_setattr"), thread, attributes, 0):
        fail("sched_setattr")


# struct sched_attr in its first version: size, policy, flags, nice, priority; runtime, deadline,
# period in nanoseconds. The runtime is the slice for policies without the other two.
_SCHED_ATTR: Final = struct.Struct("=IIQiIQQQ")


def fail(call: str) -> NoReturn:
    """Raise OSError for a call that has just failed."""
    code = ctypes.get_errno()
    raise OSError(code, f"{call}: {os.strerror(code)}")


def check(result: int, call: str) -> int:
    """Return `result`; OSError if it is -1, a failure of `call`."""
    return result if result != -1 else fail(call)


class NativeCall:
    """System call `name` with arguments of `kinds`, ctypes' types: a C function, prepared once.

    In a process that has just been forked, each Python function called costs some microseconds,
    because its pages and cache lines are cold; so do objects made for arguments.
    """

    def __init__(self, name: str, *kinds: type[ctypes._SimpleCData[Any]]) -> None:
        self._name = name
        # A library object of its own, because a function's types belong to the function.
        function = ctypes.CDLL(None, use_errno=True).syscall
        function.argtypes = (_long, *kinds)
        function.restype = _long
        # Unchecked: -1 on failure, after which `failed` must be called.
        self.raw: Callable[..., int] = partial(function, -1 if _column is None else number(name))

    def __call__(self, *args: int | bytes) -> int:
        """Return the call's result; OSError with its errno on failure."""
        result = self.raw(*args)
        return result if result != -1 else self.failed()

    def failed(self) -> NoReturn:
        """Raise OSError for a call of `raw` that has just failed."""
        number(self._name)  # raises where there is none
        fail(self._name)


def unshare(flags: int) -> None:
    """unshare(2)."""
    if _libc.unshare(flags):
        fail("unshare")


def setns(fd: int, kind: int) -> None:
    """setns(2): enter the namespace open as `fd`, which is of `kind`."""
    if _libc.setns(fd, kind):
        fail("setns")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2)."""
    if _libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
    ):
        fail(f"mount {target}")


def umount(target: str, flags: int) -> None:
    """umount2(2)."""
    check(_libc.umount2(target.encode(), flags), f"umount {target}")


_pivot_root: Final = NativeCall("pivot_root", ctypes.c_char_p, ctypes.c_char_p)


def pivot_root(new_root: str, put_old: str) -> None:
    """pivot_root(2)."""
    _pivot_root(new_root.encode(), put_old.encode())


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


_mount_setattr: Final = NativeCall(
    "mount_setattr",
    *(ctypes.c_int, ctypes.c_char_p, ctypes.c_uint),
    *(ctypes.c_void_p, ctypes.c_size_t),
)


def mount_setattr(path: str, attributes: int, *, recursive: bool) -> None:
    """mount_setattr(2), Linux 5.12: set `attributes` on the mount at `path` and those below it."""
    attr = _MountAttr(attributes, 0, 0, 0)
    flags, size = AT_RECURSIVE if recursive else 0, ctypes.sizeof(attr)
    _mount_setattr(AT_FDCWD, path.encode(), flags, ctypes.addressof(attr), size)


def prctl(option: int, first: int = 0, second: int = 0) -> int:
    """prctl(2) with up to two integer arguments."""
    result: int = _libc.prctl(option, first, second, 0, 0)
    return result if result != -1 else check(result, f"prctl {option}")


def knows_capability(capability: int) -> bool:
    """Return whether this kernel has a capability of that number."""
    return bool(_libc.prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0)


# Sealed memfds: files in memory that no process can change any more.

# fcntl(2), Linux 5.1; not in the module. F_SEAL_WRITE would wait until the kernel holds no page of
# the file, and give up with EBUSY; this seal does not, and no process has the file mapped for
# writing.
_F_SEAL_FUTURE_WRITE = 0x10


def seal(fd: int) -> None:
    """Seal a memfd against every later change."""
    seals = _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
