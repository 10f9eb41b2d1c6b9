"""The tier that a sandbox gets: the strongest that works, never a weaker one than was required.

`jailed` is made unavailable by what makes it so in a container: a filter that refuses namespaces,
or a limit of none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from repl_sandbox import IsolationError, Sandbox, SandboxError
from repl_sandbox.host import isolation
from repl_sandbox.jail.landlock import kernel_abi
from repl_sandbox.options import STRONGEST_FIRST, acceptable, confirm, strongest
from repl_sandbox.types import Isolation, Layer
from tests.waiting import LONG

landlocked = pytest.mark.skipif(not kernel_abi(), reason="this kernel has no Landlock")

# Like the default filter of container engines, and nothing else.
WITHOUT_NAMESPACES = """
from repl_sandbox.jail import processes
from repl_sandbox.jail import seccomp
from repl_sandbox.native.libc import number
from repl_sandbox.jail.syscalls import CLONE_NAMESPACES, REFUSE

def refuse_namespaces():
    assembler = seccomp.Assembler()
    allow, deny = assembler.ret(0x7FFF0000), assembler.ret(0x00050001)
    assembler.jump(seccomp.JSET, CLONE_NAMESPACES, deny, allow)
    by_flags = assembler.load(seccomp.argument_offset(0))
    label = assembler.jump(seccomp.JEQ, number("clone"), by_flags, allow)
    arch = seccomp.native_arch()
    for row in REFUSE:
        if row.name in ("unshare", "setns", "mount", "pivot_root"):
            label = assembler.jump(seccomp.JEQ, row.number(arch), deny, label)
    assembler.load(seccomp.NUMBER_OFFSET)
    processes.forbid_new_privileges()
    seccomp.load(assembler.assemble())

refuse_namespaces()
"""

# In a user namespace of its own, whose count of further ones may be set without touching others'.
WITHOUT_MORE_NAMESPACES = """
from repl_sandbox.jail import users
users.enter_namespace(users.CODE_ID)
with open("/proc/sys/user/max_user_namespaces", "w") as file:
    file.write("0")
"""

WITHOUT_LANDLOCK = """
from repl_sandbox.jail import processes
from repl_sandbox.jail import seccomp
from repl_sandbox.native.libc import number
assembler = seccomp.Assembler()
allow, deny = assembler.ret(0x7FFF0000), assembler.ret(0x00050000 | {errno})
assembler.jump(seccomp.JEQ, number("landlock_create_ruleset"), deny, allow)
assembler.load(seccomp.NUMBER_OFFSET)
processes.forbid_new_privileges()
seccomp.load(assembler.assemble())
"""

ASK = """
import json
{deny}
from repl_sandbox import IsolationError, Sandbox
try:
    with Sandbox(python={python!r}, {arguments}) as sandbox, sandbox.session() as session:
        session.run("x = 6 * 7")
        refused = [[each.tier, each.step, bool(each.remedy)] for each in sandbox.refusals]
        print(json.dumps([session.isolation.tier, session.run("x").value, refused]))
except IsolationError as error:
    print(json.dumps([error.tier, error.step, bool(error.remedy), str(error.__notes__)
                      if hasattr(error, "__notes__") else ""]))
