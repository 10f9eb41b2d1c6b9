"""`repl-env doctor` says what holds a session here, and its status says whether that works."""

from __future__ import annotations

import json
import sys

import pytest
import typer
from typer.testing import CliRunner

import repl_sandbox
from repl_env.cli import facilities
from repl_env.cli.main import build
from repl_sandbox.cgroups import place
from repl_sandbox.errors import IsolationError


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build(), ["doctor", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


class Refusing:
    """A sandbox on a system that cannot do the tier."""

    def __init__(self, **_: object) -> None:
        raise IsolationError("jailed", "user namespace", "Operation not permitted", "Ask [root].")


def works_here() -> bool:
    try:
        with repl_sandbox.Sandbox(isolation="jailed") as sandbox, sandbox.session():
            return True
    except IsolationError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="tier jailed is Linux only")
def test_the_status_is_0_exactly_if_a_jailed_session_can_be_had() -> None:
    expected = 0 if works_here() else 3

    assert run()[0] == expected


@pytest.mark.skipif(sys.platform != "linux", reason="tier jailed is Linux only")
def test_json_has_every_facility_and_the_layers_of_a_real_session() -> None:
    status, output = run("--json")
    told = json.loads(output)
    names = {facility["name"] for facility in told["facilities"]}

    assert told["tiers"]["jailed"] == (status == 0)
    assert {"user namespace", "mount_setattr", "seccomp filter", "Landlock", "cgroup"} <= names
    assert all(facility["remedy"] for facility in told["facilities"] if not facility["ok"])
    if status == 0:
        assert told["session"]["tier"] == "jailed"
        assert any(layer["active"] for layer in told["session"]["layers"])


def test_a_tier_that_cannot_be_had_gives_3_the_step_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repl_sandbox, "Sandbox", Refusing, raising=False)
    status, output = run("--json")
    told = json.loads(output)

    assert status == 3
    assert told["tiers"] == {"jailed": False}
    assert told["session"]["step"] == "user namespace"
    assert told["session"]["remedy"] == "Ask [root]."


def test_the_table_shows_the_remedy_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repl_sandbox, "Sandbox", Refusing, raising=False)

    assert "Ask [root]." in run()[1]


@pytest.mark.skipif(sys.platform != "linux", reason="there are cgroups on Linux only")
def test_a_missing_group_has_the_remedy_of_its_own_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repl_sandbox, "Sandbox", Refusing, raising=False)
    monkeypatch.setattr(place, "find", lambda: place.Missing("not ours", "Use [Delegate]."))
    told = json.loads(run("--json")[1])
    (cgroup,) = [one for one in told["facilities"] if one["name"] == "cgroup"]

    assert (cgroup["ok"], cgroup["detail"]) == (False, "not ours")
    assert cgroup["remedy"] == "Use [Delegate]."
    assert "Use [Delegate]." in run()[1]


def test_off_linux_it_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(repl_sandbox, "Sandbox", Refusing, raising=False)
    status, output = run("--json")

    assert status == 3
    assert json.loads(output)["facilities"][0]["ok"] is False


def test_every_facility_that_can_be_missing_has_a_remedy() -> None:
    assert all(facility.remedy for facility in facilities.FACILITIES)
    assert len({facility.name for facility in facilities.FACILITIES}) == len(facilities.FACILITIES)


def test_the_command_needs_no_engine_to_be_built() -> None:
    assert isinstance(build(), typer.Typer)
