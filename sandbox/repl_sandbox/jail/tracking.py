"""Which of its pages a process has written: noted by the kernel, told by one call.

userfaultfd(2) in asynchronous write protection, and PAGEMAP_SCAN of a process's pagemap, both of
Linux 6.7. A write to a protected page costs one fault more, which the kernel alone handles.

Covers: pages of private memory, those given back (MADV_DONTNEED) among them where others of the
same table stay. Does not cover: which tables of pages there are, and changes of mappings, but for
new ones: to scan these is an error.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from . import libc
from .calls import Row
from .libc import Call

# uapi/linux/userfaultfd.h; of its requests code of sessions may use `UFFDIO_REGISTER` alone: see
# syscalls.RULES.
_UFFD_USER_MODE_ONLY: Final = 1
_UFFD_API: Final = 0xAA
_UFFD_FEATURE_WP_ASYNC: Final = 1 << 15
_UFFDIO_API: Final = 0xC018AA3F
_UFFDIO_REGISTER: Final = 0xC020AA00
_UFFDIO_REGISTER_MODE_WP: Final = 2
_API = struct.Struct("=QQQ")  # struct uffdio_api: api, features, ioctls
_ASKED: Final = _API.pack(_UFFD_API, _UFFD_FEATURE_WP_ASYNC, 0)
_REGISTER = struct.Struct("=QQQQ")  # struct uffdio_register: start, length, mode, ioctls

# uapi/linux/fs.h
PAGEMAP_SCAN: Final = 0xC0606610
_PM_SCAN_WP_MATCHING: Final = 1
_PM_SCAN_CHECK_WPASYNC: Final = 2
_PAGE_IS_WRITTEN: Final = 2
REGION: Final = struct.Struct("=QQQ")  # struct page_region: start, end, categories


PAGE: Final = os.sysconf("SC_PAGE_SIZE")
Span: TypeAlias = tuple[int, int]  # of addresses: the first, and the one after the last


class ScanArguments(ctypes.Structure):
    """struct pm_scan_arg."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("size", "flags", "start", "end", "walk_end", "vec", "vec_len", "max_pages"),
            *("category_inverted", "category_mask", "category_anyof_mask", "return_mask"),
        )
    )


_userfaultfd: Final = Call("userfaultfd", ctypes.c_int)
_REGISTERING: Final = _UFFD_USER_MODE_ONLY | os.O_CLOEXEC | os.O_NONBLOCK
_PAGEMAP: Final = "/proc/self/pagemap"


def opening(free: str, following: str, asked: int, least: int) -> Iterator[Row]:
    """What `Tracking.begin` calls, as rows of a chain.

    `free`, `following`: the names of the lowest two descriptors that are. `asked`: the address of
    `api()`. If none is open there, both come to `least` and the number after it.
    """
    yield "userfaultfd", _REGISTERING
    yield "ioctl", free, _UFFDIO_API, asked
    yield "prctl", libc.PR_SET_DUMPABLE, 1, 0, 0, 0
    yield "openat", 0, _PAGEMAP.encode(), os.O_RDONLY | os.O_CLOEXEC
    yield "fcntl", free, fcntl.F_DUPFD_CLOEXEC, least
    yield "fcntl", following, fcntl.F_DUPFD_CLOEXEC, least
    yield "close", free
    yield "close", following


def api() -> ctypes.Array[ctypes.c_char]:
    """What is asked of the kernel, which writes there."""
    return ctypes.create_string_buffer(_ASKED, len(_ASKED))


