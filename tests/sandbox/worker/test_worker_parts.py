"""The parts of a worker, each by itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from repl_sandbox.errors import CheckpointError
from repl_sandbox.protocol.connection import HostConnection, WorkerConnection
from repl_sandbox.protocol.messages import (
    VERSION,
    Assign,
    Configure,
    Failed,
    Fetch,
    FunctionSchema,
    ListVariables,
    Load,
    Ready,
    Restored,
    Result,
    Save,
    Value,
    Variables,
)
from repl_sandbox.types import Answer, ErrorInfo
from repl_sandbox.worker.branch import ASK_FOR_BRANCH, SnapshotControl
from repl_sandbox.worker.cell_runner import SessionState
from repl_sandbox.worker.lost_resources import LostResources
from repl_sandbox.worker.main import CheckpointRequests, NamespaceRequests
from repl_sandbox.worker.snapshot_table import SnapshotTable
from repl_sandbox.worker.snapshots import Takeover
from tests.internals import set_thread_count
from tests.sandbox.worker.worker_peer import Ended, FakeSnapshots, Peer
from tests.waiting import eventually

LEAVES_TRACERS = "import sys; sys.settrace(lambda *_: None); sys.setprofile(lambda *_: None)"
INTERRUPTED = ErrorInfo("KeyboardInterrupt", "", "KeyboardInterrupt\n", None)


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    set_thread_count(monkeypatch, 0)  # a worker has no threads of the host
    peer = Peer()
    yield peer
    peer.close()


# ── Cells ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "value", "error", "changes"),
    [
        ("pass", None, None, []),
        ("1 + 1", "2", None, []),
        ("x = 1", None, None, [("new", "x")]),
        ("'\ud800'", None, "SyntaxError", []),
        ("1 / 0", None, "ZeroDivisionError", []),
        ("raise SystemExit", None, "SystemExit", []),
        ("raise KeyboardInterrupt", None, "KeyboardInterrupt", []),
        (LEAVES_TRACERS, None, None, [("new", "sys")]),
    ],
)
def test_a_cell_has_a_result(
    peer: Peer, code: str, value: str | None, error: str | None, changes: list[tuple[str, str]]
) -> None:
    result = peer.execute(1, code)
    assert (result.cell, result.value) == (1, value)
    assert (result.error and result.error.type) == error
    assert [(change.kind, change.name) for change in result.changes] == changes
    assert peer.session.used and not peer.interrupts.armed
    assert sys.gettrace() is None and sys.getprofile() is None
    assert len(peer.streams.looks) == 1


def test_a_cell_may_call_the_host_until_its_end(peer: Peer) -> None:
    seen: list[int] = []
    peer.namespace.inject("look", lambda: seen.append(peer.calls.cell))
    peer.execute(7, "look()")
    assert seen == [7] and peer.calls.cell == 0


def test_an_interrupt_that_came_before_its_cell_ends_that_one_alone(peer: Peer) -> None:
    assert peer.execute(1, "9").value == "9"
    os.kill(os.getpid(), signal.SIGINT)
    peer.table.interrupted = 2
    assert peer.execute(2, "9").error == INTERRUPTED
    assert peer.execute(3, "9").value == "9"


def test_the_last_snapshot_is_waiting_before_code_runs(peer: Peer) -> None:
    peer.session.snapshots = peer.snapshots
    peer.namespace.inject("log", peer.snapshots.log)
    peer.execute(3, "log.append('code')")
    assert peer.snapshots.log == ["wait_until_detached", "code"]
    assert peer.snapshots.due and peer.snapshots.cell == 3


@pytest.mark.parametrize(("ago", "rapid"), [(1000, False), (-1000, True)])
def test_a_cell_soon_after_another_skips_optional_work(peer: Peer, ago: float, rapid: bool) -> None:
    peer.session.snapshots = peer.snapshots
    peer.session.ended = time.monotonic() - ago
    peer.execute(1, "1")
    assert peer.session.rapid is rapid


def test_a_worker_that_init_cannot_reach_gives_up(peer: Peer) -> None:
    peer.session.snapshots, peer.snapshots.connected = peer.snapshots, False
    with pytest.raises(Ended):
        peer.execute(1, "1")
    assert not peer.hear()


@pytest.mark.parametrize(
    ("code", "status", "parting"),
    [
        ("1", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("exit('bye')", 1, "bye\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
    ],
)
def test_a_forked_child_at_the_end_of_a_cell_sends_no_result(
    peer: Peer, code: str, status: int, parting: str
) -> None:
    peer.process.forked = True
    with pytest.raises(Ended):
        peer.execute(1, code)
    assert peer.process.ran is not None and not peer.hear()
    assert peer.process.ran.status == status and peer.process.ran.exit_text.endswith(parting)


def test_prefaulting_pages_changes_no_content(peer: Peer) -> None:
    before = dict(peer.namespace.globals)
    peer.cells.touch_pages()
    assert not peer.hear() and peer.namespace.globals == before
    assert not peer.session.used and not peer.interrupts.armed


# ── internal jobs ─────────────────────────────────────────────────────────────────────────────────


def _closes(fd: int) -> str:
    os.close(fd)
    return "closed"


def _raises(fd: int) -> str:
    raise ZeroDivisionError


def _is_interrupted(fd: int) -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "not interrupted"


@pytest.mark.parametrize(
    ("job", "value", "error"),
    [
        (lambda fd: os.pread(fd, 9, 0).decode(), "text", None),
        (_closes, "closed", None),
        (_raises, None, "ZeroDivisionError"),
        (_is_interrupted, None, "KeyboardInterrupt"),
    ],
)
def test_a_job_ends_with_a_result_and_leaves_no_file(
    peer: Peer, job: Callable[[int], str], value: str | None, error: str | None
) -> None:
    peer.session.snapshots = peer.snapshots
    with open(os.memfd_create("job"), "w+b", buffering=0) as file:
        file.write(b"text")
        peer.calls.file = file.fileno()
        command = peer.ask(Save(4, 9))
        before = set(os.listdir("/proc/self/fd"))
        peer.cells.run_job(command.cell, job)
        # Threads of other tests open and close theirs.
        eventually(lambda: set(os.listdir("/proc/self/fd")) <= before)
    (result,) = peer.hear()
    assert isinstance(result, Result) and (result.cell, result.value) == (4, value)
    assert (result.error and result.error.type) == error
    assert peer.session.used and peer.snapshots.due and not peer.interrupts.armed


def test_a_job_without_its_file_fails(peer: Peer) -> None:
    peer.ask(Save(4, 9))
    peer.cells.run_job(4, _closes)
    (result,) = peer.hear()
    assert isinstance(result, Result) and result.error and result.error.type == "OSError"


# ── Checkpoints ───────────────────────────────────────────────────────────────────────────────────


def test_a_saved_value_is_loaded_and_no_change_of_the_next_cell(peer: Peer) -> None:
    # A worker has it from its template's path.
    pytest.importorskip("repl_sandbox.worker.checkpoint", exc_type=CheckpointError)
    checkpoints = CheckpointRequests(peer.session, peer.cells, peer.namespace, peer.changes)
    with open(os.memfd_create("checkpoint"), "w+b", buffering=0) as file:
        file.truncate(1 << 20)
        peer.calls.file = file.fileno()
        peer.execute(1, "x = [1, 2]")
        checkpoints.save(peer.ask(Save(2, 1 << 20)))
        (saved,) = peer.hear()
        assert isinstance(saved, Result) and saved.value and saved.error is None
        del peer.namespace.globals["x"]
        checkpoints.load(peer.ask(Load(3, saved.value.encode())))
        (loaded,) = peer.hear()
        assert isinstance(loaded, Result) and (loaded.value, loaded.error) == ("[]", None)
    result = peer.execute(4, "x")
    assert (result.value, result.changes) == ("[1, 2]", ())


# ── Questions ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def questions(peer: Peer) -> NamespaceRequests:
    return NamespaceRequests(peer.session, peer.channel, peer.calls, peer.namespace, peer.changes)


def test_configured_variables_exist_and_are_no_change(
    peer: Peer, questions: NamespaceRequests
) -> None:
    variables = (Assign("x", "json", b"[1]"),)
    questions.configure(peer.ask(Configure((FunctionSchema("ask"),), 5, "strict", variables)))
    result = peer.execute(1, "ask = 1")
    assert {each.name for each in result.changes} == {"ask"}
    result = peer.execute(2, "import random; x, callable(ask), callable(FINAL), random.random()")
    assert result.value == "([1], True, True, 0.6229016948897019)"
    assert peer.session.answers is not None and peer.session.printed is None


def test_an_answer_is_reported_once_when_a_cell_ends(
    peer: Peer, questions: NamespaceRequests
) -> None:
    told: list[Answer] = []
    peer.calls.answer = told.append  # type: ignore[assignment,method-assign]
    questions.configure(Configure(answers="strict"))
    for number in (1, 2):  # the second changes nothing
        peer.execute(number, "answer = {'content': 4, 'ready': True}")
    assert [answer.text for answer in told] == ["4"]


def test_printed_answers_are_found_where_configured(
    peer: Peer, questions: NamespaceRequests
) -> None:
    questions.configure(Configure(answers="compatible"))
    assert peer.session.printed is not None


@pytest.mark.parametrize(
    ("kind", "data", "answer"),
    [
        ("json", b"2", Value(b"null")),
        ("str", b"two", Value(b"null")),
        ("json", b"[" * 100_000, Failed("too large", "RecursionError")),
    ],
)
def test_a_variable_is_bound_or_refused(
    peer: Peer, questions: NamespaceRequests, kind: str, data: bytes, answer: Value | Failed
) -> None:
    peer.session.snapshots = peer.snapshots
    questions.assign(peer.ask(Assign("x", kind, data)))
    (told,) = peer.hear()
    bound = isinstance(answer, Value)
    assert type(told) is type(answer) and ("x" in peer.namespace.globals) is bound
    assert isinstance(told, Value) or (isinstance(told, Failed) and told.kind == "too large")
    assert peer.snapshots.due is bound and peer.changes.since_last() == []


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("x", Value(b"[1]")),
        ("none", Failed("unknown", "no variable 'none'")),
        (ASK_FOR_BRANCH, Failed("unknown", "no variable ' '")),
        ("f", Failed("not json", "Object of type function is not JSON serializable")),
    ],
)
def test_a_value_is_sent_or_reported_as_unavailable(
    peer: Peer, questions: NamespaceRequests, name: str, answer: Value | Failed
) -> None:
    peer.namespace.globals.update(x=[1], f=lambda: None)
    questions.fetch(peer.ask(Fetch(name)))
    (told,) = peer.hear()
    assert type(told) is type(answer)
    assert told == answer or (isinstance(told, Failed) and told.kind == "not json")


def test_variables_are_listed(peer: Peer, questions: NamespaceRequests) -> None:
    peer.namespace.globals.update(x=1, _y="2")
    questions.list_variables(peer.ask(ListVariables()))
    (told,) = peer.hear()
    assert isinstance(told, Variables)
    assert [(each.name, each.preview) for each in told.variables] == [("x", "1"), ("_y", "'2'")]


# ── Snapshots ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def snapshot_control(peer: Peer) -> SnapshotControl:
    return SnapshotControl(
        peer.session, peer.process, peer.channel, peer.calls, peer.namespace, peer.cells
    )


def takeover(cell: int = 5, *, announced: bool = False) -> tuple[socket.socket, Takeover]:
    """Return the host's end of a new connection, and the state of an activated snapshot for it."""
    ours, theirs = socket.socketpair()
    return ours, Takeover(
        theirs.detach(), cell, LostResources([], ["a thread"]), 0, announced=announced
    )


