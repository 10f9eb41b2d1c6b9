"""Sessions leave nothing behind: no process, descriptor, mount, thread or directory."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from repl_sandbox import Killed, Limits, Sandbox, SandboxError, TimedOut
from tests.descriptors import opened
from tests.internals import init_pid, zygote_pid
from tests.waiting import PATIENCE, comes_to, eventually


class Belongings(NamedTuple):
    """Resources that a host and its zygote hold; each field is a set, or a number.

    Descriptors are counted: a new one may have another number than the one that it replaces.
    """

    host_descriptors: int
    zygote_descriptors: int
    host_mounts: int
    zygote_mounts: int
    processes: frozenset[psutil.Process]
    temporary: frozenset[str]


def belongings(sandbox: Sandbox) -> Belongings:
    """Return the resources that this process and the zygote of `sandbox` hold now."""
    gc.collect()
    zygote = str(zygote_pid(sandbox))
    return Belongings(
        len(opened("self")),
        len(opened(zygote)),
        _mounts("self"),
        _mounts(zygote),
        frozenset(psutil.Process().children(recursive=True)),
        # Other programs may have sandboxes of other tiers, whose folders are called repl-sandbox-…,
        # or check some for conformance, with a file repl-secret-…; jailed sandboxes have neither.
        frozenset(
            name
            for folder in ("/tmp", "/dev/shm")
            for name in os.listdir(folder)
            if "repl" in name and not name.startswith(("repl-sandbox-", "repl-secret-"))
        ),
    )


def left_over(sandbox: Sandbox, before: Belongings) -> list[Any]:
    """Return the resources added since `before`, once transient ones have had time to go.

    Transient are a process that has still to be switched out, and a descriptor that a thread of
    this process opens for a moment, to look at the sessions.
    """
    return comes_to(lambda: _more(before, belongings(sandbox)), [])


def _more(before: tuple[Any, ...], now: tuple[Any, ...]) -> list[Any]:
    """Return the members of each set, and the part of each number, that only `now` has."""
    pairs = zip(before, now, strict=True)
    return [new - old for old, new in pairs if not new <= old]


def _mounts(pid: str) -> int:
    return len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())


def _open_and_close(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        assert session.run("6 * 7").value == "42"


def _never_used(sandbox: Sandbox) -> None:
    sandbox.session().close()


def _with_host_functions(sandbox: Sandbox) -> None:
    with sandbox.session(host={"double": lambda x: 2 * x}) as session:
        assert session.run("double(21)").value == "42"


def _killed(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        assert isinstance(session.run("import os\nos._exit(1)"), Killed)
        assert isinstance(
            session.run("import os\nos.closerange(3, 2000)\nwhile True: pass"), Killed
        )
        assert session.run("6 * 7").value == "42"


def _brought_back(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        session.run("import os\nx = 1\nopen('f', 'w').close()")
        assert session.run("os._exit(1)").state == "rolled_back"
        session.run("x = 2")
        session.rollback()
        assert session.get("x") == 1


def _timed_out(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        assert isinstance(session.run("while True: pass", timeout=0.01), TimedOut)


def _with_children_left(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        assert session.run("import subprocess\nsubprocess.Popen(['sleep', '1000'])").ok


def _with_bulk_values(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        session.set("text", "x" * 1_000_000)
        session.set("data", b"x" * 1_000_000)
        assert session.run("len(text) + len(data)").value == "2000000"


def _with_shared(sandbox: Sandbox) -> None:
    with sandbox.with_shared(text="x" * 1_000_000) as one, one.with_shared(more=[1]) as two:
        with two.session() as session:
            assert session.run("len(text) + len(more)").value == "1000001"
        left = two.session()
        assert left.run("pass").ok


def _shared_in_vain(sandbox: Sandbox) -> None:
    with pytest.raises(TypeError):
        sandbox.with_shared(text="x" * 1_000_000, thing=object())
    with sandbox.with_shared(x=1) as made:
        psutil.Process(zygote_pid(made)).kill()


def _refused(sandbox: Sandbox) -> None:
    with pytest.raises(TypeError):
        sandbox.session(limits="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="answers"):
        sandbox.session(answers="loud")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("use", "times"),
    [
        (_open_and_close, 50),
        pytest.param(_open_and_close, 1000, marks=pytest.mark.slow),
        (_never_used, 50),
        (_with_host_functions, 50),
        (_killed, 2),
        (_brought_back, 20),
        (_timed_out, 20),
        (_with_children_left, 20),
        (_with_bulk_values, 20),
        (_refused, 20),
        (_with_shared, 20),
        (_shared_in_vain, 20),
    ],
)
def test_sessions_leave_nothing_behind(
    sandbox: Sandbox, use: Callable[[Sandbox], None], times: int
) -> None:
    use(sandbox)  # threads and tables that are made once
    before = belongings(sandbox)
    for _ in range(times):
        use(sandbox)
    assert left_over(sandbox, before) == []


def test_fifty_recoveries_of_one_session_leave_nothing_behind(sandbox: Sandbox) -> None:
    def held() -> Belongings:
        """Except the processes of workspace snapshots and of snapshots, which change, but not in
        number.
        """
        return belongings(sandbox)._replace(processes=frozenset())

    with sandbox.session() as session:
        init = psutil.Process(init_pid(session))
        for use in range(52):
            session.run("import os, threading\nx = 1\nopen('f', 'w').write('x')")
            assert session.run("os._exit(1)").state == "rolled_back"
            assert session.get("x") == 1
            if use == 1:
                before = held()
                descriptors = init.num_fds()
        assert comes_to(lambda: _more(before, held()), []) == []
        eventually(lambda: init.num_fds() <= descriptors)
        eventually(lambda: len(init.children(recursive=True)) <= 5)


def test_a_directory_closed_by_its_owner_leaks_no_descriptors(
    sandbox: Sandbox,
) -> None:
    def held() -> dict[psutil.Process, int]:
        found = {}
        for process in init.children():
            with suppress(psutil.NoSuchProcess):  # a snapshot that is not needed any more
                found[process] = process.num_fds()
        return found

    with sandbox.session() as session:
        init = psutil.Process(init_pid(session))
        session.run("import os\nos.mkdir('closed')\nos.chmod('closed', 0)")
        session.run("open('f', 'w').write('x')")
        before = held()
        for number in range(20):
            session.run(f"open('f', 'w').write('{number}')")
        after = held()
        stayed = before.keys() & after.keys()
        assert len(stayed) >= 2  # the worker and the helper of workspace snapshots
        # Up to three may be new: the file in which the worker's snapshots are kept up to date, and
        # those that track whether they can be.
        assert all(after[process] <= before[process] + 3 for process in stayed)


@pytest.mark.parametrize("many", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_many_open_sessions_all_answer(sandbox: Sandbox, many: int) -> None:
    _open_and_close(sandbox)
    before = belongings(sandbox)
    sessions = [sandbox.session() for _ in range(many)]
    try:
        for number, session in enumerate(sessions):
            assert session.run(f"number = {number}").ok
        assert [session.get("number") for session in sessions] == list(range(many))
        assert sandbox.statistics().open == many
    finally:
        for session in sessions:
            session.close()
    assert left_over(sandbox, before) == []


def test_a_session_receives_bulk_values_without_keeping_their_descriptors(
    sandbox: Sandbox,
) -> None:
    with sandbox.session(limits=Limits(open_files=32)) as session:
        for number in range(100):
            session.set("text", f"{number}" + "x" * 200_000)
        assert session.run("text[:2]").value == "'99'"
        session.run("import os, contextlib\nheld = []")
        session.run(
            "for fd in os.listdir('/proc/self/fd'):\n"
            "    with contextlib.suppress(OSError): held.append(os.readlink(f'/proc/self/fd/{fd}'))"
        )
        # Three streams, the worker's socket, and that of its snapshots.
        assert len(session.get("held")) == 5


def test_a_host_with_many_descriptors_can_open_sessions(sandbox: Sandbox) -> None:
    """Above 1,024, where select(2) ends."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"this system allows {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    taken: list[int] = []
    try:
        while not taken or taken[-1] < 1100:
            taken.append(os.dup(0))
        _open_and_close(sandbox)
        _with_host_functions(sandbox)
        _killed(sandbox)
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_closed_sandbox_leaves_nothing_behind() -> None:
    def use(**arguments: Any) -> None:
        with Sandbox(**arguments) as sandbox:
            _with_host_functions(sandbox)
            left = sandbox.session()
            assert left.run("pass").ok

    def held() -> tuple[Any, ...]:
        children = psutil.Process().children(recursive=True)
        return opened("self"), _mounts("self"), frozenset(children)

    use()
    before = held()
    known = set(threading.enumerate())
    for _ in range(3):
        use()
        use(ready=2)
        with pytest.raises(SandboxError):
            Sandbox(preload=["no_such_module"])
    gc.collect()
    for thread in set(threading.enumerate()) - known:
        thread.join(PATIENCE)
        assert not thread.is_alive(), thread
    assert comes_to(lambda: _more(before, held()), []) == []
