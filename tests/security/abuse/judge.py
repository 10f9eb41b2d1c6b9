"""Run one case in a session of its own, and return its verdict."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from repl_sandbox import Finished, Sandbox, SandboxError
from repl_sandbox.types import AnyOutcome

from .case import PATIENCE, Case
from .host import fixtures
from .host.host_checks import Closing, Open
from .meters import Meters
from .quiet import Quiet
from .tiers import INSIDE
from .trial import UNPROVED, Trial, init_of, kind_of, outer_uid, text_of
from .verdict import NOT_APPLICABLE, NotApplicable, Verdict

_MARK = "_set_before_the_case"
_ATTEMPTS = 3
# The clocks of a case, in multiples of its own. On a busy machine the time may be up before the
# attack has taken place, which says nothing about the session: the case is run again, with more.
_CLOCKS = (1, 4)


def judge(case: Case, tier: str, sandbox: Sandbox, quiet: Quiet, sentinel: int) -> Verdict:
    """Run `case` and return its verdict; `quiet` measures in another session of `sandbox`."""
    start = time.monotonic()
    if INSIDE.get(tier, tier) not in case.tiers:
        reason = f"the corpus asks this of {', '.join(case.tiers)} only"
        return Verdict(case.id, case.group, "not applicable", reason)
    if reason := NOT_APPLICABLE.get((case.id, tier), ""):
        return Verdict(case.id, case.group, "not applicable", reason)
    missing: list[str] = []
    for clocks in _CLOCKS:
        trial = Trial(case, tier, sandbox, quiet, sentinel, clocks)
        missing.clear()
        try:
            _run(trial, missing)
        except SandboxError as error:
            trial.problems.append(f"the host raised {type(error).__name__}: {error}")
        if not (trial.problems and all(text.startswith(UNPROVED) for text in trial.problems)):
            break
    seconds = time.monotonic() - start
    if trial.problems:
        return Verdict(case.id, case.group, "failed", "; ".join(trial.problems), seconds)
    if missing:
        return Verdict(
            case.id, case.group, "not applicable", "; ".join(dict.fromkeys(missing)), seconds
        )
    return Verdict(case.id, case.group, "passed", "", seconds)


def _run(trial: Trial, missing: list[str]) -> None:
    check = trial.case.check
    with ExitStack() as stack:
        if check.prep_other is not None:
            stack.enter_context(trial.open()).run(check.prep_other)
        if check.prep_self_then_reset is not None:
            with trial.open() as former:
                former.run(check.prep_self_then_reset)
        before = Open(trial)
        trial.session = stack.enter_context(trial.open())
        fixtures.give(outer_uid(trial.session))
        trial.isolation = trial.session.isolation
        trial.session.run(f"{_MARK} = 41")
        with Meters(init_of(trial.session)) as trial.meters:
            case = trial.case
            seconds = case.patience * trial.clocks
            outcome = trial.run(case.code, seconds, check.reply_within, "the case")
            _judge_reply(trial, outcome)
            _judge_life(trial)
        for key in check.host:
            with _unless_missing(missing):
                before.ask(key)
        closing = Closing(trial)
        for key in check.host:
            closing.ask(key)


@contextmanager
def _unless_missing(missing: list[str]) -> Iterator[None]:
    try:
        yield
    except NotApplicable as error:
        missing.append(str(error))


def _judge_reply(trial: Trial, outcome: AnyOutcome) -> None:
    check, text = trial.case.check, text_of(outcome)
    proof = check.proof_in(INSIDE.get(trial.tier, trial.tier))
    trial.expect(
        re.search(proof, f"{kind_of(outcome)}\n{text}", re.MULTILINE) is not None,
        f"{UNPROVED} proves that the attack took place: {kind_of(outcome)}: {text!r:.300}",
    )
    for pattern in check.deny:
        found = re.search(pattern, text)
        trial.expect(found is None, f"the reply has {pattern}: …{_around(text, found)}…")
    for pattern in check.need:
        trial.expect(
            re.search(pattern, text) is not None, f"the reply lacks {pattern}: {text!r:.300}"
        )
    if check.need_error:
        trial.expect(not outcome.ok, "the reply says success")
    if check.max_output is not None:
        size = len(text.encode())
        trial.expect(size <= check.max_output, f"{size:,} bytes of output reached the host")
    if not check.raw_ok:
        trial.expect("\x1b" not in text, "the reply has escape sequences")


def _around(text: str, found: re.Match[str] | None) -> str:
    return "" if found is None else text[max(0, found.start() - 60) : found.end() + 60]


def _judge_life(trial: Trial) -> None:
    """Whether the session answers afterwards, and has what the case promises that it has."""
    check = trial.case.check
    if check.after is not None:
        _exactly(trial, *check.after)
    # A cell of its own may have to be stopped first: a finaliser of the case's, say. But not where
    # all is kept.
    most = check.alive_within
    timeout = most + PATIENCE if check.state == "kept" else most / _ATTEMPTS
    trial.quiet.begin()
    start = time.monotonic()
    alive = False
    while not alive and time.monotonic() - start < most + trial.quiet.slack:
        alive = trial.session.run("1+1", timeout=timeout).value == "2"
    took = time.monotonic() - start
    in_time = alive and took < most + trial.quiet.slack
    trial.expect(in_time, f"1+1 is {'' if alive else 'not '}2 after {took:.1f} s")
    if check.state == "kept":
        kept = trial.session.run(_MARK)
        states = [reply.state for reply in (*trial.replies, kept)]
        trial.expect(kept.value == "41" and set(states) == {"kept"}, "the namespace is lost")
    if check.followup is not None:
        within = check.followup_reply_within
        outcome = trial.run(check.followup, check.followup_timeout, within, "the second cell")
        trial.expect(not outcome.ok, "the second cell says success")


def _exactly(trial: Trial, code: str, expected: str) -> None:
    """`code` gives `expected`, or the session has to be started again and then gives it."""
    for _ in range(_ATTEMPTS):
        outcome = trial.session.run(code, timeout=10)
        trial.replies.append(outcome)
        if isinstance(outcome, Finished):
            given = outcome.value if outcome.value is not None else outcome.stdout.strip()
            trial.expect(given == expected, f"{code} gives {given!r}, which is forged")
            return
        if outcome.state == "kept" and outcome.error is None:
            break
    trial.expect(False, f"{code} gives no {expected}: {outcome}")
