"""Print the counts of names and sentences.

`--write` first writes the list and the pages; `--sentences [FOLDER]` prints the sentences that
begin with What, Who, Whoever or Where instead.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.surface.counts import misbegun, table
from tests.surface.exports import found
from tests.surface.modules import MODULES_PAGE, modules_page
from tests.surface.names import LIST, listed, written
from tests.surface.reference import PAGE, reference


def main() -> None:
    """Count, write and count, or list sentences."""
    if sys.argv[1:2] == ["--sentences"]:
        below = Path(*sys.argv[2:3]).resolve()
        for file, sentence in misbegun():
            if file.is_relative_to(below):
                print(f"{file.relative_to(below)}: {' '.join(sentence.split())}")
        return
    surface = listed()
    if "--write" in sys.argv[1:]:
        surface = found(surface)
        LIST.write_text(written(surface), encoding="utf-8")
        PAGE.write_text(reference(surface), encoding="utf-8")
        MODULES_PAGE.write_text(modules_page(), encoding="utf-8")
    print(table(surface))


if __name__ == "__main__":
    main()
