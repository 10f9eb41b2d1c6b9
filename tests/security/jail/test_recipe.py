"""The recipe of the jail: every step counts, and one that fails is named and never skipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from repl_sandbox import IsolationError
from repl_sandbox.jail import landlock
from repl_sandbox.jail.recipe import INIT, RECIPES, VIEW, WORKER
from repl_sandbox.jail.steps import Jail, Step, contain
from repl_sandbox.native.libc import call
from tests.waiting import LONG

JAIL = Jail(
    slot=None,
    workspace=1 << 20,
    rlimits=[],
    last_capability=40,
    final_filter=b"",
    files=landlock.plan((), 0),
)


def _fails(jail: Jail) -> None:
    raise OSError(1, "Operation not permitted")


def test_a_step_that_fails_is_named_and_ends_the_recipe() -> None:
    done: list[str] = []
    steps = [
        Step("first", "", None, lambda jail: done.append("first")),
        Step("second", "", None, _fails),
        Step("third", "", None, lambda jail: done.append("third")),
    ]
    with pytest.raises(
        IsolationError, match=r"jailed: second: .*Operation not permitted"
    ) as caught:
        contain(JAIL, steps)
    assert (caught.value.tier, caught.value.step) == ("jailed", "second")
    assert isinstance(caught.value.__cause__, OSError)
    assert done == ["first"]


def test_steps_are_applied_in_order() -> None:
    done: list[int] = []
    steps = [Step(str(n), "", None, lambda jail, n=n: done.append(n)) for n in range(5)]
    contain(JAIL, steps)
    assert done == [0, 1, 2, 3, 4]


def test_system_calls_and_functions_alternate(tmp_path: Path) -> None:
    def make(name: str) -> Step:
        path = str(tmp_path / name).encode()
        return Step(name, "", lambda jail: [call("mkdirat", -100, path, 0o700)])

    seen: list[list[str]] = []
    look = Step("look", "", None, lambda jail: seen.append(sorted(os.listdir(tmp_path))))
    with pytest.raises(IsolationError, match="File exists") as caught:
        contain(JAIL, [make("a"), look, make("b"), make("c"), look, make("b"), make("d"), look])
    assert caught.value.step == "b"
    assert seen == [["a"], ["a", "b", "c"]]
    assert not (tmp_path / "d").exists()


def test_each_step_says_why_it_is_there_and_is_calls_or_a_function() -> None:
    for recipe in RECIPES.values():
        for step in (step for steps in recipe for step in steps):
            assert step.reason
            assert (step.calls is None) != (step.function is None)


def test_step_names_are_unique() -> None:
    for steps in (INIT, VIEW, WORKER):
        names = [step.name for step in steps]
        assert len(set(names)) == len(names)
        assert all(names)


def test_the_filter_is_the_last_step_and_descriptors_close_in_the_first() -> None:
    assert WORKER[-1].name == "seccomp"
    for steps in (INIT, WORKER):
        assert "descriptors" in [step.name for step in steps[:2]]


def test_privileges_are_dropped_in_the_required_order() -> None:
    """Credentials, then capabilities, then no_new_privs, which the filter needs."""
    names = [step.name for step in WORKER]
    order = ["code user", "capabilities", "no new privileges", "seccomp"]
    assert [name for name in names if name in order] == order
    # A change of credentials clears the parent death signal (prctl(2)).
    first = [step.name for step in INIT]
    assert first.index("init user") < first.index("parent death signal")


# A process that may do less than the suite does: `deny` takes the right away, for good.
DENIED = """
import json
from repl_sandbox import IsolationError, Sandbox
{deny}
try:
    with Sandbox(isolation="jailed") as sandbox, sandbox.session() as session:
        print(json.dumps([session.run("1 + 1").value]))
except IsolationError as error:
    print(json.dumps([error.tier, error.step, error.remedy, str(error)]))
"""

BY_FILTER = """
from repl_sandbox.jail import processes
from repl_sandbox.jail import seccomp
processes.forbid_new_privileges()
seccomp.load(seccomp.program(seccomp.native_arch()))
"""

BY_LIMIT = """
import ctypes, os
# In a user namespace of its own, whose count of further ones may be set without touching others'.
uid, gid = os.geteuid(), os.getegid()
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x10000000) == 0, os.strerror(ctypes.get_errno())
for name, text in (("setgroups", "deny"), ("gid_map", f"0 {gid} 1"), ("uid_map", f"0 {uid} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
with open("/proc/sys/user/max_user_namespaces", "w") as file:
    file.write("0")
"""

BY_MAP = BY_LIMIT.partition('with open("/proc/sys')[0]


def outcome_of(deny: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", DENIED.format(deny=deny)],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_session_runs_where_nothing_is_denied() -> None:
    assert outcome_of("") == ["2"]


@pytest.mark.parametrize(
    ("deny", "step"),
    [(BY_FILTER, "namespaces"), (BY_LIMIT, "namespaces")],
    ids=["a filter, as of a container", "a limit of zero"],
)
def test_namespaces_that_are_denied_are_an_error_with_a_remedy(deny: str, step: str) -> None:
    tier, found, remedy, text = outcome_of(deny)
    assert (tier, found) == ("jailed", step)
    assert remedy
    assert text.count(remedy) == 1


def test_root_without_ids_to_map_is_reported() -> None:
    """Rootless containers: uid 0 there, and not one uid to spare for a session."""
    found = outcome_of(BY_MAP)
    if found != ["2"]:
        tier, step, remedy, text = found
        assert (tier, step) == ("jailed", "id maps")
        assert remedy
        assert text.count(remedy) == 1