@pytest.mark.parametrize(
    ("spoken", "rapid", "waits_for_host"),
    [(False, False, True), (True, False, False), (True, True, False)],
)
def test_an_idle_worker_waits_in_its_snapshot_while_its_host_is_idle(
    peer: Peer, snapshot_control: SnapshotControl, spoken: bool, rapid: bool, waits_for_host: bool
) -> None:
    peer.session.used, peer.session.rapid = True, rapid
    if spoken:
        peer.socket.sendall(b"x")
    snapshot_control.make(peer.snapshots)
    assert peer.snapshots.log == [("make", waits_for_host)] and not peer.snapshots.due
    assert peer.session.rapid is rapid


def test_pages_are_prefaulted_quickly_and_copied_again_later(
    peer: Peer, snapshot_control: SnapshotControl
) -> None:
    peer.session.used = peer.session.rapid = True
    snapshot_control.make(peer.snapshots)
    assert peer.snapshots.log == [("make", False)]
    assert peer.snapshots.due and not peer.session.rapid


def test_a_worker_goes_on_without_a_snapshot(
    peer: Peer, snapshot_control: SnapshotControl, capfd: pytest.CaptureFixture[str]
) -> None:
    peer.session.used, peer.snapshots.comes = True, ValueError("of the code's")
    snapshot_control.make(peer.snapshots)
    assert capfd.readouterr().err == "no snapshot of the session was made: ValueError\n"


