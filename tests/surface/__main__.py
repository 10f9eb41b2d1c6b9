"""`python -m tests.surface` prints the counts; `--write` writes the list and the page first."""

from __future__ import annotations

import sys

from tests.surface.counts import table
from tests.surface.exports import found
from tests.surface.names import LIST, listed, written
from tests.surface.reference import PAGE, reference


def main() -> None:
    """Count, or write and count."""
    surface = listed()
    if "--write" in sys.argv[1:]:
        surface = found(surface)
        LIST.write_text(written(surface), encoding="utf-8")
        PAGE.write_text(reference(surface), encoding="utf-8")
    print(table(surface))


if __name__ == "__main__":
    main()
