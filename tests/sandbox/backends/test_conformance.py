"""Each tier does what every backend must, and the suite that says so can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repl_sandbox import Finished, Sandbox, Session, TimedOut
from tests.conformance import CHECKS, Check, run
from tests.conformance.steps import Close, Fetch, Fresh, Put, Run, Variables, raises, shows
from tests.internals import session_core, session_owner

TIERS = ("jailed", "confined", "process")
NAMES = [check.name for check in CHECKS]


@pytest.fixture(scope="module")
def commands(open_python: str) -> dict[str, tuple[int, str, str]]:
    """Status, output and errors of the command for each tier, run concurrently because most of the
    time is waiting.
    """
    pythons = {tier: sys.executable if tier == "jailed" else open_python for tier in TIERS}
    with ThreadPoolExecutor(len(TIERS)) as pool:
        done = pool.map(
            lambda tier: command("--json", "--isolation", tier, "--python", pythons[tier]), TIERS
        )
        return {
            tier: (one.returncode, one.stdout, one.stderr)
            for tier, one in zip(TIERS, done, strict=True)
        }


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_conforms(tier: str, commands: dict[str, tuple[int, str, str]]) -> None:
    """By the command, as users run it."""
    status, output, errors = commands[tier]
    if status == 3:
        pytest.skip(errors.strip())
    assert_conforms(tier, json.loads(output))
    assert status == 0


def assert_conforms(tier: str, report: dict[str, Any]) -> None:
    """Nothing failed or was skipped, and what does not apply is what the checks say."""
    expected = {
        check.name: "not applicable" if tier in check.not_for else "passed" for check in CHECKS
    }
    assert [result for result in report["results"] if result["status"] == "failed"] == []
    assert {result["name"]: result["status"] for result in report["results"]} == expected
    assert report["tier"] == tier


def test_only_tier_process_has_exceptions_and_each_has_a_reason() -> None:
    for check in CHECKS:
        assert check.not_for.keys() <= {"process"}
        assert bool(check.not_for) == (check.group == "isolation")
        assert all(check.not_for.values())


ROOT = Path(__file__).parents[3]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m tests.conformance`."""
    return subprocess.run(
        [sys.executable, "-m", "tests.conformance", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=ROOT,
    )


def test_every_check_has_a_unique_name_and_a_step() -> None:
    assert len(NAMES) == len(set(NAMES)) > 100
    assert all(check.steps for check in CHECKS)


def test_an_unavailable_tier_exits_3() -> None:
    done = command("--isolation", "none")
    assert done.returncode == 3
    assert "isolation" in done.stderr


# ── the suite itself ─────────────────────────────────────────────────────────────────────────────


def status(sandbox: Sandbox, *steps: Any, **options: Any) -> str:
    (result,) = run(sandbox.session, [Check("one", "own", steps, **options)]).results
    return result.status


@pytest.mark.parametrize(
    "step",
    [
        Run("1", shows("2")),
        Run("1", shows()),
        Run("print(1)", shows()),
        Run("import sys; print(1, file=sys.stderr)", shows()),
        Run("1 / 0", shows()),
        Run("1 / 0", raises("ZeroDivisionError", "other")),
        Run("1 / 0", raises("ZeroDivisionError", "division by zero", 2)),
        Run("x = 1", shows(changes=())),
        Run("import os; os._exit(0)"),
        Run("1", shows("1", states=("restarted",))),
        Run("1", (shows("2"), shows("3"))),
        Run("FINAL(1)", shows("'FINAL(1)'")),
        Put("x", 1, ValueError),
        Put("no name", 1),
        Fetch("nothing"),
        Fetch("__name__", "other"),
        Fetch("__name__", error=KeyError),
        Variables((("x", "int"),)),
    ],
    ids=repr,
)
def test_a_step_with_another_outcome_fails(sandbox: Sandbox, step: Any) -> None:
    assert status(sandbox, step, answers="strict") == "failed"


class Forgetful(Session):
    """A session that says what is not so."""

    def run(self, code: str, **options: Any) -> Any:
        outcome = super().run(code, **options)
        if not isinstance(outcome, Finished):
            return outcome
        return replace(outcome, stdout=outcome.stdout + "!" if outcome.stdout else "")

    def close(self) -> None:
        pass


def test_a_wrong_backend_is_detected(sandbox: Sandbox) -> None:
    """Output that differs from what was streamed, and a session that cannot be closed."""
    opened: list[Session] = []

    def open_session(**options: Any) -> Forgetful:
        session = sandbox.session(**options)
        forgetful = Forgetful(session_core(session), session_owner(session))
        opened.extend([session, forgetful])
        return forgetful

    checks = [
        Check("prints", "own", (Run("print(1)", shows(stdout="1\n!")),)),
        Check("closes", "own", (Close(),)),
        Check("fresh", "own", (Run("x = 1"), Fresh(), Run("x", shows("1")))),
    ]
    report = run(open_session, checks)
    for session in opened:
        session.close()
    assert [result.status for result in report.failed] == ["failed"] * 3
    assert not report.ok
    assert "streamed" in report.failed[0].detail
    assert "did not raise SessionClosed" in report.failed[1].detail


@pytest.mark.parametrize("busy", [0, 1, 2])
def test_a_failed_time_check_is_retried_with_more_time(sandbox: Sandbox, busy: int) -> None:
    given: list[float | None] = []

    class Busy(Session):
        """On a machine that has no time for its first cells."""

        def run(self, code: str, *, timeout: float | None = None, **options: Any) -> Any:
            given.append(timeout)
            return TimedOut() if len(given) <= busy else super().run(code, **options)

    def open_session(**options: Any) -> Busy:
        session = sandbox.session(**options)
        return Busy(session_core(session), session_owner(session))

    (result,) = run(open_session, [Check("one", "time", (Run("1", shows("1"), 60.0),))]).results
    assert result.status == ("passed" if busy < 2 else "failed")
    assert given == [60.0, 1500.0][: busy + 1]


def test_unsupported_features_of_a_backend_are_skipped_and_reported(sandbox: Sandbox) -> None:
    programs = [check for check in CHECKS if "processes" in check.needs]
    report = run(sandbox.session, programs, without=["processes"])
    assert {result.status for result in report.results} == {"skipped"}
    assert all("processes" in result.detail for result in report.results)
    assert report.ok


def test_unpromised_checks_are_not_applicable_and_never_passed(sandbox: Sandbox) -> None:
    def one(tier: str) -> Any:
        check = Check("one", "own", (Run("1", shows("1")),), not_for={tier: "it says so"})
        (result,) = run(sandbox.session, [check]).results
        return result.status, result.detail

    with sandbox.session() as session:
        tier = session.isolation.tier
    assert one(tier) == ("not applicable", "it says so")
    assert one("another") == ("passed", "")
