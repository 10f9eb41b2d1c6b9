"""The arguments of tier "container", which are refused before any daemon is looked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import repl_sandbox
from repl_env import LocalREPLEnv
from repl_sandbox import ContainerLimits, IsolationError, Limits, Sandbox


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"isolation": "container"}, ValueError, "image must be given"),
        ({"image": "python"}, ValueError, "image is for isolation='container'"),
        ({"isolation": "confined", "image": "python"}, ValueError, "image is for"),
        ({"isolation": "jailed", "runtime": "runc"}, ValueError, "runtime is for"),
        ({"container_limits": ContainerLimits()}, ValueError, "container_limits is for"),
        ({"isolation": "container", "image": 3}, TypeError, "image must be a str"),
        ({"isolation": "container", "image": ""}, ValueError, "image='' is not a valid name"),
        ({"isolation": "container", "image": "a\nb"}, ValueError, "is not a valid name"),
        ({"isolation": "container", "image": "--privileged"}, ValueError, "is not a valid name"),
        ({"isolation": "container", "image": "p", "runtime": 1}, TypeError, "runtime must"),
        (
            {"isolation": "container", "image": "p", "runtime": "runsc", "inside": "jailed"},
            ValueError,
            "kernel of its own",
        ),
        (
            {"isolation": "container", "image": "p", "runtime": "kata", "fair_share": True},
            ValueError,
            "fair_share",
        ),
        ({"isolation": "confined", "per_session": True}, ValueError, "per_session is for"),
        ({"isolation": "jailed", "inside": "jailed"}, ValueError, "inside is for"),
        ({"isolation": "container", "image": "p", "inside": "process"}, ValueError, "inside must"),
        ({"isolation": "container", "image": "p", "per_session": 1}, TypeError, "per_session must"),
        (
            {"isolation": "container", "image": "p", "container_limits": 3},
            TypeError,
            "container_limits must be",
        ),
        (
            {
                "isolation": "container",
                "image": "p",
                "container_limits": ContainerLimits(memory="1GiB"),
                "limits": Limits(memory="2GiB"),
            },
            ValueError,
            "container_limits: memory=1,073,741,824 is less than the limit of one session",
        ),
        (
            {
                "isolation": "container",
                "image": "p",
                "container_limits": ContainerLimits(processes=32),
                "limits": Limits(memory="64MiB", processes=33),
            },
            ValueError,
            "container_limits: processes=32 is less",
        ),
        ({"require": "container"}, ValueError, "needs isolation='container'"),
        ({"isolation": "container", "image": "p", "cgroup": "require"}, ValueError, "cgroup"),
    ],
)
def test_contradictory_settings_are_refused(
    arguments: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        Sandbox(**arguments)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"isolation": "container"}, "image must be given"),
        ({"image": "python"}, "image is for isolation='container'"),
        ({"isolation": "container", "image": "p", "require": "jailed"}, "require"),
    ],
)
def test_an_environment_refuses_it_when_it_is_made(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        LocalREPLEnv(**arguments)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"memory": "1MiB"}, ValueError),
        ({"memory": "much"}, ValueError),
        ({"memory": 1.5}, TypeError),
        ({"processes": 1}, ValueError),
        ({"processes": True}, TypeError),
        ({"cpus": 0}, ValueError),
        ({"cpus": float("nan")}, ValueError),
        ({"cpus": "2"}, TypeError),
    ],
)
def test_limits_of_a_container_name_the_field(
    fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=next(iter(fields))):
        ContainerLimits(**fields)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("unix:///nowhere/docker.sock", "none answers at /nowhere/docker.sock"),
        ("unix:///dev/null", "none answers at /dev/null"),
        (f"unix:///{'long' * 40}", "none answers"),
        ("tcp://192.0.2.1:2375", "must be on this system"),
        ("ssh://somebody@192.0.2.1", "must be on this system"),
    ],
)
def test_a_daemon_that_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, address: str, told: str
) -> None:
    pytest.importorskip("docker.client")
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(IsolationError, match=told) as caught:
        Sandbox(isolation="container", image="python")
    assert (caught.value.tier, caught.value.step) == ("container", "daemon")
    assert caught.value.remedy


def test_without_the_package_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "repl_sandbox.host.docker", raising=False)
    monkeypatch.setitem(sys.modules, "docker", None)
    monkeypatch.setitem(sys.modules, "docker.errors", None)
    with pytest.raises(IsolationError, match=r"repl-env\[docker\]"):
        Sandbox(isolation="container", image="python")


@pytest.mark.parametrize(
    ("name", "value"), [("version_info", (3, 10, 4)), ("version_info", (2, 7))]
)
def test_an_older_interpreter_says_what_is_needed(name: str, value: object) -> None:
    boot = Path(repl_sandbox.__file__).parent / "zygote" / "boot.py"
    program = (
        f"import runpy, sys; sys.{name} = {value!r}; sys.argv = ['', '0', 'confined'];"
        f"runpy.run_path({str(boot)!r}, run_name='__main__')"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("sessions need CPython 3.11 or later, and this is")
