"""The tables of figures in pages: a few in the README, all of them in docs/numbers.md.

Each stands between two markers that have its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .figure import Figure
from .goals import GOALS
from .shown import Others, brief_rows, missed, rows

_ROOT = Path(__file__).parents[1]
_README = _ROOT / "README.md"
_NUMBERS = _ROOT / "docs" / "numbers.md"

# By their keys: what one asks first of a session, an episode, a run and a server.
_HEADLINES = frozenset(
    (
        *("cold", "ready", "step", "step_env", "stdout", "context_100", "cpu", "rate", "memory"),
        *("shared_memory", "branch", "recovery", "recovery_1gb", "step_paused", "turn", "subcall"),
        *("server_rate_8", "server_p99_32", "server_rate_recovery_8", "server_openings_8"),
        *("server_openings_stepped_8", "server_context", "server_memory"),
    )
)


def fill(name: str, figures: Sequence[Figure], others: Others, machine: str, method: str) -> None:
    """Replace table `name` in both pages; `machine` and `method` say where and how it was made."""
    _put(_NUMBERS, name, f"{machine}. {method}\n\n{_markdown(rows(figures, others))}")
    few = [figure for figure in figures if figure.key in _HEADLINES]
    table = _markdown(brief_rows(few, others))
    _put(_README, name, f"{machine}. {_goals(figures)}\n\n{table}")


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