class Tracking:
    """What tracks the pages of this process, made while it still may: two descriptors, or none."""

    def __init__(self, least: int) -> None:
        """`least`: their numbers are not below."""
        self._least = least
        self.registering = self.pagemap = -1
        self.descriptors: tuple[int, ...] = ()  # those that are open
        self._droppable: frozenset[Span] = frozenset()

    def begin(self) -> None:
        """Open both. Where the kernel has not what it takes, neither."""
        registering = pagemap = -1
        try:
            registering = _userfaultfd(_REGISTERING)
            fcntl.ioctl(registering, _UFFDIO_API, _ASKED)
            # So that what is below /proc/self is this process's own, whoever it was before.
            libc.prctl(libc.PR_SET_DUMPABLE, 1)
            pagemap = os.open(_PAGEMAP, os.O_RDONLY | os.O_CLOEXEC)
            self.registering = fcntl.fcntl(registering, fcntl.F_DUPFD_CLOEXEC, self._least)
            self.pagemap = fcntl.fcntl(pagemap, fcntl.F_DUPFD_CLOEXEC, self._least)
            self.descriptors = self.registering, self.pagemap
        except OSError:
            self.end()
        for fd in (registering, pagemap):
            if fd >= 0:
                os.close(fd)

    def opened(self, failure: int) -> None:
        """`opening` was called by this process; `failure`: the errno of that."""
        self.registering, self.pagemap = self.descriptors = self._least, self._least + 1
        if failure:
            self.end()

    @property
    def begun(self) -> bool:
        """Whether there are."""
        return self.pagemap >= 0

    def end(self) -> None:
        """Close what is open: pages are no longer tracked."""
        for fd in (self.registering, self.pagemap):
            if fd >= 0:
                with suppress(OSError):  # the code was first
                    os.close(fd)
        self.registering, self.pagemap, self.descriptors = -1, -1, ()

    def track(self) -> Mapped:
        """Track all that can be; what is mapped. OSError: there is a mapping that cannot be.

        Memory for what is read of the mappings may itself be mapped meanwhile, at an address that
        was read already. All is known when nothing has changed since the look before.
        """
        self._droppable = frozenset(filter(self._is_refused, self._droppable))
        mapped = self._looked()
        for _ in range(_MOST_LOOKS):
            before, mapped = mapped, self._looked()
            if mapped == before:
                return mapped
        raise OSError(errno.EAGAIN, "mappings do not come to rest")

    def check(self) -> None:
        """OSError: in the place of memory that the kernel may take back is other memory now.

        That is not told where it has the place of a part.
        """
        if not all(map(self._is_refused, self._droppable)):
            raise OSError(0, "there is more to be tracked")

    def _looked(self) -> Mapped:
        mapped = look(self._droppable)
        try:
            self._register(mapped.trackable)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # Which these are takes the kernel a hundred times longer to say, and seldom changes.
            self._droppable = _droppable()
            mapped = look(self._droppable)
            self._register(mapped.trackable)
        return mapped

    def _is_refused(self, span: Span) -> bool:
        try:
            self._register((span,))
        except OSError:
            return True
        return False

    def _register(self, spans: Iterable[Span]) -> None:
        for start, end in spans:
            span = _REGISTER.pack(start, end - start, _UFFDIO_REGISTER_MODE_WP, 0)
            fcntl.ioctl(self.registering, _UFFDIO_REGISTER, span)


# As many looks at what is mapped, each after the memory for the one before was.
_MOST_LOOKS: Final = 4
# The first address that the kernel takes for a mapping on all machines (mmap_min_addr).
_LOWEST: Final = 1 << 16
# The first that is no process's on any machine; [vsyscall] lies there.
_KERNELS: Final = 1 << 63


class Mapped(NamedTuple):
    """What is mapped in this process, in order of the addresses."""

    trackable: list[Span]  # where nothing is but private memory
    private: list[tuple[int, int, bool]]  # the first, the one after the last; can it be written


def look(without: Collection[Span] = ()) -> Mapped:
    """What is mapped now, `without` these. What will be is not tracked before it is registered."""
    trackable, private, start, last = [], [], _LOWEST, 0
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            where, access, *_ = line.split(None, 2)
            begin, end = (int(each, 16) for each in where.split(b"-"))
            if begin >= _KERNELS:
                break
            # [vvar], [vdso] and the like are the kernel's.
            if b"[v" in line or access.endswith(b"s") or (begin, end) in without:
                if start < begin:
                    trackable.append((start, begin))
                start = end
            else:
                private.append((begin, end, access.startswith(b"rw")))
            last = end
    return Mapped([*trackable, (start, last)], private)


def _droppable() -> frozenset[Span]:
    """Memory that the kernel may take back, MAP_DROPPABLE: it tracks none of it.

    The C library keeps the states of its random numbers there (vgetrandom; Linux 6.11, glibc 2.41).
    No child has what is in it.
    """
    found, span = set(), (0, 0)
    with open("/proc/self/smaps", "rb") as maps:
        for line in maps:
            name, _, said = line.partition(b" ")
            if name == b"VmFlags:" and b"dp" in said.split():
                found.add(span)
            elif not name.endswith(b":"):
                begin, end = name.split(b"-")
                span = int(begin, 16), int(end, 16)
    return frozenset(found)


def scan_arguments(span: Span, vector: int, length: int, *, protect: bool) -> ScanArguments:
    """Of a scan for what was written there since it was protected last.

    What is found goes to `length` regions at the address `vector`; 0: nowhere. With `protect` it
    counts as not written from then on. A mapping that is not tracked is an error, EPERM.
    """
    flags = _PM_SCAN_CHECK_WPASYNC | (_PM_SCAN_WP_MATCHING if protect else 0)
    # The mask alone, with nothing inverted: only then the kernel counts pages that were given back
    # as written.
    masks = 0, _PAGE_IS_WRITTEN, 0, _PAGE_IS_WRITTEN if vector else 0
    return ScanArguments(ctypes.sizeof(ScanArguments), flags, *span, 0, vector, length, 0, *masks)


_ioctl = ctypes.CDLL(None, use_errno=True).ioctl
_ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]


def scan(pagemap: int, arguments: ScanArguments) -> int:
    """PAGEMAP_SCAN; how many regions were found.

    Raises:
        OSError: a mapping is not tracked (EPERM), or there is more than was asked for (ENOSPC).
    """
    found: int = _ioctl(pagemap, PAGEMAP_SCAN, ctypes.addressof(arguments))
    if found < 0:
        raise OSError(ctypes.get_errno(), "PAGEMAP_SCAN")
    if arguments.walk_end != arguments.end:
        raise OSError(errno.ENOSPC, "PAGEMAP_SCAN: more than was asked for")
    return found
