"""Write the tables of docs/operating.md: metrics, log events, and the figures for capacity."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from tests.surface.names import ROOT

PAGE = ROOT / "docs" / "operating.md"
NUMBERS = ROOT / "docs" / "numbers.md"
_MOST_VALUES = 20  # shown of one label; endpoint.md has the codes of refusals
# Rows of docs/numbers.md, and what they mean for the size of a machine.
CAPACITY = {
    "memory (PSS) per idle session of 100, no recovery": "memory of an idle session",
    "memory (PSS) of 64 sessions on one 100 MB context": (
        "memory of 64 sessions on one context of 100 MB"
    ),
    "sessions opened, reset, stepped once and closed per second, 8 at a time": (
        "sessions opened, reset, stepped once and closed, per second"
    ),
    "CPU of generator, server and sessions for each,"
    " sessions opened, reset, stepped once and closed per second, 8 at a time": (
        "CPU time of such a session"
    ),
    "steps per second, 8 clients, with recovery": "steps per second, with recovery",
    "CPU of a step, generator, server and sessions, 8 clients, with recovery": (
        "CPU time of a step, with recovery"
    ),
    "steps per second, 8 clients, no recovery": "steps per second, without recovery",
    "CPU of a step, generator, server and sessions, 8 clients, no recovery": (
        "CPU time of a step, without recovery"
    ),
}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    names = [*head]
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def metric_rows() -> Iterator[tuple[str, str, str, str]]:
    """Each metric: name, type, labels, description; at the end those of the process."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    from repl_server.telemetry import METRICS

    for name, metric in METRICS.items():
        suffix = {"counter": "_total", "info": "_info"}.get(metric.kind, "")
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        if 0 < len(metric.values) < _MOST_VALUES:
            labels += f": {', '.join(sorted(metric.values))}"
        yield f"`{name}{suffix}`", metric.kind, labels, metric.text
    for family in ProcessCollector(registry=CollectorRegistry()).collect():
        suffix = "_total" if family.type == "counter" else ""
        yield f"`{family.name}{suffix}`", family.type, "", family.documentation


def event_rows() -> Iterator[tuple[str, str, str, str]]:
    """Each event: name, level, fields, description."""
    from repl_server.telemetry import EVENTS

    for name, event in EVENTS.items():
        names = [*(f"`{each}`" for each in sorted(event.fields))]
        names += [f"(`{each}`)" for each in sorted(event.contents)]
        yield f"`{name}`", logging.getLevelName(event.level).lower(), ", ".join(names), event.text


def tables() -> dict[str, str]:
    """The generated parts of the page, by their markers."""
    from repl_server.telemetry import FIELDS

    events = table(("event", "level", "fields", "when"), event_rows())
    fields = table(("field", "meaning"), ((f"`{each}`", FIELDS[each]) for each in FIELDS))
    text = "Fields in parentheses are there with `--log-contents` only."
    return {
        "metrics": table(("metric", "type", "labels", "meaning"), metric_rows()),
        "log events": f"{events}\n\n{text}\n\n{fields}",
        "capacity": table(("", "measured"), capacity_rows()),
    }


def capacity_rows() -> Iterator[tuple[str, str]]:
    """The figures of docs/numbers.md that size a machine."""
    lines = NUMBERS.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in lines if line.count("|") > 3]
    measured = {cells[1]: cells[2] for cells in rows}
    yield from ((text, measured[label]) for label, text in CAPACITY.items())


def written() -> str:
    """The page with its generated parts made anew."""
    page = PAGE.read_text(encoding="utf-8")
    for name, text in tables().items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, (_, _, after) = page.partition(begin)[0], page.partition(end)
        assert begin in page, f"{PAGE.name} has no part {name!r}"
        page = f"{before}{begin}\n{text}\n\n{end}{after}"
    return page
