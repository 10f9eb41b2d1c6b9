"""Cells and calls to the host of a session, each by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from repl_sandbox import Answer, Finished, Killed, Limits, Raised, TimedOut
from repl_sandbox.errors import RemoteProtocolError
from repl_sandbox.protocol.messages import (
    STREAMS,
    Answered,
    Execute,
    HostCall,
    HostReply,
    Restored,
    Result,
    Save,
    Value,
)
from repl_sandbox.session.calls import MAX_OPEN_CALLS, FunctionExecutor, HostCallHandler, OpenCalls
from repl_sandbox.session.cells import CellExecution
from repl_sandbox.session.core import MessageDispatch
from repl_sandbox.session.host_functions import check
from repl_sandbox.session.output import OutputCapture
from repl_sandbox.session.recovery import Recovery
from repl_sandbox.session.running_cell import CellClocks
from repl_sandbox.types import AnyOutcome, ErrorInfo, State
from tests.sandbox.session.session_peer import Peer, drive, ready

NOTHING = b"[[],{}]"


class Inline(FunctionExecutor):
    """Runs functions at once, in the caller's thread."""

    def start(self, function: Any, call: HostCall, places: Any, running: Any, done: Any) -> None:
        """Reply with what `function` returns."""
        with running.stopwatch:
            value = function()
        done(HostReply(call.call, True, str(value).encode()))

    def wait_for(self, awaited: Any, call: HostCall, running: Any, done: Any) -> None:
        """Accept."""
        awaited.close()
        done(HostReply(call.call, True, b"null"))


class Restarting(Recovery):
    """Replaces a dead worker by a live one, without a process."""

    came_to: State = "rolled_back"
    copy = 0  # the cell of the snapshot that takes over

    def collect_death(self) -> Generator[float, Any, None]:
        """Wait for the notice."""
        self._io.ignore_worker()
        while self._worker.notice is None:
            self._io.receive((yield 0.0))

    def revive(self) -> Generator[float, Any, State]:
        """Another worker is there."""
        yield from ()
        self._io.answer = Restored(self.copy, ())
        return self.came_to


class Host(Peer):
    """The parts that a cell needs, and the ends of worker and init."""

    def __init__(
        self,
        functions: dict[str, Any] | None = None,
        accept: Any = None,
        grace: float = 60.0,
    ) -> None:
        super().__init__(handler=False)
        self.output = OutputCapture(self.links.stdout, self.links.stderr, 1 << 20)
        self.open_calls = OpenCalls(check(functions), Inline())
        self.calls = HostCallHandler(self.io, self.cell, self.open_calls, self.output, accept)
        self.io.listen(MessageDispatch(self.io, self.cell, self.calls, self.output))
        self.io.set_reply_fds(self.open_calls.reply_fds)
        self.recovers = Restarting(self.io, self.cell, self.completion, {}, 3)
        limits = Limits(timeout=60, grace=grace)
        self.cells = CellExecution(
            self.io, self.cell, self.calls, self.output, self.recovers, self.completion, limits
        )

    def close(self) -> None:
        """Let go of all ends."""
        self.open_calls.close()
        super().close()

    def run(self, *acts: Callable[[], object], timeout: float = 60.0) -> AnyOutcome:
        """The outcome of a cell, while `acts` are done."""
        self.cells.begin(b"code", timeout, None)
        self.heard = self.hear()
        return drive(self.cells.run(), self.io, *acts)

    def end(self, **fields: Any) -> Callable[[], None]:
        """The worker's result of the cell that runs."""
        told = {"value": None, "error": None, "changes": (), "figures": (), "peak_memory": 5}
        return lambda: self.say(Result(self.cell.number, **(told | fields)))

    def running(self) -> None:
        """A cell runs."""
        self.cells.begin(b"code", 60.0, None)
        self.cell.start_clocks()
        self.hear()


Make = Callable[..., Host]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Host] = []

    def make(**arguments: Any) -> Host:
        made.append(Host(**arguments))
        return made[-1]

    yield make
    for host in made:
        host.close()