"""


def ask(deny: str, arguments: str, python: str | None) -> Any:
    script = ASK.format(deny=deny, arguments=arguments, python=python)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_auto_is_jailed_where_nothing_is_missing() -> None:
    assert ask("", "", None) == ["jailed", "42", []]


@landlocked
def test_without_namespaces_auto_is_confined_and_says_why_not_more(open_python: str) -> None:
    tier, answer, refusals = ask(WITHOUT_NAMESPACES, "", open_python)
    assert (tier, answer) == ("confined", "42")
    assert refusals == [["jailed", "namespaces", True]]


@landlocked
def test_an_ordinary_user_without_namespaces_is_confined(user: Callable[[str], Any]) -> None:
    script = ASK.format(deny=WITHOUT_MORE_NAMESPACES, arguments="", python=None)
    tier, answer, refusals = user(script)
    assert (tier, answer) == ("confined", "42")
    assert refusals == [["jailed", "namespaces", True]]


@pytest.mark.parametrize("arguments", ["require='jailed'", "isolation='jailed'"])
def test_a_required_but_unavailable_tier_is_an_error(arguments: str, open_python: str) -> None:
    found = ask(WITHOUT_NAMESPACES, arguments, open_python)
    assert found[:3] == ["jailed", "namespaces", True]


@landlocked
@pytest.mark.parametrize(("errno", "name"), [(38, "none"), (95, "off"), (1, "refused")])
def test_without_landlock_confined_is_unavailable(errno: int, name: str, open_python: str) -> None:
    deny = WITHOUT_NAMESPACES + WITHOUT_LANDLOCK.format(errno=errno)
    tier, step, remedy, notes = ask(deny, "", open_python)
    assert (tier, step, remedy) == ("confined", "Landlock", True)
    assert "jailed: namespaces" in notes


@landlocked
def test_a_kernel_without_landlock_can_still_jail() -> None:
    tier, answer, _ = ask(WITHOUT_LANDLOCK.format(errno=38), "", None)
    assert (tier, answer) == ("jailed", "42")


def test_tier_process_is_never_a_fallback() -> None:
    assert "process" not in acceptable("auto", None)
    assert acceptable("auto", "process") == ("jailed", "confined", "process")


@pytest.mark.parametrize(
    ("given", "tried"),
    [
        (("auto", None), ("jailed", "confined")),
        (("auto", "confined"), ("jailed", "confined")),
        (("auto", "jailed"), ("jailed",)),
        (("jailed", None), ("jailed",)),
        (("jailed", "process"), ("jailed",)),
        (("confined", None), ("confined",)),
        (("confined", "confined"), ("confined",)),
        (("container", None), ("container",)),
        (("container", "confined"), ("container",)),
        (("process", None), ("process",)),
        (("process", "process"), ("process",)),
    ],
)
def test_the_tiers_that_are_tried(given: tuple[str, str | None], tried: tuple[str, ...]) -> None:
    assert acceptable(*given) == tried


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"isolation": "process", "require": "jailed"}, "require"),
        ({"isolation": "process", "require": "confined"}, "require"),
        ({"isolation": "confined", "require": "jailed"}, "require"),
        ({"isolation": "vm"}, "isolation"),
        ({"isolation": "jail", "image": "python"}, "isolation"),
        ({"isolation": "container", "image": "python", "require": "jailed"}, "require"),
        ({"isolation": None}, "isolation"),
        ({"isolation": ""}, "isolation"),
        ({"require": "auto"}, "require"),
        ({"require": "strong"}, "require"),
    ],
)
def test_contradictory_requirements_are_refused_before_anything_starts(
    arguments: dict[str, Any], name: str
) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        Sandbox(**arguments)
    if "isolation" not in arguments or "require" not in arguments:
        assert all(tier in str(caught.value) for tier in STRONGEST_FIRST)


def test_a_session_that_does_not_look_like_its_tier_is_an_error() -> None:
    """The layers found in the session decide, not the steps that were performed."""
    layers = tuple(
        Layer(name, name != "seccomp", "seen") for name in sorted(isolation.TIERS["jailed"])
    )
    with pytest.raises(IsolationError, match=r"jailed: probe: .*seccomp") as caught:
        confirm("jailed", Isolation("process", layers))
    assert caught.value.remedy
    confirm("process", Isolation("process", layers))


def test_the_error_of_the_last_tier_carries_the_others() -> None:
    def start(tier: str) -> None:
        raise IsolationError(tier, "a step", f"no {tier}")

    with pytest.raises(IsolationError) as caught:
        strongest(("jailed", "confined"), start)
    assert caught.value.tier == "confined"
    assert "no jailed" in "".join(caught.value.__notes__)


def test_other_errors_do_not_select_a_weaker_tier() -> None:
    """A module that cannot be imported says nothing about the system."""
    tried: list[str] = []

    def start(tier: str) -> None:
        tried.append(tier)
        raise ValueError("preload")

    with pytest.raises(ValueError, match="preload"):
        strongest(("jailed", "confined"), start)
    assert tried == ["jailed"]


def test_an_error_of_a_weaker_tier_says_why_it_was_tried() -> None:
    """Such as a mount that only a stronger tier can show."""

    def start(tier: str) -> None:
        raise IsolationError(tier, "a step", "no") if tier == "jailed" else SandboxError("mounts")

    with pytest.raises(SandboxError, match="mounts") as caught:
        strongest(("jailed", "confined"), start)
    assert "jailed: a step: no" in "".join(caught.value.__notes__)


def test_each_tier_needs_all_that_a_weaker_one_does_but_landlock() -> None:
    """A kernel without Landlock can jail, but not confine.

    A jail has namespaces for each session, and so needs no container.
    """
    stronger, *weaker = (isolation.TIERS[tier] for tier in STRONGEST_FIRST)
    for needed in weaker:
        assert needed - {"landlock", "container"} <= stronger
        stronger = needed


# In namespaces of its own, as an administrator mounts it for all.
HIDDEN = """
import json, os, sys
from repl_sandbox import IsolationError, Sandbox
from repl_sandbox.jail import users
from repl_sandbox.native import libc
from repl_sandbox.native.library import perform
users.enter_namespace(users.CODE_ID)
libc.unshare(libc.CLONE_NEWPID | libc.CLONE_NEWNS)
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
libc.mount("none", "/", "", libc.MS_REC | libc.MS_PRIVATE)
libc.mount("proc", "/proc", "proc", libc.MS_NOSUID, "{option}")
perform(users.drop_all_rows())
try:
    with Sandbox(isolation="confined") as sandbox, sandbox.session() as session:
        print(json.dumps([session.isolation.tier]))
except IsolationError as error:
    print(json.dumps([error.tier, error.step, error.remedy]))
"""


@landlocked
def test_a_proc_that_hides_processes_is_named(user: Callable[[str], Any]) -> None:
    tier, step, remedy = user(HIDDEN.format(option="hidepid=2"))
    assert (tier, step) == ("confined", "probe")
    assert "hidepid" in remedy


@landlocked
def test_a_proc_with_processes_alone_is_enough(user: Callable[[str], Any]) -> None:
    assert user(HIDDEN.format(option="subset=pid")) == ["confined"]


LATER = """
import json
from repl_sandbox import IsolationError, Sandbox
from repl_sandbox.jail import users
users.enter_namespace(users.CODE_ID)
with Sandbox(cgroup="off") as sandbox:
    with sandbox.session() as before:
        found = [sandbox.refusals == (), before.isolation.tier]
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")
        try:
            sandbox.session()
        except IsolationError as error:
            found += [error.tier, error.step, bool(error.remedy)]
        found.append(before.run("6 * 7").value)
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("1000")
        with sandbox.session() as after:
            found.append(after.run("6 * 7").value)
print(json.dumps(found))
"""


def test_namespaces_that_are_denied_later_end_no_session_and_start_none(
    user: Callable[[str], Any],
) -> None:
    """The error names the layer, and no weaker tier is used, though `auto` might at the start."""
    assert user(LATER) == [True, "jailed", "jailed", "namespaces", True, "42", "42"]
