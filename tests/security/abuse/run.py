"""A whole run: fixtures up, every case in every tier by every identity, the host unchanged."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from .case import Case, load
from .crew import Crew
from .host import fixtures, host_state
from .identity import Identity, myself, ordinary
from .table import Column
from .tiers import forbidden
from .verdict import Verdict


@dataclass
class Report:
    """`changed`: how the host differs from before the run; `supervisors`: their process ids."""

    columns: dict[Column, list[Verdict]] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    supervisors: list[int] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing failed; a case that was not run has neither failed nor passed."""
        verdicts = [verdict for column in self.columns.values() for verdict in column]
        return not self.changed and not any(verdict.status == "failed" for verdict in verdicts)


def run(
    files: Sequence[Path],
    tiers: Sequence[str],
    *,
    users: Sequence[str],
    size: int = 4,
    only: str = "",
    without: Sequence[str] = (),
) -> Report:
    """Run the cases of `files`, `size` at once. `only`: prefix of the ids to run; `without`: groups
    to leave out.
    """
    every = [case for path in files for case in load(path)]
    work = [case for case in every if case.id.startswith(only) and case.group not in without]
    report = Report()
    with ExitStack() as stack:
        host_state.adopt()
        stack.enter_context(fixtures.laid())
        stack.enter_context(mock.patch.dict(os.environ, fixtures.ENVIRONMENT))
        sentinel = stack.enter_context(fixtures.sentinel())
        listeners = stack.enter_context(closing(fixtures.Listeners(files)))
        contexts = (myself(), ordinary())
        identities: list[Identity | str] = [stack.enter_context(each) for each in contexts]
        before = host_state.look()
        names = ("root" if os.geteuid() == 0 else "user", "ordinary")
        for name, identity in zip(names, identities, strict=True):
            if name in users:
                for tier in tiers:
                    _column(report, name, identity, tier, work, sentinel, size)
        report.changed += host_state.changes(before, report.supervisors)
        report.changed += [f"{kind} listener: {hits} hits" for kind, hits in listeners.hits.items()]
    return report


def _column(
    report: Report,
    name: str,
    identity: Identity | str,
    tier: str,
    work: Sequence[Case],
    sentinel: int,
    size: int,
) -> None:
    column = report.columns[name, tier] = []
    refusal = identity if isinstance(identity, str) else forbidden(tier, identity.uid)
    if refusal or isinstance(identity, str):
        column += [_not_run(case, refusal) for case in work]
        return
    fixtures.give(identity.uid)
    crew = Crew(identity, tier, sentinel, size)
    crew.run(work)
    report.supervisors += crew.pids
    column += sorted(crew.verdicts, key=lambda verdict: verdict.id)
    report.changed += [f"{tier} as {name}: {problem}" for problem in crew.left]


def _not_run(case: Case, reason: str) -> Verdict:
    return Verdict(case.id, case.group, "not run", reason)
