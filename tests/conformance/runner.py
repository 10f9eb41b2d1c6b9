"""Runs checks against whatever opens sessions, and reports what came of each."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias

from repl_sandbox.errors import SandboxError, SessionClosed
from repl_sandbox.types import (
    JSON,
    Answers,
    AnyOutcome,
    Isolation,
    Killed,
    Limits,
    TimedOut,
    Variable,
)

from .checks import CHECKS
from .steps import Check, Close, Expect, Fetch, Fresh, Put, Run, Variables

Status: TypeAlias = Literal["passed", "failed", "skipped", "not applicable"]

# A check of a clock gives a cell little time, for it waits until that is over. A machine that is
# busy may not even begin the cell in it, so what fails is tried again with so many times as much.
_SLOWER = 25.0

# Callers that must be in `meet` at once before it returns to any of them.
_MEETING = 3
_MEETING_TIMEOUT = 60.0


class SessionLike(Protocol):
    """Interface of a backend's session; `repl_sandbox.Session` is the model."""

    def run(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_output: Callable[[str, str], None] | None = None,
    ) -> AnyOutcome: ...

    def set(self, name: str, value: str | bytes | JSON) -> None: ...

    def get(self, name: str) -> JSON: ...

    def variables(self) -> list[Variable]: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...

    @property
    def isolation(self) -> Isolation: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class Opener(Protocol):
    """Opens a session, as `Sandbox.session` does."""

    def __call__(
        self,
        *,
        host: Mapping[str, Callable[..., Any]] | None = None,
        limits: Limits | None = None,
        answers: Answers | None = None,
    ) -> SessionLike: ...


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`detail`: what was expected and what came, or why the check was left out.

    "skipped": the caller said that the backend lacks what it needs. "not applicable": the tier of
    its sessions does not promise this.
    """

    name: str
    group: str
    status: Status
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """Results of a backend. `tier` and `layers` are those that the backend's sessions report."""

    tier: str
    layers: tuple[str, ...]
    results: tuple[CheckResult, ...]

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that did not hold."""
        return tuple(result for result in self.results if result.status == "failed")

    @property
    def ok(self) -> bool:
        """No check failed. A skipped check counts neither as failed nor as passed."""
        return not self.failed


class _Differs(Exception):
    """A step had another outcome than expected."""


def run(
    open_session: Opener,
    checks: Iterable[Check] = CHECKS,
    *,
    without: Iterable[str] = (),
) -> Report:
    """Run `checks` against the sessions that `open_session` opens.

    `without`: what the backend does not offer, of "processes" and "isolation". Checks that need it
    are skipped and reported so. A tier is not asked for what `Check.not_for` says that it does not
    promise.
    """
    with open_session() as session:
        isolation = session.isolation
    lacking = frozenset(without)
    results = tuple(_result(open_session, check, isolation.tier, lacking) for check in checks)
    layers = tuple(layer.name for layer in isolation.layers if layer.active)
    return Report(isolation.tier, layers, results)


def _result(open_session: Opener, check: Check, tier: str, lacking: frozenset[str]) -> CheckResult:
    if reason := check.not_for.get(tier):
        return CheckResult(check.name, check.group, "not applicable", reason)
    if missing := check.needs & lacking:
        detail = f"not offered: {', '.join(sorted(missing))}"
        return CheckResult(check.name, check.group, "skipped", detail)
    start = time.monotonic()
    detail = _failure(open_session, check)
    if detail and check.group == "time":
        detail = _failure(open_session, check.slower(_SLOWER))
    status: Status = "failed" if detail else "passed"
    return CheckResult(check.name, check.group, status, detail, time.monotonic() - start)


def _failure(open_session: Opener, check: Check) -> str:
    """The reason why a check failed; empty if it passed."""
    try:
        _perform(open_session, check)
    except _Differs as difference:
        return str(difference)
    # A backend that breaks has failed this check; the next has a session of its own.
    except (SandboxError, OSError, ValueError, TypeError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _perform(open_session: Opener, check: Check) -> None:
    with ExitStack() as stack:
        over = threading.Event()
        stack.callback(over.set)
        host = _functions(over) if check.host else None

        def opened() -> SessionLike:
            session = open_session(host=host, limits=check.limits, answers=check.answers)
            return stack.enter_context(session)

        secret = stack.enter_context(tempfile.NamedTemporaryFile(prefix="repl-secret-"))
        secret.write(b"a secret of the host")
        secret.flush()
        session = opened()
        for number, step in enumerate(check.steps, 1):
            if isinstance(step, Fresh):
                session = opened()
                continue
            try:
                _STEPS[type(step)](session, step, secret.name)
            except _Differs as difference:
                raise _Differs(f"step {number}: {difference}") from None


# ── the functions of the host ─────────────────────────────────────────────────────────────────────


def _functions(over: threading.Event) -> dict[str, Callable[..., Any]]:
    """`over` is set when the check ends, whatever still waits."""
    meeting = threading.Barrier(_MEETING)

    def add(a: Any, b: Any = 1) -> Any:
        """The sum of two values."""
        return a + b

    async def add_later(a: Any, b: Any) -> Any:
        await asyncio.sleep(0)
        return a + b

    def fail(message: str) -> None:
        raise LookupError(message)

    def unsendable() -> object:
        return object()

    def meet(name: str) -> str:
        meeting.wait(_MEETING_TIMEOUT)
        return name

    def never() -> None:
        over.wait()

    functions = (add, add_later, fail, unsendable, meet, never)
    return {function.__name__: function for function in functions}


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────


def _run_cell(session: SessionLike, step: Run, secret: str) -> None:
    written = {"stdout": "", "stderr": ""}

    def on_output(stream: str, text: str) -> None:
        written[stream] += text
        if step.interrupt is not None and step.interrupt in written[stream]:
            session.interrupt()

    code = step.code.replace("{SECRET}", secret)
    outcome = session.run(code, timeout=step.timeout, on_output=on_output)
    expected = step.outcomes if isinstance(step.outcomes, tuple) else (step.outcomes,)
    differences = [_difference(outcome, one) for one in expected]
    if all(differences):
        raise _Differs(f"{code!r:.200}: {' | '.join(differences)}; came: {outcome!r:.1000}")
    whole = "over the output limit" not in outcome.stdout
    if whole and written["stdout"] != outcome.stdout:
        raise _Differs(f"{code!r:.200}: streamed {written['stdout']!r:.200}, then {outcome!r:.400}")


def _difference(outcome: AnyOutcome, expect: Expect) -> str:
    """The difference between `outcome` and the expected one; empty if there is none."""
    error = outcome.error
    pairs: list[tuple[str, object, object]] = [
        ("kind", expect.kind.__name__, type(outcome).__name__),
        ("value", expect.value, outcome.value),
        ("stdout", expect.stdout, outcome.stdout),
        ("stderr", expect.stderr, outcome.stderr),
        ("error", expect.error, None if error is None else (error.type, error.message)),
        ("answers", expect.answers, tuple((a.form, a.text, a.value) for a in outcome.answers)),
        ("clock", expect.clock, outcome.clock if isinstance(outcome, TimedOut) else None),
        ("reason", expect.reason, outcome.reason if isinstance(outcome, Killed) else None),
    ]
    if error is not None and expect.line is not None:
        pairs.append(("line", expect.line, error.line))
        pairs.append(("traceback", expect.traceback, error.traceback))
    if expect.changes is not None:
        pairs.append(("changes", expect.changes, tuple((c.kind, c.name) for c in outcome.changes)))
    wrong = [f"{name}: expected {one!r}" for name, one, other in pairs if one != other]
    if outcome.state not in expect.states:
        wrong.append(f"state: expected {' or '.join(expect.states)}")
    return ", ".join(wrong)


def _put(session: SessionLike, step: Put, secret: str) -> None:
    _calling(f"set({step.name!r})", lambda: session.set(step.name, step.value), step.error)


def _fetch(session: SessionLike, step: Fetch, secret: str) -> None:
    value = _calling(f"get({step.name!r})", lambda: session.get(step.name), step.error)
    if step.error is None and (value != step.value or type(value) is not type(step.value)):
        raise _Differs(f"get({step.name!r}) is {value!r:.200}, expected {step.value!r:.200}")


def _variables(session: SessionLike, step: Variables, secret: str) -> None:
    rows = tuple((variable.name, variable.type) for variable in session.variables())
    if rows != step.rows:
        raise _Differs(f"variables() are {rows!r:.300}, expected {step.rows!r}")


def _close(session: SessionLike, step: Close, secret: str) -> None:
    session.close()
    session.close()
    _calling("run() when closed", lambda: session.run("1"), SessionClosed)
    _calling("get() when closed", lambda: session.get("x"), SessionClosed)


def _calling(what: str, call: Callable[[], Any], error: type[Exception] | None) -> Any:
    try:
        value = call()
    # Any exception of a backend is compared with the expected error.
    except Exception as raised:
        if error is None or not isinstance(raised, error):
            raise _Differs(f"{what} raised {type(raised).__name__}: {raised}") from raised
        return None
    if error is not None:
        raise _Differs(f"{what} did not raise {error.__name__}")
    return value


_STEPS: dict[type, Callable[[SessionLike, Any, str], None]] = {
    Run: _run_cell,
    Put: _put,
    Fetch: _fetch,
    Variables: _variables,
    Close: _close,
}
