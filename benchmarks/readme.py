"""The README's tables of numbers, each between two markers."""

from __future__ import annotations

from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def put(name: str, numbers: str) -> None:
    """Replace what stands between the markers `name` and `end of name`."""
    README.write_text(_with(README.read_text(), name, numbers))


def _with(readme: str, name: str, numbers: str) -> str:
    before, opening, rest = readme.partition(f"<!-- {name} -->\n")
    _, closing, after = rest.partition(f"<!-- end of {name} -->")
    if not (opening and closing):
        raise ValueError(f"README.md has lost the markers around its {name}")
    return f"{before}{opening}\n{numbers}\n\n{closing}{after}"
