"""The tables of figures in pages: three figures in the README, all of them in docs/numbers.md.

Each table stands between two markers that have its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .figure import Figure
from .goals import GOALS
from .shown import Others, brief_rows, missed

_ROOT = Path(__file__).parents[1]
_README = _ROOT / "README.md"
_NUMBERS = _ROOT / "docs" / "numbers.md"

# The figures of the README, by their keys: a session, a step, a recovery.
_HEADLINES = ("cold", "step_env", "recovery")
_COLUMNS_OF_THE_README = 4  # name, ours, floor, ratio


def fill(name: str, figures: Sequence[Figure], others: Others, machine: str, method: str) -> None:
    """Replace table `name`; `machine` and `method` say where and how the figures were measured."""
    table = brief_rows([figure for figure in figures if _is_shown(figure.key)], others)
    _put(_NUMBERS, name, f"{machine}. {method}. {_goals(figures)}\n\n{_markdown(table)}")
    few = [figure for figure in figures if figure.key in _HEADLINES]
    if few:
        short = [row[:_COLUMNS_OF_THE_README] for row in brief_rows(few, {})]
        _put(_README, name, f"{machine}.\n\n{_markdown(short)}")


def _is_shown(key: str) -> bool:
    """Whether docs/numbers.md has the figure: 8 clients stand for all numbers of clients."""
    return not key.startswith("server_") or key in GOALS or key.endswith("_8")


def _goals(figures: Sequence[Figure]) -> str:
    goals = sum(figure.key in GOALS for figure in figures)
    short = missed(figures)
    return f"Goals met: {goals - len(short)} of {goals}." + (
        f" Missed: {'; '.join(short)}." if short else ""
    )


def _markdown(table: Sequence[Sequence[str]]) -> str:
    header, *body = table
    lines = [header, ("---", *["---:"] * (len(header) - 1)), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _put(page: Path, name: str, numbers: str) -> None:
    """Replace what stands between the markers `name` and `end of name`."""
    before, opening, rest = page.read_text().partition(f"<!-- {name} -->\n")
    _, closing, after = rest.partition(f"<!-- end of {name} -->")
    if not (opening and closing):
        raise ValueError(f"{page.name} has lost the markers around its {name}")
    page.write_text(f"{before}{opening}\n{numbers}\n\n{closing}{after}")
