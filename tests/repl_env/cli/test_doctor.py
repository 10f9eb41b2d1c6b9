"""`repl-env doctor` says what holds a session here, and its status says whether that works."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import repl_sandbox
from repl_env.cli.main import build
from repl_sandbox import doctor
from repl_sandbox.errors import IsolationError
from repl_sandbox.host import cgroup_files
from repl_sandbox.jail.steps import step_error
from repl_sandbox.native.library import file_name, source_hash


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build(), ["doctor", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


class Refusing:
    """A sandbox on a system that cannot do the tier."""

    def __init__(self, **_: object) -> None:
        raise IsolationError("jailed", "user namespace", "Operation not permitted", "Ask [root].")


@cache
def works_here(tier: str) -> bool:
    try:
        with repl_sandbox.Sandbox(isolation=tier) as sandbox, sandbox.session():  # type: ignore[arg-type]
            return True
    except IsolationError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="sessions are Linux only")
@pytest.mark.parametrize("tier", ["jailed", "confined", "process"])
def test_the_status_is_0_exactly_if_a_session_of_at_least_that_tier_is_available(tier: str) -> None:
    order = ["jailed", "confined", "process"]
    enough = order[: order.index(tier) + 1]
    expected = 0 if any(map(works_here, enough)) else 3

    assert run("--require", tier)[0] == expected


def test_an_unknown_tier_is_a_mistake_of_the_caller() -> None:
    assert run("--require", "vm")[0] == 2


@pytest.mark.skipif(sys.platform != "linux", reason="tier jailed is Linux only")
def test_json_has_every_facility_and_the_layers_of_a_real_session() -> None:
    status, output = run("--json")
    told = json.loads(output)
    names = {facility["name"] for facility in told["facilities"]}

    assert told["tiers"] == {tier: works_here(tier) for tier in ("jailed", "confined", "process")}
    assert {tier: trial["works"] for tier, trial in told["sessions"].items()} == told["tiers"]
    assert (told["tiers"]["jailed"] or told["tiers"]["confined"]) == (status == 0)
    assert {"user namespace", "mount_setattr", "seccomp filter", "Landlock", "cgroup"} <= names
    assert all(facility["remedy"] for facility in told["facilities"] if not facility["ok"])
    if status == 0:
        assert told["session"]["tier"] in ("jailed", "confined")
        assert any(layer["active"] for layer in told["session"]["layers"])


def test_an_unavailable_tier_exits_3_with_the_step_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repl_sandbox, "Sandbox", Refusing, raising=False)
    status, output = run("--json")
    told = json.loads(output)

    assert status == 3
    assert told["tiers"] == {"jailed": False, "confined": False, "process": False}
    assert told["session"]["step"] == "user namespace"
    assert told["session"]["remedy"] == "Ask [root]."


def test_the_table_shows_the_remedy_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repl_sandbox, "Sandbox", Refusing, raising=False)

    assert "Ask [root]." in run()[1]


@pytest.mark.parametrize("columns", ["40", "60", "80"])
def test_the_verdict_is_first_and_commands_can_be_copied_at_any_width(
    monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    refused = doctor.Finding(False, "no")
    checks = [replace(each, trial=lambda: refused) for each in doctor.CHECKS]
    monkeypatch.setattr(doctor, "CHECKS", tuple(checks))
    monkeypatch.setattr(repl_sandbox, "Sandbox", Refusing, raising=False)
    output = CliRunner().invoke(build(), ["doctor"], env={"COLUMNS": columns}).output

    words = " ".join(output.split())
    assert words.startswith("No session can start here: no tier of isolation works. jailed:")
    for check in checks:
        for command in re.findall(r"`[^`]+`", check.remedy):
            assert command in output, command
        assert " ".join(check.remedy.split()) in words


def test_nothing_is_cut_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/sys/fs/cgroup/" + "a-long-name-of-a-group/" * 3
    monkeypatch.setattr(repl_sandbox, "Sandbox", Refusing, raising=False)
    monkeypatch.setattr(
        cgroup_files, "find", lambda: cgroup_files.CgroupUnavailable(path, f"Write to {path}")
    )
    output = CliRunner().invoke(build(), ["doctor"], env={"COLUMNS": "80"}).output

    assert "…" not in output


@pytest.mark.skipif(sys.platform != "linux", reason="there are cgroups on Linux only")
def test_a_missing_cgroup_has_the_remedy_of_its_own_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repl_sandbox, "Sandbox", Refusing, raising=False)
    monkeypatch.setattr(
        cgroup_files, "find", lambda: cgroup_files.CgroupUnavailable("not ours", "Use [Delegate].")
    )
    told = json.loads(run("--json")[1])
    (cgroup,) = [one for one in told["facilities"] if one["name"] == "cgroup"]

    assert (cgroup["ok"], cgroup["detail"]) == (False, "not ours")
    assert cgroup["remedy"] == "Use [Delegate]."
    assert "Use [Delegate]." in run()[1]


@pytest.mark.skipif(sys.platform != "linux", reason="there is a /proc on Linux only")
def test_a_system_without_proc_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repl_sandbox, "Sandbox", Refusing, raising=False)
    monkeypatch.setattr(doctor, "Path", lambda path: Path(f"/nowhere{path}"))
    status, output = run("--json")
    found = {one["name"]: one for one in json.loads(output)["facilities"]}

    assert status == 3
    assert not found["/proc visibility"]["ok"] and found["/proc visibility"]["remedy"]
    assert found["seccomp filter"]["ok"]  # it was tried


def test_doctor_runs_on_systems_other_than_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(repl_sandbox, "Sandbox", Refusing, raising=False)
    status, output = run("--json")

    assert status == 3
    assert json.loads(output)["facilities"][0]["ok"] is False


def test_every_facility_that_can_be_missing_has_a_remedy() -> None:
    assert all(check.remedy for check in doctor.CHECKS)
    assert len({check.name for check in doctor.CHECKS}) == len(doctor.CHECKS)


def test_the_command_needs_no_engine_to_be_built() -> None:
    assert isinstance(build(), typer.Typer)


def test_the_native_library_is_shown_with_its_build() -> None:
    told = json.loads(run("--json")[1])
    (library,) = [one for one in told["facilities"] if one["name"] == "native library"]

    assert library["ok"]
    assert file_name(os.uname().machine) in library["detail"]
    assert source_hash() in library["detail"]
    assert re.search(r"by (gcc|clang) \d", library["detail"])


@pytest.mark.parametrize(
    ("step", "number", "says"),
    [
        ("namespaces", errno.ENOSPC, "No disk is full"),
        ("id maps", errno.EPERM, "too few user ids"),
        ("folder", errno.EINVAL, "too few user ids"),
        ("folder", errno.EACCES, "TMPDIR"),
    ],
)
def test_an_errno_that_misleads_is_explained(step: str, number: int, says: str) -> None:
    error = step_error(step, OSError(number, os.strerror(number)))

    assert says in error.remedy
    assert error.remedy in str(error)