@pytest.mark.parametrize("announced", [False, True])
def test_an_activated_snapshot_is_the_worker(
    peer: Peer, snapshot_control: SnapshotControl, announced: bool
) -> None:
    peer.calls.cell, peer.calls.forked, peer.session.used = 3, True, True
    peer.socket.close()
    peer.socket, peer.snapshots.comes = takeover(announced=announced)
    snapshot_control.make(peer.snapshots)
    peer.connection = HostConnection()
    begun = [Ready(VERSION), Restored(5, ("a thread",))]
    if announced:  # by the worker that it was forked from
        assert not peer.hear()
        other = WorkerConnection()
        assert list(peer.connection.receive(b"".join(map(other.send, begun)))) == begun
    else:
        assert peer.hear() == begun
    assert (peer.calls.cell, peer.calls.forked, peer.snapshots.due) == (0, False, True)
    assert peer.process.begun == 1
    result = peer.execute(6, "1")
    assert result.value == "1"


def test_a_request_for_a_branch_is_answered_with_no_such_variable(
    peer: Peer, snapshot_control: SnapshotControl
) -> None:
    peer.ask(Fetch(ASK_FOR_BRANCH))
    snapshot_control.branch(peer.snapshots)
    assert peer.hear() == [Failed("unknown", "no variable ' '")]
    assert not peer.snapshots.due