@pytest.fixture
def host(make: Make) -> Host:
    return make(functions={"f": lambda: 42})


# ── Cells ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_lone_result_ends_the_cell_at_once(host: Host) -> None:
    for number, fields in ((1, {}), (2, {"value": "42"})):
        host.cells.begin(b"x", 60.0, None)
        assert host.hear() == [Execute(number, b"x")]
        host.end(**fields)()
        outcome = host.cells.try_finish(ready(host.io))
        assert isinstance(outcome, Finished) and outcome.value == fields.get("value")
        assert outcome.usage.peak_memory == 5 and host.recovers.history.last == number
        assert not host.cell.running_since


def test_output_before_a_result_belongs_to_its_cell(host: Host) -> None:
    host.cells.begin(b"x", 60.0, None)
    host.hear()
    os.write(host.stdout, b"text")
    host.end()()
    assert host.cells.try_finish(ready(host.io)) is None
    outcome = drive(host.cells.run(), host.io)
    assert isinstance(outcome, Finished) and outcome.stdout == "text"
    assert host.output.history.text(1, "stdout", 0, 9) == "text"


def test_an_error_is_raised(host: Host) -> None:
    outcome = host.run(host.end(error=ErrorInfo("ValueError", "no", "trace", None)))
    assert isinstance(outcome, Raised) and outcome.error.message == "no"


def test_a_cell_over_its_time_is_interrupted_and_keeps_its_state(host: Host) -> None:
    host.cells.begin(b"while True: pass", -1.0, None)
    host.hear()
    steps = host.cells.run()
    next(steps)
    steps.send([])
    assert host.hear_orders() == ["interrupt"]
    host.send({"interrupted": 1})
    host.end()()
    outcome = drive(steps, host.io, begun=True)
    assert isinstance(outcome, TimedOut) and outcome.state == "kept"


def test_a_cell_that_ignores_its_interrupt_loses_its_worker(make: Make) -> None:
    host = make(grace=1e-9)
    host.cells.begin(b"while True: pass", -1.0, None)
    steps = host.cells.run()
    next(steps)
    steps.send([])
    steps.send([])
    assert host.hear_orders() == ["interrupt", "kill"]
    host.die(signal.SIGKILL)
    outcome = drive(steps, host.io, begun=True)
    assert isinstance(outcome, TimedOut) and outcome.state == "rolled_back"


@pytest.mark.parametrize(
    ("status", "reason"),
    [(1 << 8, "exit"), (signal.SIGSEGV, "signal"), (signal.SIGXCPU, "cpu"), (9, "signal")],
)
def test_a_death_has_a_reason_and_a_state(host: Host, status: int, reason: str) -> None:
    outcome = host.run(lambda: host.die(status))
    assert isinstance(outcome, Killed)
    assert (outcome.reason, outcome.state) == (reason, "rolled_back")
    assert not host.recovers.history


def test_a_cell_that_was_copied_before_its_worker_died_has_ended(host: Host) -> None:
    def end_and_die() -> None:
        host.end(value="42")()
        host.die(9)

    host.recovers.copy = 1
    outcome = host.run(end_and_die)
    assert isinstance(outcome, Finished)
    assert (outcome.value, outcome.state, host.recovers.history.last) == ("42", "kept", 1)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("worker", "lost", ("a thread",)),
        ("worker", "emptied", True),
        ("worker", "eof", True),
        ("worker", "notice", {"died": 1, "status": 9, "cpu": 0.0}),
        ("init", "unacknowledged", 1),
    ],
)
def test_a_result_with_pending_reports_does_not_end_the_cell_at_once(
    host: Host, part: str, name: str, value: object
) -> None:
    host.cells.begin(b"x", 60.0, None)
    host.hear()
    setattr(getattr(host.io, part), name, value)
    host.end()()
    assert host.cells.try_finish(ready(host.io)) is None
    assert host.cell.result is not None and host.cell.running_since


def test_a_result_of_another_cell_is_a_breach(host: Host) -> None:
    def lie() -> None:
        host.say(Result(7, None, None, (), (), 5))
        host.die(9)

    outcome = host.run(lie)
    assert isinstance(outcome, Killed) and outcome.reason == "protocol"


