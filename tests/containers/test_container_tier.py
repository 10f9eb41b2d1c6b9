"""Tier "container" with a real daemon: its promises, its end, and leftovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from repl_sandbox import (
    ContainerLimits,
    IsolationError,
    Killed,
    Limits,
    Sandbox,
    SandboxClosed,
    SandboxError,
)
from tests.conformance.runner import run as conform
from tests.containers.engine import STREAMED
from tests.containers.ready import IMAGE, only_if_there, run
from tests.internals import zygote_pid
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("daemon")

LIMITS = Limits(timeout=60)


def sandbox(**arguments: object) -> Sandbox:
    given = {"image": IMAGE, "limits": LIMITS, **arguments}
    return Sandbox(isolation="container", **given)


def containers(client: list[str]) -> list[str]:
    """The containers of this package that the daemon lists, running or not."""
    listed = run(*client, "ps", "--all", "--quiet", "--filter", "label=repl-env.owner")
    assert listed.returncode == 0, listed.stderr
    return listed.stdout.split()


@pytest.fixture(scope="module")
def shared(daemon: None) -> Iterator[Sandbox]:
    with sandbox() as made:
        yield made


def test_the_conformance_suite_passes(shared: Sandbox) -> None:
    report = conform(shared.session)
    assert report.tier == "container"
    assert report.failed == ()


def test_the_conformance_suite_passes_over_a_stream(client: list[str]) -> None:
    only_if_there(client, STREAMED)
    with sandbox(runtime=STREAMED, per_session=False) as made:
        report = conform(made.session)
    assert (report.tier, report.failed) == ("container", ())


@pytest.mark.parametrize("runtime", ["", STREAMED])
def test_the_corpus_passes(
    client: list[str], monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    only_if_there(client, runtime or None)
    monkeypatch.setenv("REPL_TEST_RUNTIME", runtime)
    asked = ["-m", "tests.security.abuse", "--tier", "container", "--json"]
    # The user that an ordinary one is there may not talk to the daemon.
    done = run(sys.executable, *asked, "--user", "root", "--user", "user")
    report = json.loads(done.stdout)
    (column,) = report["columns"]
    counted = Counter(verdict["status"] for verdict in column["verdicts"])
    assert report["changed"] == []
    assert [each for each in column["verdicts"] if each["status"] == "failed"] == []
    assert counted["passed"] > 350


def test_the_tier_is_measured_inside(client: list[str], shared: Sandbox) -> None:
    with shared.session() as session:
        found = session.isolation
        layers = {layer.name: layer for layer in found.layers}
        zygote = zygote_pid(shared)

    assert found.tier == "container"
    assert layers["container"].active, layers["container"].detail
    assert not layers["pid namespace"].active  # it is of all sessions of the container
    assert not layers["own uid"].active
    (container,) = containers(client)
    shown = run(
        *client, "inspect", "--format", "{{.State.Pid}} {{.HostConfig.Privileged}}", container
    )
    assert shown.stdout.split() == [str(zygote), "false"]
    status = Path(f"/proc/{zygote}/status").read_text()
    assert "CapBnd:\t0000000000000000" in status and "NoNewPrivs:\t1" in status


def test_a_container_that_lacks_its_isolation_is_refused(
    monkeypatch: pytest.MonkeyPatch, client: list[str]
) -> None:
    """A name is no proof: a daemon that leaves out what was asked for is found out."""
    from docker.api.client import APIClient

    create = APIClient.create_host_config

    def looser(self: object, **given: object) -> object:
        return create(self, **{**given, "read_only": False, "network_mode": "host"})

    before = set(containers(client))
    monkeypatch.setattr(APIClient, "create_host_config", looser)
    with pytest.raises(IsolationError, match=r"read-only root.*no network"):
        sandbox()
    assert set(containers(client)) <= before


def test_limits_of_the_container_are_the_kernel_s(client: list[str]) -> None:
    limits = ContainerLimits(memory="512MiB", processes=48, cpus=0.5)
    small = Limits(memory="64MiB", processes=32, timeout=60)
    with sandbox(container_limits=limits, limits=small) as made:
        (container,) = [each for each in containers(client) if of(client, each) == zygote_pid(made)]
        form = "{{.HostConfig.Memory}} {{.HostConfig.PidsLimit}} {{.HostConfig.NanoCpus}}"
        shown = run(*client, "inspect", "--format", form, container).stdout.split()
        with made.session() as session:
            outcome = session.run("x = bytearray(300 << 20)")
            again = session.run("6 * 7")
    assert shown == [str(512 << 20), "48", "500000000"]
    assert isinstance(outcome, Killed) or outcome.error.type == "MemoryError"
    assert again.value == "42"


def of(client: list[str], container: str) -> int:
    return int(run(*client, "inspect", "--format", "{{.State.Pid}}", container).stdout or 0)


def test_mounts_are_shown_read_only_at_any_path(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "data.txt").write_text("shown")
    (tmp_path / "data.txt").chmod(0o666)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    with sandbox(mounts={"/data": str(tmp_path)}) as made, made.session() as session:
        assert session.run("open('/data/data.txt').read()").value == "'shown'"
        refused = session.run("open('/data/data.txt', 'w')").error.type
        assert refused in ("OSError", "PermissionError")


def test_settings_of_a_template_hold_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from a folder whose path is too long for the address of a socket."""
    place = tmp_path / ("long" * 30)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    code = "import sys; [hash('a'), 'json' in sys.modules]"
    given = {"hash_seed": 7, "preload": ["json.tool"], "python": "python3.11"}
    answers = []
    for _ in range(2):
        with sandbox(**given) as made, made.session() as session:
            answers.append(session.run(code).value)
    assert answers[0] == answers[1]
    assert answers[0].endswith("True]")
    assert list(place.iterdir()) == []