def test_a_branch_begins_its_own_conversation(
    peer: Peer, snapshot_control: SnapshotControl
) -> None:
    peer.ask(Fetch(ASK_FOR_BRANCH))
    host, peer.snapshots.comes = takeover()
    host.sendall(b"x")  # a branch waits for its first command
    snapshot_control.branch(peer.snapshots)
    assert peer.hear() == [Failed("unknown", "no variable ' '")]
    peer.socket.close()
    peer.socket = host
    assert peer.hear(HostConnection()) == [Ready(VERSION), Restored(5, ("a thread",))]


def test_an_incomplete_branch_ends(peer: Peer, snapshot_control: SnapshotControl) -> None:
    peer.ask(Fetch(ASK_FOR_BRANCH))
    host, peer.snapshots.comes = takeover()
    host.close()  # so that it cannot send `Ready`
    pid = os.fork()
    if pid == 0:
        try:
            snapshot_control.branch(peer.snapshots)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


# ── SessionState ──────────────────────────────────────────────────────────────────────────────────


def test_an_interrupt_is_read_from_the_shared_page_of_the_branch() -> None:
    session = SessionState()
    assert session.interrupted() == 0
    session.changed()  # unknown to the host
    session.table, own = SnapshotTable(), SnapshotTable()
    session.table.interrupted, own.interrupted = 1, 2
    assert session.interrupted() == 1
    session.snapshots = FakeSnapshots(own)
    assert session.interrupted() == 2
    session.changed()
    assert session.snapshots.due
    session.table.close()
    own.close()


# ── WorkerProcess ─────────────────────────────────────────────────────────────────────────────────

_CHILD = """
import os
from repl_sandbox.worker.evaluation import CellRun
from repl_sandbox.worker.cell_runner import WorkerProcess
from repl_sandbox.worker.streams import StandardStreams

process = WorkerProcess(StandardStreams(lambda: (1, 2)))
process.begin()
process.measure()
assert process.peak_memory > 1 << 20 and not process.is_forked_child()
pid = os.fork()
if pid == 0:
    assert process.is_forked_child()
    process.end_child(CellRun("value", None, 7, "parting\\n"))
print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
process.exit_without_snapshot()
"""


def test_a_forked_child_exits_as_a_program_does() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _CHILD], check=False, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (1, "child 7\n")
    assert ran.stderr == "parting\nthe cell closed descriptors of the session itself\n"