def test_losses_between_cells_are_reported_by_the_next(host: Host) -> None:
    host.io.worker.lost, host.io.worker.emptied = ("a thread",), True
    outcome = host.run(host.end())
    assert (outcome.lost, outcome.state) == (("a thread",), "restarted")
    outcome = host.run(host.end())
    assert (outcome.lost, outcome.state) == ((), "kept")


def test_an_internal_job_takes_no_number_and_is_no_part_of_the_history(host: Host) -> None:
    host.run(host.end())
    host.cells.begin_job(lambda cell: Save(cell, 9), host.stdout, 60.0)
    (save,) = host.hear()
    assert isinstance(save, Save) and save.cell > 1 << 50
    outcome = drive(host.cells.run(), host.io, host.end(value="report"))
    assert isinstance(outcome, Finished) and outcome.value == "report"
    assert host.cell.number == 1 and host.recovers.history.last == 1
    host.io.withdraw()


def test_refused_forks_are_reported_with_the_outcome(host: Host) -> None:
    host.cells.limit_hits.note_process_limit()  # while nothing runs
    assert not host.cells.limit_hits.full
    outcome = host.run(host.cells.limit_hits.note_process_limit, host.end())
    assert outcome.limits == ("processes",)
    assert host.run(host.end()).limits == ()


# ── HostCalls ─────────────────────────────────────────────────────────────────────────────────────


def refusals(host: Host) -> list[bytes]:
    """The text of the refused call."""
    replies = host.hear()
    assert all(isinstance(reply, HostReply) and not reply.ok for reply in replies), replies
    return [reply.data for reply in replies if isinstance(reply, HostReply)]


def test_a_function_is_called_and_its_reply_is_sent(host: Host) -> None:
    host.running()
    host.calls.take(HostCall(1, 1, "f", NOTHING))
    host.calls.reply()
    assert host.hear() == [HostReply(1, True, b"42")]
    assert host.cell.clocks is not None
    assert not host.cell.clocks.paused and host.calls.count == 1


def test_the_clock_pauses_while_any_function_runs() -> None:
    clocks = CellClocks(10, 5, now=100.0, cpu=0.0)
    assert clocks.next_check(100.0, 0.0) == 105.0  # a function could begin at any time
    clocks.function_begins(101.0, 0.0)
    clocks.function_begins(102.0, 0.0)
    assert clocks.paused
    clocks.function_ends(103.0, 0.0)
    clocks.function_ends(104.0, 0.5)  # half a second of which another thread computed
    assert (clocks.paused, clocks.waiting(105.0, 0.5), clocks.execution(105.0, 0.5)) == (
        False,
        2.5,
        2.5,
    )
    assert clocks.next_check(105.0, 0.5) == 107.5
    clocks.function_begins(106.0, 0.5)
    assert clocks.expired(108.0, 0.5) is None
    assert clocks.expired(108.5, 0.5) == "host_call"


def test_a_call_on_its_way_to_its_function_is_execution() -> None:
    """Calls that are always open, of functions that take no time, do not stop the clock."""
    clocks = CellClocks(10, 100, now=0.0, cpu=0.0)
    for second in range(10):
        clocks.function_begins(second + 0.25, 0.0)
        clocks.function_ends(second + 0.25, 0.0)
    assert clocks.expired(10.0, 0.0) == "execution"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (HostCall(1, 2, "f", NOTHING), b"Cancelled"),
        (HostCall(1, 1, "g", NOTHING), b"NameError"),
        (HostCall(1, 1, "f", b"[[],{}]" + b" " * 1000), b"TooManyCalls"),
        (HostCall(1, 2, STREAMS, NOTHING), b"Cancelled"),
    ],
)
def test_an_invalid_call_is_refused(
    host: Host, monkeypatch: pytest.MonkeyPatch, call: HostCall, words: bytes
) -> None:
    monkeypatch.setattr("repl_sandbox.session.calls.MAX_OPEN_BYTES", 1000)
    host.running()
    host.calls.take(call)
    (refusal,) = refusals(host)
    assert words in refusal and host.calls.count == 0


