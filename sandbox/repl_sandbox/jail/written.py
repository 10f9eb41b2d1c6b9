"""Which pages a process has written since all were protected, as they are found from time to time.

They are not protected again each time, which is a fault for each: most of them are written again.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import Final

from . import tracking
from .tracking import PAGE, REGION, ScanArguments, Span, Tracking, scan_arguments

# Spans of memory between what cannot be tracked: four, as a rule, and up to six where the C library
# has memory that the kernel may take back. Each file that code maps to share it is one more.
MOST_SPANS: Final = 8
# Regions that are found in a span. A cell writes some 150.
_MOST_FOUND: Final = 512
_FOUND: Final = _MOST_FOUND * REGION.size
# Bytes that `Written` takes.
ROOM: Final = MOST_SPANS * _FOUND
_NOTHING: Final = bytes(_FOUND)
_NO_REGION: Final = bytes(REGION.size)


class TooMuchError(Exception):
    """More was written than is worth to be kept."""


class Written:
    """Of this process, from when it is made. `scans`: what is to be asked before `find`."""

    def __init__(self, pages: Tracking, found: memoryview, address: int) -> None:
        """`found`: `ROOM` bytes at `address` that are not tracked.

        Raises:
            OSError: not all memory can be tracked.
        """
        spans, self._private = pages.track()
        if len(spans) > MOST_SPANS:
            raise OSError(0, "too many pieces")
        self._pagemap, self._found = pages.pagemap, found
        self._all = [scan_arguments(span, 0, 0, protect=True) for span in spans]
        self.scans, self._protecting = (
            [
                scan_arguments(span, address + index * _FOUND, _MOST_FOUND, protect=protect)
                for index, span in enumerate(spans)
            ]
            for protect in (False, True)
        )
        self._forget()

    def _forget(self) -> None:
        self._known: set[bytes] = set()
        self._seen = [_NO_REGION] * len(self.scans)
        self._clear()

    def _clear(self) -> None:
        for at in range(0, len(self.scans) * _FOUND, _FOUND):
            self._found[at : at + _FOUND] = _NOTHING

    def find(self) -> list[range]:
        """The pages that `scans` have found, and none of them since all were protected.

        What they found before may stand behind it, which is known.

        Raises:
            TooMuchError: there are too many places, and what is found later lacks these.
            OSError: some are in memory that was mapped later, as when a mapping has grown.
        """
        new: set[bytes] = set()
        for index, seen in enumerate(self._seen):
            at = index * _FOUND
            # As a rule it is what was found the last time.
            if bytes(self._found[at : at + len(seen)]) != seen:
                found = bytes(self._found[at : at + _FOUND])
                size = found.find(_NO_REGION)  # at the zeros that the last region ends with
                if size < 0:
                    raise TooMuchError
                firsts = range(0, size, REGION.size)
                regions = [found[first : first + REGION.size] for first in firsts]
                self._seen[index] = b"".join((*regions, _NO_REGION))
                new.update(regions)
        new -= self._known
        if not new:
            return []
        self._known |= new
        return [pages for region in new for pages in self._pages(region)]

    def protect(self, *, asked: bool) -> list[range]:
        """Protect all pages; those that were written, and not found yet, if that is `asked`.

        Raises:
            TooMuchError: that is not told, for there are too many.
            OSError: not all memory is tracked. It is not protected then.
        """
        self._clear()
        try:
            self._scan(self._protecting if asked else self._all)
            return self.find()
        except OSError as error:  # more is found than there is room for
            self._scan(self._all)
            raise TooMuchError from error
        finally:
            self._forget()  # what has been written meanwhile is found the next time

    def protect_span(self, span: Span) -> None:
        """Protect the pages that are there, and forget that they were written."""
        self._scan([scan_arguments(span, 0, 0, protect=True)])

    def _scan(self, scans: Sequence[ScanArguments]) -> None:
        for scan in scans:
            tracking.scan(self._pagemap, scan)

    def _pages(self, region: bytes) -> Iterator[range]:
        """The pages of a region that can have been written.

        For the kernel all are that came to be since the rest was protected: by reading too.
        OSError: a part of it was mapped later than this.
        """
        at, end, _ = REGION.unpack(region)
        nearest = max(bisect.bisect(self._private, (at, end)) - 1, 0)
        for first, last, writable in self._private[nearest:]:
            if first > at or at >= end:
                break
            if at < last:
                upto = min(end, last)
                if writable:
                    yield range(at, upto, PAGE)
                at = upto
        if at < end:
            raise OSError(0, "memory that was not mapped")
