"""What a process has written since its waiting copy was made, kept for that copy.

A copy for which the pages are kept that have changed since need not be made again: that is the
price of a few system calls, whatever the size of the memory. The kernel tells which pages these are
(`tracking`). One chain of the C library (`contexts`) writes them to a file and asks which were
written by now; nothing else of the process runs meanwhile, so memory and registers are of one
moment. If there is a page among them that was not kept, it is done again with that page: a page
that was found once is kept from then on. The copy does not run. When it is woken, it reads all of
them in the chain that it waits in (`quiet_fork`), and goes on where the process was.

A file has places for several copies of one process, and each place has two halves, of which one is
complete at any moment, whatever becomes of the process. Of each half there are

- three words: the address of its runs, how many there are, and where their data is;
- a number, which the last of the runs reads: the copy has read all when it is there;
- its runs, an array of struct iovec, and their data.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
from array import array
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from . import contexts, tracking
from .apart import Apart, identity
from .contexts import MARKS, Chain
from .libc import number
from .quiet_fork import QuietFork
from .tracking import PAGE, Tracking
from .written import ROOM, TooMuchError, Written

# Pages that are kept: beyond so many a new copy is cheaper, which shares all of them. Those of four
# copies in turn are 650 on CPython 3.11.
_MOST_PAGES: Final = 896
_MOST_RUNS: Final = 768  # UIO_MAXIOV is 1,024
MOST_PLACES: Final = 4
# So often pages are found that were not kept, by what finds and keeps them too.
_MOST_TRIES: Final = 12
# After so many times the pages are counted that are kept for a copy: most are written each time.
# When they have become half as many again, another copy is made.
_FEW_TIMES: Final = 4
# How the beginning of the file is divided, which is mapped: what is found; of each place which half
# is complete, and whether its copy was woken; then of each half its words.
_RUN: Final = 16  # struct iovec
_HALVES: Final = 64
_NUMBER: Final = 24
_RUNS: Final = 32
_HALF: Final = _RUNS + _MOST_RUNS * _RUN
_PLACE: Final = _HALVES + 2 * _HALF
_MAPPED: Final = -(-(ROOM + MOST_PLACES * _PLACE) // PAGE) * PAGE
# Of data, the number's page among it.
_DATA: Final = (_MOST_PAGES + 1) * PAGE
_WORD: Final = 8

Exchange = Callable[[Callable[[], None]], None]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED: Final = ctypes.c_void_p(-1).value
_PROT_READ_WRITE: Final = 3
_MAP_SHARED: Final = 1


@dataclass(slots=True)
class Kept:
    """What is kept for one copy, which waits at `place`: all pages written since it was made."""

    copy: int  # its process id
    size: bytes  # of all that is mapped there, as the kernel writes it
    place: int
    pages: set[int] = field(default_factory=set)
    runs: array[int] = field(default_factory=lambda: array("Q"))  # of them, as they were found
    laid: list[int] = field(default_factory=lambda: [-1, -1])  # how much of that, by half
    times: int = 0
    most: int = _MOST_PAGES

    def add(self, pages: set[int]) -> bool:
        """Keep these too; whether one is new."""
        new = pages - self.pages
        self.pages |= new
        self.runs += _runs(sorted(new))
        return bool(new)


class Delta:
    """Of one process, whose copies `fork` makes."""

    def __init__(self, fork: QuietFork, pages: Tracking, file: Apart) -> None:
        """`file`: an empty one, which `close` closes.

        Raises:
            OSError: there is no room, or not all memory can be tracked.
        """
        self._fork, self._pages, self._file, self.descriptor = fork, pages, file, file.fd
        self._last = 0  # the number of the last time
        self._process = os.getpid()
        # Of the copy which is made or renewed, so that it knows.
        self._place = self._half = 0
        _make_room(file.fd)
        self.mapped = _libc.mmap(None, _MAPPED, _PROT_READ_WRITE, _MAP_SHARED, file.fd, 0)
        if self.mapped == _FAILED:
            raise OSError(ctypes.get_errno(), "mmap")
        self._shared = memoryview((ctypes.c_char * _MAPPED).from_address(self.mapped)).cast("B")
        self._words = self._shared.cast("Q")
        # How many tables of pages there are does not change when it is written to.
        self._shared[0] = self._shared[-1] = 0
        try:
            self._written = Written(pages, self._shared[:ROOM], self.mapped)
            self._lay_out()
        except OSError:
            self._unmap()
            raise

    def _lay_out(self) -> None:
        """The chain: write what is to be kept, ask what was written, read the number."""
        scans = self._written.scans
        calls = 2 + len(scans)
        self._area = ctypes.create_string_buffer(contexts.size(calls))
        self._chain = Chain(ctypes.addressof(self._area), calls, self._fork.saved)
        *marks, mark = MARKS
        self._chain.call(0, "syscall", number("pwritev"), self.descriptor, *marks, 0)
        self._runs, self._count, self._data = (self._chain.word(0, mark) for mark in marks)
        for index, scan in enumerate(scans, 1):
            asked = self._pages.pagemap, tracking.PAGEMAP_SCAN, ctypes.addressof(scan)
            self._chain.call(index, "ioctl", *asked)
        self._read = ctypes.c_uint64()
        asked = self.descriptor, ctypes.addressof(self._read), _WORD
        self._chain.call(calls - 1, "syscall", number("pread64"), *asked, mark)
        self._end = self._chain.word(calls - 1, mark)

    def fork(self, closed: int, others: Collection[Kept]) -> int:
        """As QuietFork: a copy for which pages may be kept, beside those of `others`.

        Raises:
            OSError: as of QuietFork, or not all memory is tracked.
        """
        places = {kept.place for kept in others}
        place = min(set(range(MOST_PLACES)) - places, default=MOST_PLACES)
        if place == MOST_PLACES:  # of copies that are gone
            raise OSError(0, "no place is free")
        with suppress(TooMuchError):  # for the others
            self._keep_new(others, protect=True)
        where = self._where(place)
        half = where + _HALVES
        self._words[half // 8 + 1] = 0  # none is read
        self._words[where // 8] = half
        self._words[where // 8 + 1] = 0
        self._place, self._half = place, half
        pid = self._fork(closed, self.descriptor, where)
        if pid > 0:
            # The pages that the copy waits in are its own.
            self._written.protect_span((self._fork.begin, self._fork.end))
        return pid

    def kept(self, copy: int) -> Kept | None:
        """What is to be kept for a copy that was just forked: nothing yet. None if that is no use.

        Code may have asked for children with less memory (MADV_DONTFORK): what is kept of that
        could not be read there.
        """
        size = _mapped("self")
        return Kept(copy, size, self._place) if _mapped(str(copy)) == size else None

    def check(self, kept: Kept) -> None:
        """OSError: a copy has ended, or the file was closed."""
        if _mapped(str(kept.copy)) != kept.size:
            raise OSError(0, "the copy has ended")
        if identity(self.descriptor) != self._file.identity:
            raise OSError(0, "the file was closed")

    def renew(self, kept: Kept, others: Collection[Kept], exchange: Exchange) -> bool:
        """Keep for a copy that was checked what was written.

        Returns: True here; False in the copy, when it is woken.

        What is found is to be kept for `others` as well, when it is their turn. `exchange` is
        called with the write of the word from which on the copy is what this process is now.

        Raises:
            TooMuchError: another copy is to be made.
            OSError: it cannot be. In either case what was kept before counts.
        """
        where = self._where(kept.place)
        if self._words[where // 8 + 1]:
            raise OSError(0, "the copy was woken")
        self._pages.check()
        side = int(self._words[where // 8] == where + _HALVES)  # the one that is not complete
        half = where + _HALVES + side * _HALF
        self._last += 1
        self._place, self._half = kept.place, half
        data = _MAPPED + (2 * kept.place + side) * _DATA
        copies = [kept, *others]
        for _ in range(_MOST_TRIES):
            self._lay_runs(kept, side, half, data)
            self._end.value = data + len(kept.pages) * PAGE
            self._words[(half + _NUMBER) // 8] = self._last
            failed = self._chain.run()
            if self._fork.is_woken(self._process):
                return False
            if failed:  # there is no room, or what is mapped is another
                raise OSError(failed, os.strerror(failed))
            if not self._keep_new(copies):
                break
        else:
            raise OSError(0, "memory does not come to rest")
        if self._read.value != self._last:
            raise OSError(0, "no room for what was written")
        self._words[(half + _NUMBER) // 8] = 0
        exchange(partial(self._words.__setitem__, where // 8, half))
        kept.times += 1
        if kept.times == _FEW_TIMES:
            kept.most = min(len(kept.pages) * 3 // 2, _MOST_PAGES)
        return True

    def _keep_new(self, copies: Collection[Kept], *, protect: bool = False) -> bool:
        """Keep for copies what was found, or is as all is protected; whether something is new.

        Raises:
            TooMuchError: nothing is kept for them any more.
        """
        try:
            found = self._written
            new = found.protect(asked=bool(copies)) if protect else found.find()
            if sum(map(len, new)) > _MOST_PAGES:
                raise TooMuchError
        except TooMuchError:
            for kept in copies:
                kept.most = -1
            raise
        if not new:
            return False
        pages = {page for each in new for page in each}
        grown = [kept.add(pages) for kept in copies]
        return True in grown

    def wake(self) -> None:
        """In a copy that was woken: nothing more is to be kept for it.

        Raises:
            OSError: it has not read all that was kept for it, or more is kept by now.
        """
        where, half = self._where(self._place) // 8, self._half // 8
        self._words[where + 1] = 1
        read = self._words[half + _NUMBER // 8] == self._last
        if self._words[where] != self._half or (self._words[half + 1] and not read):
            raise OSError(0, "not all was read")

    def close(self) -> None:
        """Let go of the file."""
        self._unmap()
        self._file.close()

    def _unmap(self) -> None:
        self._words.release()
        self._shared.release()
        _libc.munmap(self.mapped, _MAPPED)

    def _where(self, place: int) -> int:
        return ROOM + place * _PLACE

    def _lay_runs(self, kept: Kept, side: int, half: int, data: int) -> None:
        """Have the chain write to this half, where runs are laid that have come since."""
        if len(kept.pages) > kept.most:
            raise TooMuchError
        words, at, laid = self._words, half // 8, kept.laid[side]
        if laid != len(kept.runs):
            new = kept.runs[max(laid, 0) :]
            new.extend((self.mapped + half + _NUMBER, _WORD))
            last = at + _RUNS // 8 + len(kept.runs) + _RUN // 8
            if last > (half + _HALF) // 8:
                raise TooMuchError
            words[last - len(new) : last] = memoryview(new)
            words[at], words[at + 2] = self.mapped + half + _RUNS, data
            words[at + 1] = len(kept.runs) * kept.runs.itemsize // _RUN + 1
            kept.laid[side] = len(kept.runs)
        self._runs.value, self._count.value, self._data.value = words[at : at + 3]


def _make_room(file: int) -> None:
    size = _MAPPED + MOST_PLACES * 2 * _DATA
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if 0 <= most < size:  # -1 is no limit. Who writes beyond is sent a signal that may end him.
        raise OSError(errno.EFBIG, "files may not be as large as that")
    os.ftruncate(file, size)
    os.posix_fallocate(file, 0, _MAPPED)  # to write to a mapping for which there is none is deadly


def _runs(pages: Sequence[int]) -> array[int]:
    """Of struct iovec, one for pages that follow on one another."""
    runs = array("Q")
    end = 0
    for page in pages:
        if page == end:
            runs[-1] += PAGE
        else:
            runs.extend((page, PAGE))
        end = page + PAGE
    return runs


def _mapped(process: str) -> bytes:
    """How much that has mapped; of one that has ended it is nothing."""
    fd = os.open(f"/proc/{process}/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 64).partition(b" ")[0]
    finally:
        os.close(fd)