def test_calls_between_cells_are_refused(host: Host) -> None:
    for call in (HostCall(1, 0, "f", NOTHING), HostCall(2, 1, "f", NOTHING)):
        host.calls.take(call)
    answer = Answered(3, 0, Answer("FINAL", "42"))
    host.calls.take_answer(answer)
    assert len(refusals(host)) == 3 and host.cell.answers.all() == ()


def test_calls_are_bounded_and_have_a_number_each(host: Host) -> None:
    host.running()
    for number in range(MAX_OPEN_CALLS + 1):
        host.calls.take(HostCall(number, 1, "f", NOTHING))
    (refusal,) = refusals(host)
    assert b"TooManyCalls" in refusal
    with pytest.raises(RemoteProtocolError):
        host.calls.take(HostCall(0, 1, "f", NOTHING))


def test_calls_that_are_open_when_the_cell_ends_are_refused(host: Host) -> None:
    host.running()
    host.calls.take(HostCall(1, 1, "f", NOTHING))
    host.calls.cancel_open()
    (refusal,) = refusals(host)
    assert b"Cancelled" in refusal
    host.calls.reply()  # which arrived meanwhile
    assert host.hear() == [] and not host.open_calls.running


def test_output_is_delivered_while_the_worker_reads(host: Host) -> None:
    host.running()
    host.calls.take(HostCall(1, 1, STREAMS, NOTHING))
    assert host.io.send_buffer.is_read() is False
    host.calls.take(HostCall(2, 1, STREAMS, NOTHING))
    given, refused = host.hear()
    assert given == HostReply(1, True, b"null") and host.descriptors == 2
    assert isinstance(refused, HostReply) and not refused.ok


def test_answers_are_kept_in_order(host: Host) -> None:
    host.running()
    for number, text in enumerate(("one", "two")):
        host.calls.take_answer(Answered(number, 1, Answer("FINAL", text)))
    assert [each.text for each in host.cell.answers.all()] == ["one", "two"]
    assert host.hear() == [HostReply(0, True, b"null"), HostReply(1, True, b"null")]


def test_a_refused_answer_is_not_kept(make: Make) -> None:
    def refuse(answer: Answer) -> None:
        raise ValueError(f"not {answer.text}")

    host = make(accept=refuse)
    host.running()
    host.calls.take_answer(Answered(1, 1, Answer("FINAL", "42")))
    assert b"not 42" in refusals(host)[0] and host.cell.answers.all() == ()


def test_an_answer_may_be_validated_by_a_coroutine(make: Make) -> None:
    async def accept(answer: Answer) -> None:
        pass

    host = make(accept=accept)
    host.running()
    host.calls.take_answer(Answered(1, 1, Answer("FINAL", "42")))
    assert host.cell.answers.all() == ()
    host.io.receive(ready(host.io))  # its verdict is among what is waited for
    assert [each.text for each in host.cell.answers.all()] == ["42"]
    assert host.hear() == [HostReply(1, True, b"null")]


# ── Dispatch ──────────────────────────────────────────────────────────────────────────────────────


def test_each_message_has_its_handler(host: Host) -> None:
    host.running()
    dispatch = MessageDispatch(host.io, host.cell, host.calls, host.output)
    dispatch.take(Value(b"1"))
    assert host.io.answer == Value(b"1")
    dispatch.take(HostCall(1, 1, "f", NOTHING))
    dispatch.wake(host.open_calls.reply_fds[0])
    assert host.hear() == [HostReply(1, True, b"42")]
    dispatch.take(Answered(2, 1, Answer("FINAL", "42")))
    assert len(host.cell.answers.all()) == 1
    result = Result(1, "v", None, (), (), 5)
    dispatch.take(result)
    assert host.cell.result == result
    with pytest.raises(RemoteProtocolError):
        dispatch.take(Result(2, "v", None, (), (), 5))
    os.write(host.stderr, b"text")
    dispatch.wake(host.links.stderr)
    assert host.output.end(1) == ("", "text")
