"""`Policy`: its arguments, its effect in a sandbox, and the absence of effects without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from repl_sandbox import (
    AsyncSandbox,
    Finished,
    Policy,
    PolicyError,
    Raised,
    Sandbox,
    SandboxError,
)
from repl_sandbox.policies.modules import NEVER, TABLE
from tests.sandbox.conftest import STUBBORN


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"language": "strict"}, ValueError, "language must be one of full, lint, restricted"),
        ({"language": None}, ValueError, "language"),
        ({"imports": ["os"]}, ValueError, "imports has no effect under language='full'"),
        ({"imports": []}, ValueError, "imports has no effect"),
        ({"calls_denied": ["eval"]}, ValueError, "calls_denied has no effect"),
        ({"language": "lint", "imports": "os"}, TypeError, "imports must be a list of names"),
        ({"language": "lint", "imports": 3}, TypeError, "imports must be a list"),
        ({"language": "lint", "imports": [3]}, TypeError, "imports: 3 must be a str"),
        ({"language": "lint", "imports": ["os path"]}, ValueError, "imports: 'os path'"),
        ({"language": "lint", "imports": ["os."]}, ValueError, "imports: 'os.'"),
        ({"language": "lint", "imports": [""]}, ValueError, "imports: ''"),
        ({"language": "lint", "imports": ["class"]}, ValueError, "imports: 'class'"),
        ({"language": "lint", "imports": ["a" * 101]}, ValueError, "imports: 'aaa"),
        ({"language": "lint", "imports": ["𝐨𝐬"]}, ValueError, "imports: "),
        ({"language": "lint", "imports": map("m{}".format, range(257))}, ValueError, "257 names"),
        ({"language": "lint", "calls_denied": "eval"}, TypeError, "calls_denied must be a list"),
        ({"language": "lint", "calls_denied": ["eval()"]}, ValueError, r"calls_denied: 'eval\(\)'"),
    ],
)
def test_a_wrong_policy_is_refused_by_its_field(arguments, error, text):
    with pytest.raises(error, match=text):
        Policy(**arguments)


def test_equal_rules_are_equal_values():
    first = Policy("lint", imports=["math", "json", "math"], calls_denied=("open", "eval"))
    second = Policy("lint", imports=("json", "math"), calls_denied={"eval", "open"})

    assert first == second
    assert hash(first) == hash(second)
    assert first != Policy("lint", imports=["json"])


def test_a_denied_call_of_a_module_that_may_not_be_imported_is_no_contradiction():
    assert Policy("lint", imports=["json"], calls_denied=["os.system"]).imports == ("json",)


@pytest.mark.parametrize("policy", ["restricted", {"language": "lint"}, object()])
def test_a_sandbox_takes_a_policy_and_nothing_like_it(policy):
    with pytest.raises(TypeError, match="policy must be a Policy"):
        Sandbox(policy=policy)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("os", "files and processes"),
        ("os.path", "files and processes"),
        ("sys", "the insides of Python"),
        ("builtins", "the insides of Python"),
        ("ctypes", "any memory"),
        ("numpy", "past any proxy"),
        ("dataclasses", "annotations that are text"),
        ("no_such_module", "has not been read"),
        ("json.decoder", "has not been read"),
    ],
)
def test_a_module_that_no_proxy_makes_safe_is_refused_with_the_reason(module, reason):
    with pytest.raises(ValueError, match=f"imports: '{module}' cannot be had.*{reason}"):
        Sandbox(policy=Policy("restricted", imports=["math", module]))


def test_the_tables_say_why_and_do_not_contradict_each_other():
    modules = [row.module for row in TABLE]

    assert len(set(modules)) == len(modules)
    assert not set(modules) & NEVER.keys()
    for row in TABLE:
        names = [*row.names.split(), *row.replaced.split()]
        assert row.reason and names and len(set(names)) == len(names)
        assert not any(name.startswith("_") for name in names)
    assert all(NEVER.values())


def test_every_module_of_the_table_can_be_imported_with_its_listed_names():
    cells = [
        f"from {row.module} import {name}"
        for row in TABLE
        for name in row.replaced.split() or row.names.split()[:1]
    ]
    with Sandbox(policy=Policy("restricted", imports=[row.module for row in TABLE])) as sandbox:
        with sandbox.session() as session:
            for cell in cells:
                assert isinstance(session.run(cell), Finished), cell


def other_interpreter() -> str:
    """An interpreter of at least 3.11 without RestrictedPython."""
    missing = "import sys, importlib.util as u\nassert sys.version_info >= (3, 11)\n"
    missing += "assert u.find_spec('RestrictedPython') is None"
    base = Path(sys.base_prefix, "bin", "python3")
    for path in (str(base), "/usr/bin/python3", "/usr/local/bin/python3"):
        if (
            os.path.exists(path)
            and not subprocess.run(
                [path, "-I", "-c", missing], capture_output=True, check=False
            ).returncode
        ):
            return path
    pytest.skip("no other interpreter without RestrictedPython")


def test_an_interpreter_without_restricted_python_is_an_error_with_the_remedy():
    with pytest.raises(SandboxError, match=r"needs RestrictedPython >= 9.*pip install"):
        Sandbox(python=other_interpreter(), policy=Policy("restricted"))


def test_lint_needs_nothing_installed():
    policy = Policy("lint", imports=["json"])
    with Sandbox(python=other_interpreter(), policy=policy) as sandbox:
        with sandbox.session() as session:
            assert session.run("import os").error.type == "PolicyError"


@pytest.mark.parametrize("policy", [None, Policy(), Policy("lint", calls_denied=["eval"])])
def test_a_session_loads_nothing_of_a_policy_that_it_does_not_have(policy):
    with Sandbox(policy=policy) as sandbox, sandbox.session() as session:
        loaded = "import sys\n[n for n in sys.modules if 'polic' in n or 'Restricted' in n]"
        found = str(session.run(loaded).value)

    assert "Restricted" not in found
    assert ("repl_sandbox.policies.lint" in found) is (
        policy == Policy("lint", calls_denied=["eval"])
    )


def test_full_refuses_nothing():
    with Sandbox(policy=Policy()) as sandbox, sandbox.session() as session:
        assert session.run("import os; eval('().__class__')").value == "<class 'tuple'>"


async def test_an_asynchronous_sandbox_has_the_same_policy():
    async with AsyncSandbox(policy=Policy("lint", imports=["json"])) as sandbox:
        async with sandbox.session() as session:
            outcome = await session.run("import os")

    assert isinstance(outcome, Raised)
    assert outcome.error.type == "PolicyError"


def test_a_ready_session_has_the_policy_too():
    with Sandbox(policy=Policy("restricted"), ready=1) as sandbox, sandbox.session() as session:
        assert session.run("x = ().__class__").error.type == "PolicyError"


@pytest.mark.parametrize("language", ["lint", "restricted"])
def test_the_worker_after_a_recovery_has_the_policy_too(language, clock):
    with Sandbox(policy=Policy(language, imports=["math"])) as sandbox:
        with sandbox.session() as session:
            ended = session.run(STUBBORN, on_output=clock.strike)
            again = session.run("import math, sys")

    assert ended.state == "rolled_back"
    assert again.error.type == "PolicyError"


def test_the_error_on_the_host_has_the_place_too():
    error = PolicyError("no", 3, 5)

    assert (str(error), error.line, error.column) == ("line 3, column 5: no", 3, 5)
    assert str(PolicyError("no")) == "no"
