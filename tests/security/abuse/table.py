"""The verdicts of a run as a table: groups down, identities and tiers across."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from .verdict import Verdict

Column = tuple[str, str]  # identity, tier
_STATUSES = ("passed", "failed", "not applicable", "not run")


def render(columns: Mapping[Column, Sequence[Verdict]]) -> str:
    """One row for each group; each cell counts passed, failed, not applicable and not run."""
    groups = sorted({verdict.group for verdicts in columns.values() for verdict in verdicts})
    heads = [f"{tier} as {identity}" for identity, tier in columns]
    rows = [["group", *heads]]
    for group in [*groups, "all"]:
        cells = [
            _cell([v for v in verdicts if group in ("all", v.group)])
            for verdicts in columns.values()
        ]
        rows.append([group, *cells])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [_row(row, widths) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    lines += ["", f"each: {' / '.join(_STATUSES)}"]
    return "\n".join([*lines, *_reasons(columns)])


def _row(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _cell(verdicts: Sequence[Verdict]) -> str:
    counts = Counter(verdict.status for verdict in verdicts)
    return " / ".join(str(counts[status]) for status in _STATUSES)


def _reasons(columns: Mapping[Column, Sequence[Verdict]]) -> list[str]:
    """One line per failure; the reasons of cases that were not run, each once with its count."""
    lines = []
    for (identity, tier), verdicts in columns.items():
        where = f"{tier} as {identity}"
        failed = [verdict for verdict in verdicts if verdict.status == "failed"]
        lines += [f"FAILED {where}: {verdict.id}: {verdict.reason}" for verdict in failed]
        for status in _STATUSES[2:]:
            reasons = Counter(v.reason for v in verdicts if v.status == status)
            lines += [f"{status}, {where}: {count} × {why}" for why, count in reasons.items()]
    return lines