def test_shared_objects_branches_and_files(shared: Sandbox) -> None:
    with shared.with_shared(text="x" * 1000) as child, child.session() as session:
        session.files.put("a.txt", b"12")
        assert session.run("len(text) + int(open('a.txt').read())").value == "1012"
        with session.branch() as branch:
            assert branch.run("len(text)").value == "1000"


def test_a_workspace_over_its_quota_ends_the_worker(client: list[str]) -> None:
    with sandbox(limits=Limits(workspace="1MiB", timeout=60)) as made, made.session() as session:
        outcome = session.run(
            "import time\n"
            "for number in range(8):\n"
            "    open(f'{number}', 'wb').write(bytes(1 << 20))\n"
            "time.sleep(50)"
        )
    assert isinstance(outcome, Killed) and outcome.reason == "workspace"


EPISODE = """
import sys
from repl_env import LocalREPLEnv
with LocalREPLEnv(isolation="container", image=sys.argv[1]) as env:
    env.reset(context="three words here")
    result = env.execute("FINAL(len(context.split()))")
told = result.metadata
print(result.done, told["final_answer"], told["isolation"]["tier"])
"""


def test_an_episode_in_a_container() -> None:
    done = run(sys.executable, "-c", EPISODE, IMAGE)
    assert done.stdout == "True 3 container\n", done.stdout + done.stderr


HOST = """
import sys
from repl_sandbox import Sandbox
made = Sandbox(isolation="container", image=sys.argv[1])
session = made.session()
print(session.run("6 * 7").value, flush=True)
sys.stdin.read()
"""


def test_a_container_ends_with_its_host_however_that_ends(client: list[str]) -> None:
    before = set(containers(client))
    command = [sys.executable, "-c", HOST, IMAGE]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as host:
        assert host.stdout.readline() == "42\n"
        assert len(set(containers(client)) - before) == 1
        host.send_signal(signal.SIGKILL)
    eventually(lambda: set(containers(client)) <= before)


def test_a_container_that_is_removed_from_outside_ends_its_sessions(client: list[str]) -> None:
    with sandbox() as made, made.session() as session:
        (container,) = [each for each in containers(client) if of(client, each) == zygote_pid(made)]
        assert run(*client, "rm", "--force", container).returncode == 0
        with pytest.raises(SandboxError):
            session.run("6 * 7")
        with pytest.raises(SandboxClosed):
            made.session()
    assert container not in containers(client)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"image": "repl-env.invalid/nothing:none"}, "image repl-env.invalid/nothing:none"),
        ({"image": "No Such Image"}, "image No Such Image"),
        ({"python": "/no/python"}, "no such program|ended before it connected"),
        ({"python": "ls"}, "ended before it connected"),
        ({"python": "sleep"}, "ended before it connected"),
        ({"runtime": "none-such"}, "no runtime 'none-such'"),
        ({"preload": ["no_such_module"]}, "preload: no_such_module"),
    ],
)
def test_a_container_that_cannot_start_is_a_clear_error(
    client: list[str], arguments: dict[str, object], told: str
) -> None:
    before = set(containers(client))
    with pytest.raises(SandboxError, match=told):
        sandbox(**arguments)
    assert set(containers(client)) <= before
