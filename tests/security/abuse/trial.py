"""A running case: its session, its outcomes, and the failed expectations."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from repl_sandbox import Killed, Sandbox, Session, TimedOut
from repl_sandbox.types import AnyOutcome, Isolation

from . import processes
from .case import Case
from .host.broker import Broker
from .internals import session_links
from .meters import Meters
from .quiet import Quiet

# A problem that begins so is about the attack, not about the session.
UNPROVED = "nothing"


@dataclass
class Trial:
    """State of a case while it is judged; `problems` lists the conditions that did not hold."""

    case: Case
    tier: str
    sandbox: Sandbox
    quiet: Quiet
    sentinel: int
    clocks: float = 1  # multiples of the time that the attack has
    broker: Broker = field(default_factory=Broker)
    session: Session = field(init=False)
    isolation: Isolation = field(init=False)  # before the case, which may end what is looked at
    meters: Meters = field(init=False)
    problems: list[str] = field(default_factory=list)
    replies: list[AnyOutcome] = field(default_factory=list)

    def expect(self, holds: bool, problem: str) -> None:
        """Note `problem` unless it `holds`."""
        if not holds:
            self.problems.append(problem)

    def open(self) -> Session:
        """A session with everything that cases know of."""
        return self.sandbox.session(host={"llm_query": self.broker.llm_query}, answers="strict")

    def run(self, code: str, timeout: float, within: float, what: str) -> AnyOutcome:
        """Run a cell of the session; the reply must come in time, or as late as this machine is."""
        self.quiet.begin()
        start = time.monotonic()
        outcome = self.session.run(code, timeout=timeout)
        took, slack = time.monotonic() - start, self.quiet.slack
        self.expect(
            took <= within * self.clocks + slack,
            f"{what}: replied after {took:.1f} s, not {within:g} and {slack:.1f} of the machine's",
        )
        self.replies.append(outcome)
        return outcome


def here(session: Session, pid: int) -> int:
    """The id that the process `pid` of a session has here, wherever the session is."""
    baseline = session_links(session).baseline
    return processes.here(pid, baseline.query, apart=baseline.is_remote)


def init_of(session: Session) -> int:
    """The id of a session's init here."""
    return here(session, session_links(session).pid)


def outer_uid(session: Session) -> int:
    """The uid that the code of a session has outside."""
    folder = Path(f"/proc/{here(session, session_links(session).worker_pid)}")
    maps = (folder / "uid_map").read_text()
    if maps != Path("/proc/self/uid_map").read_text():
        return int(maps.split()[-2])
    rows = (folder / "status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("Uid:"))


def kind_of(outcome: AnyOutcome) -> str:
    """How the cell ended, as the first line that a proof may match: "Killed protocol"."""
    kind = type(outcome).__name__
    match outcome:
        case Killed():
            return f"{kind} {outcome.reason}"
        case TimedOut():
            return f"{kind} {outcome.clock}"
        case _:
            return kind if outcome.error is None else f"{kind} {outcome.error.type}"


def text_of(outcome: AnyOutcome) -> str:
    """All text that a reply shows."""
    error = outcome.error
    parts = [outcome.stdout, outcome.stderr, outcome.value or ""]
    parts += [error.type, error.message, error.traceback] if error else []
    return "\n".join(parts)
