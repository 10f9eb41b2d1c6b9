"""The image of a template: its memory in a file, of which no more is mapped than sessions touch.

A fork takes time for each page that is mapped, and so does the end of what was forked: a third of a
session's cost, for 3,200 pages of CPython 3.11 of which it touches 800. Memory that is mapped from
a file, privately, is memory as any other, but its pages need not be mapped to be there. Those that
are not a fork passes over; who touches one all the same has it by a fault.

Which pages are touched is looked at in a fork of the zygote that is good for nothing else
(`part`). Faults map what is beside a page as well, as far as one mapping goes, so there each page
is a mapping of its own. The zygote then keeps these, as its own (`keep`).

It saves time and changes nothing else: where it cannot be had, sessions do without.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from ..jail import contexts, libc, memory
from ..jail.contexts import MARKS, Chain
from ..jail.tracking import Span
from .working_set import MOST_RUNS, RUN

_PAGE: Final = mmap.PAGESIZE
# Bytes of a mapping: a smaller one is not worth the calls. And of all: more would be written for so
# long that who opens a session meanwhile waits for it.
_LEAST: Final = 64 << 10
_MOST: Final = 256 << 20
# proc_pid_smaps(5), VmFlags: what a mapping in its place would lack. Children do not have it, or
# have it emptied; the kernel may drop it; it is locked.
_SPECIAL: Final = frozenset((b"dc", b"wf", b"dp", b"lo"))
_NAMED: Final = b"permissions, place and name"
_MAP_FIXED: Final = 0x10
# Bytes of stack for `Chain`, whose calls need more than the least that it has.
_HEADROOM: Final = 64 << 10
# The highest byte of a descriptor, an int, in the order of x86-64 and aarch64.
_HIGH: Final = 3


def part(fd: int) -> list[Span]:
    """Lay this process's memory into the empty file `fd`, each page as a mapping of its own.

    Returns where it lies. What is mapped of it from then on, pagemap tells. OSError if it cannot
    be laid.
    """
    spans = _spans()
    every_other = [(page, _PAGE) for span in spans for page in range(*span, 2 * _PAGE)]
    _lay(fd, spans, every_other, memory.PARTING)
    return spans


def keep(fd: int, runs: bytes) -> None:
    """Lay this process's memory into the empty file `fd`; of it `runs` are mapped, as before.

    They are as `WorkingSet` takes them. The file has them too: a place in it without a page is one
    that a session could put a page to, and another see that. OSError if it cannot be laid.
    """
    spans = _spans()
    kept = [run for run in RUN.iter_unpack(runs) if _lies_in(spans, *run)]
    _lay(fd, spans, kept, memory.POPULATING)
    # It counts what was made here, and each session would have its first collection sooner.
    gc.collect(0)


def _spans() -> list[Span]:
    """The private memory of this process that is used for the most part."""
    spans: list[Span] = []
    for (first, end), rows in _mappings():
        if _is_worth_it(end - first, rows):
            if spans and spans[-1][1] == first:
                first = spans.pop()[0]
            spans.append((first, end))
    if not spans or sum(end - first for first, end in spans) > _MOST:
        raise OSError(errno.EFBIG, "there is too little or too much memory to be laid into a file")
    return spans


def _is_worth_it(size: int, rows: Mapping[bytes, bytes]) -> bool:
    resident, huge = (int(rows[name].split()[0]) << 10 for name in (b"Rss:", b"AnonHugePages:"))
    # Data in huge pages is copied 2 MB at a time, as it is. The heap has some by chance, and a
    # write takes such a page apart.
    apart = not huge or b"[heap]" in rows[_NAMED]
    special = _SPECIAL & {*rows[b"VmFlags:"].split()}
    return size >= _LEAST and 2 * resident > size and apart and not special


def _mappings() -> Iterator[tuple[Span, dict[bytes, bytes]]]:
    """Of private memory that can be written, but for stacks: what /proc/self/smaps says."""
    with open("/proc/self/smaps", "rb") as file:
        rows: dict[bytes, bytes] = {}
        for line in file:
            name, _, said = line.partition(b" ")
            if not name.endswith(b":"):
                first, end = name.split(b"-")
                span = int(first, 16), int(end, 16)
                rows, name = {}, _NAMED
            rows[name] = said
            of_it = rows[_NAMED]
            if name == b"VmFlags:" and of_it.startswith(b"rw-p") and b"[stack" not in of_it:
                yield span, rows


def _lies_in(spans: Iterable[Span], first: int, size: int) -> bool:
    return any(start <= first and first + size <= end for start, end in spans)


def _lay(fd: int, spans: Sequence[Span], runs: Sequence[tuple[int, int]], advice: int) -> None:
    """Write `spans` to the file, map it in their place, and give `advice` about `runs`.

    In a chain of calls: a line of Python after memory was written to the file would be lost.
    """
    os.posix_fallocate(fd, 0, sum(end - first for first, end in spans))  # no page is missing
    me = os.pidfd_open(os.getpid())
    try:
        memory.check_advice(me, advice)
        told = b"".join(RUN.pack(*run) for run in runs)
        rounds = range(0, len(runs), MOST_RUNS)
        calls = 3 * len(spans) + len(rounds)
        # Shared, so that it is not itself laid.
        area = mmap.mmap(-1, len(told) + contexts.size(calls, _HEADROOM))
        area.write(told)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(area))
        _held, leaves = contexts.saved()
        chain = Chain(begin + len(told), calls, leaves, _HEADROOM)
        _exchange(chain, fd, spans)
        for index, first in enumerate(rounds, 3 * len(spans)):
            at, count = begin + first * RUN.size, min(MOST_RUNS, len(runs) - first)
            chain.call(index, "syscall", libc.number("process_madvise"), me, at, count, advice, 0)
        failure = chain.run()
        if failure:
            raise OSError(failure, f"the memory could not be laid: {os.strerror(failure)}")
    finally:
        os.close(me)


def _exchange(chain: Chain, fd: int, spans: Sequence[Span]) -> None:
    """Have the first calls of `chain` write each span, and map what was written in its place.

    After a failure nothing is mapped: errno, which is not 0 then, is copied into the descriptor.
    """
    failure, protection = contexts.errno_at(), mmap.PROT_READ | mmap.PROT_WRITE
    place = 0
    for number, (first, end) in enumerate(spans):
        index, size = 3 * number, end - first
        chain.call(index, "pwrite", fd, first, size, place)
        into = first, size, protection, mmap.MAP_PRIVATE | _MAP_FIXED, MARKS[0], place
        chain.call(index + 2, "mmap", *into)
        descriptor = chain.word(index + 2, MARKS[0])
        descriptor.value = fd
        chain.call(index + 1, "memcpy", ctypes.addressof(descriptor) + _HIGH, failure, 1)
        place += size
