"""The source text of past cells, where tracebacks, warnings and `inspect.getsource` look for it."""

from __future__ import annotations

import linecache
from collections import deque

# What is kept, the newest first. Lines cost memory in every session; functions of an older cell
# still run, only without their source in a traceback.
KEPT_CELLS = 1_000
KEPT_CHARACTERS = 16 << 20

# What linecache keeps of a file: size, no time of change (so it is never looked up on disk), lines
# and name.
_Entry = tuple[int, None, list[str], str]

# The very dictionary of linecache: the user may bind another one to its name, or empty this one.
_cache: dict[str, object] = linecache.cache  # type: ignore[assignment]
_entries: dict[str, _Entry] = {}
_order: deque[tuple[str, int]] = deque()
_kept = 0


def cell_name(number: int) -> str:
    """The file name of a cell."""
    return f"<cell {number}>"


def keep(name: str, source: str) -> None:
    """Make the lines of the cell `name` known, and forget the oldest beyond the limits."""
    global _kept  # noqa: PLW0603 (linecache is one per process, and so is this)
    if "\r" in source:  # the tokenizer takes all three for the end of a line, and nothing else
        source = source.replace("\r\n", "\n").replace("\r", "\n")
    lines = [line + "\n" for line in source.split("\n")] if "\n" in source else [source + "\n"]
    _entries[name] = _cache[name] = (len(source), None, lines, name)
    _order.append((name, len(source)))
    _kept += len(source)
    while len(_order) > KEPT_CELLS or (_kept > KEPT_CHARACTERS and len(_order) > 1):
        oldest, size = _order.popleft()
        _kept -= size
        if oldest != name:
            _entries.pop(oldest, None)
            _cache.pop(oldest, None)


def put_back(name: str) -> None:
    """Undo what the user's code did to the lines of the cell `name`, for example clearcache()."""
    entry = _entries.get(name)
    if entry is not None:
        linecache.cache[name] = entry


def forget() -> None:
    """Drop all cells."""
    global _kept  # noqa: PLW0603 (as in keep)
    for name in _entries:
        _cache.pop(name, None)
    _entries.clear()
    _order.clear()
    _kept = 0
