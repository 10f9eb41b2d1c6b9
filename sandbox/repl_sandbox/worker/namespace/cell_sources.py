"""Source text of past cells, stored where tracebacks and `inspect.getsource` look for it."""

from __future__ import annotations

import linecache
from collections import deque

# Number of cells kept, the newest first. Lines cost memory in every session; functions of an older
# cell still run, only without source in a traceback.
KEPT_CELLS = 1_000
KEPT_CHARACTERS = 16 << 20
# Cells forgotten together: forgetting one with each cell would cost time in each cell.
FORGOTTEN_AT_ONCE = 100
# Characters. A longer cell triggers a count of all kept sources; shorter cells add at most 4 MiB
# beyond the limit, and cost nothing each.
COUNTED = 1 << 12

# The entry of a file in linecache: size, no modification time (so linecache never checks the disk),
# lines and name.
_Entry = tuple[int, None, list[str], str]

# The dictionary of linecache itself: the user may rebind its name, or empty this one.
_cache: dict[str, object] = linecache.cache  # type: ignore[assignment]
_entries: deque[_Entry] = deque()
_append = _entries.append


def cell_name(number: int) -> str:
    """Return the file name of a cell."""
    return f"<cell {number}>"


def keep(number: int, source: str, *, line: bool = False) -> str:
    """Store the lines of a cell, forget the oldest beyond the limits; return its file name.

    `line`: whether the source is known to be a single line.
    """
    name = f"<cell {number}>"  # `cell_name`, without the call
    size = len(source)
    lines = [source + "\n"] if line else _lines(source)
    entry = _cache[name] = (size, None, lines, name)
    _append(entry)
    if size > COUNTED or len(_entries) >= KEPT_CELLS + FORGOTTEN_AT_ONCE:
        _trim()
    return name


def _lines(source: str) -> list[str]:
    if "\r" in source:  # the tokenizer accepts all three line endings, and no others
        source = source.replace("\r\n", "\n").replace("\r", "\n")
    return [line + "\n" for line in source.split("\n")] if "\n" in source else [source + "\n"]


def _trim() -> None:
    total = sum(entry[0] for entry in _entries)
    while len(_entries) > KEPT_CELLS or (total > KEPT_CHARACTERS and len(_entries) > 1):
        oldest = _entries.popleft()
        total -= oldest[0]
        if _cache.get(oldest[3]) is oldest:
            del _cache[oldest[3]]


def put_back(name: str) -> None:
    """Undo changes of the user's code to the lines of the cell `name`, for example clearcache()."""
    for entry in reversed(_entries):
        if entry[3] == name:
            linecache.cache[name] = entry
            return


def drop_last() -> None:
    """Forget the newest cell."""
    entry = _entries.pop()
    if _cache.get(entry[3]) is entry:
        del _cache[entry[3]]


def latest() -> tuple[str, int]:
    """Return the file name of the newest cell, and its last line that is not empty."""
    if not _entries:
        return cell_name(0), 0
    _, _, lines, name = _entries[-1]
    return name, len("".join(lines).rstrip().split("\n"))


def source_line(name: str, number: int | None) -> str | None:
    """Return line `number` of the newest cell if it is `name`, else None."""
    if number is None or not _entries or _entries[-1][3] != name:
        return None
    return next(iter(_entries[-1][2][number - 1 : number]), None) if number > 0 else None


def texts() -> list[tuple[int, str]]:
    """Return the kept cells by number, the oldest first."""
    numbered = ((entry[3].removeprefix("<cell ")[:-1], entry[2]) for entry in _entries)
    return [(int(number), "".join(lines)[:-1]) for number, lines in numbered]


def forget() -> None:
    """Forget all cells."""
    for entry in _entries:
        _cache.pop(entry[3], None)
    _entries.clear()
