"""Which pages of its template a session has copied, looked at from the host.

proc_pid_pagemap(5) tells it of each page. See `working_set` for what it is good for.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from ..jail.tracking import Span
from ..wire.messages import Execute, Result
from .links import Links
from .working_set import MOST_RUNS, RUN

# proc_pid_maps(5): private memory that can be written.
_WRITABLE: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) rw-p ", re.MULTILINE)
# Of an entry in proc_pid_pagemap(5): in memory; of a file, or shared; mapped by nobody else.
_PRESENT, _OF_A_FILE, _ALONE = 1 << 63, 1 << 61, 1 << 56
_BITS: Final = _PRESENT | _OF_A_FILE | _ALONE
_ENTRY: Final = struct.Struct("=Q")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_READ: Final = 1 << 16
NOTHING: Final = b"None"  # a cell
# Bytes. What is larger is a module's own, and may only be reserved: its pages are not looked at.
_LARGEST_AREA: Final = 256 << 20


def rehearse(links: Links, seconds: float, cells: Iterable[bytes] = (NOTHING,)) -> bool:
    """Run cells in a session that nobody uses; whether they ran. OSError as of its socket.

    By itself one that has nothing to show and changes nothing: what it writes to, each cell does.
    """
    links.worker.settimeout(seconds)
    return all(_ran(links, number, code) for number, code in enumerate(cells, 1))


def _ran(links: Links, number: int, code: bytes) -> bool:
    links.worker.sendall(links.connection.send(Execute(number, code)))
    while data := links.worker.recv(_READ):
        if any(isinstance(message, Result) for message in links.connection.receive(data)):
            return True
    return False


def find(template: int, process: int) -> bytes:
    """The pages that `process` has copied of the memory that it had in common with `template`.

    As `WorkingSet` takes them. OSError where this process may not look at either.
    """
    pages = (page for area in _areas(template) for page in _alone(process, *area))
    return runs(pages)[: MOST_RUNS * RUN.size]


def present(spans: Iterable[Span], process: int) -> set[int]:
    """The pages in `spans`, each a mapping of its own, that `process` has mapped.

    OSError where this process may not look.
    """
    try:
        entries = (each for span in spans for each in _entries(process, *span))
        return {page for page, entry in entries if entry & _PRESENT}
    except PermissionError:
        # Of others' processes only root may read that. What smaps says of a mapping, who owns the
        # template's user namespace may read as well, and it takes ten times as long.
        within = [range(*span) for span in spans]
        return {page for page in _resident(process) if any(page in span for span in within)}


def _resident(pid: int) -> Iterator[int]:
    """Where mappings begin of which something is in memory."""
    first = 0
    with open(f"/proc/{pid}/smaps", "rb") as file:
        for line in file:
            name, _, said = line.partition(b" ")
            if not name.endswith(b":"):
                first = int(name.partition(b"-")[0], 16)
            elif name == b"Rss:" and int(said.split()[0]):
                yield first


def runs(pages: Iterable[int]) -> bytes:
    """`pages`, which are in order, as `WorkingSet` takes them."""
    return b"".join(RUN.pack(*run) for run in _runs(pages))


def _areas(pid: int) -> Iterable[tuple[int, int]]:
    with open(f"/proc/{pid}/maps", "rb") as file:
        found = _WRITABLE.findall(file.read())
    areas = [(int(first, 16), int(end, 16)) for first, end in found]
    return [(first, end) for first, end in areas if end - first <= _LARGEST_AREA]


def _alone(pid: int, first: int, end: int) -> Iterator[int]:
    """The pages between two addresses that are in memory and nobody else's."""
    for page, entry in _entries(pid, first, end):
        if entry & _BITS == _PRESENT | _ALONE:
            yield page


def _entries(pid: int, first: int, end: int) -> Iterator[tuple[int, int]]:
    """What is told of each page between two addresses."""
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as file:
        size, at = _ENTRY.size, first // _PAGE
        entries = os.pread(file.fileno(), (end // _PAGE - at) * size, at * size)
    for number, (entry,) in enumerate(_ENTRY.iter_unpack(entries)):
        yield first + number * _PAGE, entry


def _runs(pages: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Address and bytes of each row of neighbours among `pages`, which are in order."""
    first = end = 0
    for page in pages:
        if page != end:
            if end:
                yield first, end - first
            first = page
        end = page + _PAGE
    if end:
        yield first, end - first
