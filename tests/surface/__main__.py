"""Print the counts of names and sentences.

`--write` first writes the list, the reference and the tables of docs/operating.md. `--check`
compares the list with the code instead, in an interpreter that has an extra and no pytest.
`--sentences [FOLDER]` prints the sentences that begin with What, Who, Whoever or Where instead.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.surface import operating
from tests.surface.counts import misbegun, table
from tests.surface.exports import found
from tests.surface.names import LIST, listed, written
from tests.surface.reference import PAGE, reference


def main(arguments: list[str]) -> str | None:
    """Return an error for `sys.exit`, or None."""
    if arguments[:1] == ["--sentences"]:
        below = Path(*arguments[1:2]).resolve()
        for file, sentence in misbegun():
            if file.is_relative_to(below):
                print(f"{file.relative_to(below)}: {' '.join(sentence.split())}")
        return None
    surface = listed()
    if arguments == ["--check"]:
        now = found(surface)
        changed = [module for module in surface if surface[module] != now[module]]
        return f"run `python -m tests.surface --write`: {changed} changed" if changed else None
    if arguments == ["--write"]:
        surface = found(surface)
        LIST.write_text(written(surface), encoding="utf-8")
        PAGE.write_text(reference(surface), encoding="utf-8")
        operating.PAGE.write_text(operating.written(), encoding="utf-8")
    print(table(surface))
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
