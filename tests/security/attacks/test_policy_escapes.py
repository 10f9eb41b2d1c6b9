"""Real escapes from the language that `Policy(language="restricted")` has to refuse.

Each case prints PWNED, put together at run time so that no echoed source contains it, if it got
hold of what it wanted. Without the policy it does; the jail around it is what holds then.
"""

from __future__ import annotations

import builtins
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, ModuleType, TracebackType

import pytest

from repl_sandbox import Limits, Outcome, Policy, Raised, Sandbox
from repl_sandbox.policies.modules import ROWS, ModuleProxies, ModuleProxy
from repl_sandbox.policies.restricted import get_attribute, guarded_builtins
from tests.waiting import PATIENCE

CASES: dict[str, str] = {
    case["id"]: case["code"]
    for case in map(
        json.loads,
        (Path(__file__).parent / "policy_escapes.jsonl").read_text(encoding="utf-8").splitlines(),
    )
}
# Refused nevertheless: the session's namespace does not have the object that it looks for.
HARMLESS = {"py-import-loader"}
if sys.version_info >= (3, 12):
    HARMLESS.add("py-datetime-sys")  # the module no longer keeps what it imports
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
    with Sandbox(limits=Limits(timeout=PATIENCE)) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def restricted() -> Iterator[Sandbox]:
    # With every module that has a proxy, so that each proxy is attacked.
    policy = Policy(language="restricted", imports=ROWS)
    with Sandbox(limits=Limits(timeout=PATIENCE), policy=policy) as sandbox:
        yield sandbox


@pytest.mark.parametrize("case", CASES)
def test_no_escape_works_under_the_policy(restricted: Sandbox, case: str) -> None:
    outcome = run(restricted, case)

    assert not got_out(outcome)
    assert isinstance(outcome, Raised)
    assert outcome.error.type in {"PolicyError", "TypeError"}


@pytest.mark.parametrize("case", sorted(CASES.keys() - HARMLESS))
def test_each_escape_works_without_the_policy(free: Sandbox, case: str) -> None:
    if case in LIBRARIES:
        pytest.importorskip(LIBRARIES[case])

    assert got_out(run(free, case))


def test_a_refused_cell_has_no_effect_on_the_session(restricted: Sandbox) -> None:
    with restricted.session() as session:
        session.run("kept = 1")
        for code in CASES.values():
            session.run(code)

        assert session.run("kept + 1").value == "2"


# Functions that no cell may hold: each is one call away from the rest of Python.
POWERS = {
    id(getattr(builtins, name)): name
    for name in "open eval exec compile getattr setattr delattr vars globals locals __import__ "
    "input breakpoint type memoryview dir".split()
}
INSIDES = (CodeType, FrameType, TracebackType, ModuleType)


def reached(root: object) -> Iterator[tuple[str, object]]:
    """All that guarded code gets from `root` by attributes and items, with the way there."""
    seen: dict[object, object] = {}  # and alive, so that no identity is given twice
    waiting = [("", root)]
    while waiting:
        way, value = waiting.pop()
        yield way, value
        for step, found in steps(value):
            if kind(found) not in seen and way.count(".") < 6:
                seen[kind(found)] = found
                waiting.append((f"{way}.{step}", found))


def kind(value: object) -> object:
    """Return the key for visiting a value once: methods are created on each access, and small
    numbers are shared.
    """
    if isinstance(value, (str, bytes, int, float, complex)):
        return type(value)
    owner = getattr(value, "__self__", None)
    if owner is None or isinstance(owner, ModuleType):
        return id(value)
    return type(value), getattr(value, "__qualname__", "")


def steps(value: object) -> Iterator[tuple[str, object]]:
    for name in dir(value):
        try:
            yield name, get_attribute(value, name)
        except Exception:  # noqa: BLE001 (descriptors raise what they like; then there is no way)
            continue
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))


def test_no_attribute_of_injected_objects_leads_to_python_internals() -> None:
    proxies = ModuleProxies(ROWS)
    given = {k: v for k, v in guarded_builtins(proxies).items() if not k.startswith("_")}
    modules = {name: proxies.import_module(name, fromlist=("",)[:0]) for name in ROWS}
    ways = list(reached({**given, **modules}))

    assert len(ways) > 1000
    for way, value in ways:
        assert id(value) not in POWERS, way
        assert not isinstance(value, INSIDES) or type(value) is ModuleProxy, way
        assert value is not sys.modules and value is not vars(builtins), way


def test_a_policy_holds_for_an_ordinary_user_s_sandbox_too(user) -> None:
    seen = user(
        "import json\nfrom repl_sandbox import Policy, Sandbox\n"
        "with Sandbox(policy=Policy('lint', imports=['json'])) as sandbox:\n"
        "    with sandbox.session() as session:\n"
        "        print(json.dumps([session.run(c).error is None for c in"
        " ('import json', 'import os')]))\n"
    )

    assert seen == [True, False]
