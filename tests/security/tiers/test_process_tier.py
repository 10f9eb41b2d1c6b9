"""Tier `process`: no isolation and never called any, yet whole: limits, restarts, nothing left."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from repl_sandbox import Finished, Killed, Limits, Sandbox, TimedOut
from tests.internals import session_links, zygote_pid
from tests.security.conftest import ORDINARY_UID
from tests.waiting import PATIENCE, eventually


@pytest.fixture(scope="module")
def process() -> Iterator[Sandbox]:
    limits = Limits(timeout=PATIENCE, grace=0.2, memory="300MiB", workspace="4MiB", processes=30)
    with Sandbox(isolation="process", limits=limits) as sandbox:
        yield sandbox


def test_the_tier_is_reported_as_process(process: Sandbox) -> None:
    with process.session() as session:
        assert session.isolation.tier == "process"
        active = {layer.name for layer in session.isolation.layers if layer.active}
        assert "seccomp" not in active
        assert "landlock" not in active


def test_a_sandbox_writes_nothing_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    """The template process tries forks, and the session forks a child of its own."""
    with Sandbox(isolation="process") as sandbox, sandbox.session() as session:
        assert session.run("import os\nos.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)").ok
    assert capfd.readouterr().err == ""


def test_code_has_the_rights_of_the_host(process: Sandbox, tmp_path: Path) -> None:
    """The tier must be requested by name for that reason."""
    with process.session() as session:
        assert session.run("import os\nos.getuid()").value == str(os.getuid())
        session.run(f"open({str(tmp_path / 'file')!r}, 'w').write('x')")
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize(
    "error",
    [
        "socket.gaierror(-3, 'text')",
        *(
            f"OSError(errno.{name}, 'text')"
            for name in ("EACCES", "ENETUNREACH", "EROFS", "ENOSPC")
        ),
    ],
)
def test_errors_are_not_attributed_to_a_jail(process: Sandbox, error: str) -> None:
    with process.session() as session:
        outcome = session.run(f"import errno, socket\nraise {error}")
        assert outcome.error is not None
        assert outcome.error.traceback.endswith("text\n")
        outcome = session.run("import os; os._exit(1)")
        assert outcome.state == "rolled_back"
        outcome = session.run(f"import errno, socket\nraise {error}")
        assert outcome.error is not None
        assert outcome.error.traceback.endswith("text\n")


def test_each_session_works_in_a_directory_of_its_own(process: Sandbox) -> None:
    with process.session() as one, process.session() as other:
        one.run("import os\nopen('x', 'w').close()")
        assert one.run("os.listdir()").value == "['x']"
        assert other.run("import os\nos.listdir()").value == "[]"
        folder = Path(session_links(one).folder)
        assert one.run("os.getcwd() == os.environ['HOME']").value == "True"
    eventually(lambda: not folder.exists())


def test_limits_interrupts_and_restarts_work(process: Sandbox) -> None:
    with process.session(host={"double": lambda n: 2 * n}) as session:
        session.run("x = 1")
        assert isinstance(session.run("while True: pass", timeout=0.2), TimedOut)
        assert session.run("double(x)").value == "2"
        assert session.run("bytearray(1 << 30)").error is not None
        outcome = session.run("import os\nos._exit(1)")
        assert isinstance(outcome, Killed)
        assert outcome.state == "rolled_back"
        assert isinstance(session.run("6 * 7"), Finished)


def test_a_flood_of_processes_exceeds_a_limit(process: Sandbox) -> None:
    """The kernel counts by user, and this user has others; so it is counted."""
    code = (
        "import subprocess, time\n"
        "held = [subprocess.Popen(['sleep', '60']) for _ in range(40)]\ntime.sleep(50)"
    )
    with process.session() as session:
        outcome = session.run(code)
        assert isinstance(outcome, Killed)
        assert outcome.reason == "processes"


def test_the_interpreter_may_lie_anywhere(process: Sandbox) -> None:
    import sys

    with process.session() as session:
        assert session.run("import sys\nsys.prefix").value == repr(sys.prefix)


def test_many_sessions_leave_nothing(process: Sandbox) -> None:
    zygote = psutil.Process(zygote_pid(process))
    with process.session() as session:
        base = Path(session_links(session).folder).parent

    def held() -> list[int]:
        return [psutil.Process().num_fds(), zygote.num_fds()]

    def is_empty() -> bool:
        # But for the process that holds sessions to their limit of processes.
        return len(zygote.children(recursive=True)) == 1 and os.listdir(base) == ["template"]

    eventually(is_empty)
    before = held()
    for _ in range(50):
        with process.session() as session:
            session.run("import subprocess\nsubprocess.Popen(['sleep', '600'])")
    eventually(is_empty)
    eventually(lambda: all(map(operator.le, held(), before)), lambda: (before, held()))


AS_USER = """
import json
from repl_sandbox import Sandbox
with Sandbox(isolation="process") as sandbox, sandbox.session() as session:
    session.run("import subprocess, os")
    ran = session.run("os.getuid(), subprocess.run(['true']).returncode")
    print(json.dumps([session.isolation.tier, repr(ran), ran.value]))
"""


def test_an_ordinary_user_has_it_too(user: Callable[[str], Any]) -> None:
    tier, ran, value = user(AS_USER)
    assert tier == "process"
    assert value == f"({ORDINARY_UID}, 0)", ran
