"""Ways out of the language that `Policy(language="restricted")` has to refuse, and that are real.

Each case prints PWNED, put together at run time so that no echoed source contains it, if it got
hold of what it wanted. Without the policy it does; the jail around it is what holds then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from repl_sandbox import Limits, Outcome, Policy, Raised, Sandbox
from repl_sandbox.policies.modules import ROWS

CASES: dict[str, str] = {
    case["id"]: case["code"]
    for case in map(
        json.loads,
        (Path(__file__).parent / "policy_escapes.jsonl").read_text(encoding="utf-8").splitlines(),
    )
}
# Refused all the same: what it looks for is not in the namespace of a session.
HARMLESS = {"py-import-loader"}
# Needs a library that may not be installed.
LIBRARIES = {"py-numpy-ctypes": "numpy", "py-pandas-os": "pandas"}


def run(sandbox: Sandbox, case: str) -> Outcome:
    with sandbox.session(answers="compatible") as session:
        return session.run(CASES[case])


def got_out(outcome: Outcome) -> bool:
    error = "" if outcome.error is None else f"{outcome.error.message}{outcome.error.traceback}"
    return "PWNED" in f"{outcome.stdout}{outcome.stderr}{outcome.value}{error}"


@pytest.fixture(scope="module")
def free() -> Iterator[Sandbox]:
    with Sandbox(limits=Limits(timeout=10)) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def restricted() -> Iterator[Sandbox]:
    # With every module that has a proxy, so that each proxy is attacked.
    policy = Policy(language="restricted", imports=ROWS)
    with Sandbox(limits=Limits(timeout=10), policy=policy) as sandbox:
        yield sandbox


@pytest.mark.parametrize("case", CASES)
def test_no_way_out_works_under_the_policy(restricted: Sandbox, case: str) -> None:
    outcome = run(restricted, case)

    assert not got_out(outcome)
    assert isinstance(outcome, Raised)
    assert outcome.error.type in {"PolicyError", "TypeError"}


@pytest.mark.parametrize("case", sorted(CASES.keys() - HARMLESS))
def test_each_of_them_works_without_it(free: Sandbox, case: str) -> None:
    if case in LIBRARIES:
        pytest.importorskip(LIBRARIES[case])

    assert got_out(run(free, case))


def test_a_refused_cell_costs_the_session_nothing(restricted: Sandbox) -> None:
    with restricted.session() as session:
        session.run("kept = 1")
        for code in CASES.values():
            session.run(code)

        assert session.run("kept + 1").value == "2"
