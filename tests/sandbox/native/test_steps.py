"""Batches of system calls: performed rows, failures that stop them, and corrupt tables."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_sandbox.native import library
from repl_sandbox.native.libc import call
from repl_sandbox.native.library import (
    REFUSED,
    Address,
    Failure,
    Preset,
    Slot,
    StepError,
    SyscallBatch,
    SyscallRow,
)
from tests.internals import packed_rows

WRITTEN, OPENED, RESULT = Slot(0), Slot(1), Slot(2)


@contextmanager
def a_pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe, closed afterwards."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for fd in ends:
            os.close(fd)


def performed(reading: int, writing: int) -> bytes:
    """Return the output of rows so far."""
    os.write(writing, b".")
    return os.read(reading, 1 << 12)[:-1]


# A row that writes a letter when it is performed.
def says(letter: int) -> SyscallRow:
    return call("write", WRITTEN, bytes([letter]), 1, least=1)


FAILS = {
    "a bad descriptor": (call("close", -1), errno.EBADF),
    "a bad address": (call("chdir", 1), errno.EFAULT),
    "no such call": (SyscallRow("none", 9999, ()), errno.ENOSYS),
    "a result that is too small": (call("close_range", -1, -1, 0, least=1), 0),
    "another result": (call("close_range", -1, -1, 0, least=-7, exactly=True), 0),
    "no failure where one is due": (call("close_range", -1, -1, 0, least=REFUSED), 0),
    "an errno that is not tolerated": (call("close", -1, tolerated=(errno.EPERM,)), errno.EBADF),
}


@given(
    steps=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    fails=st.sampled_from(sorted(FAILS)),
    data=st.data(),
)
def test_a_batch_stops_at_the_row_that_fails(
    steps: list[int], fails: str, data: st.DataObject
) -> None:
    """At each index: rows before it were performed, none after it was, and its step is named."""
    bad = data.draw(st.integers(0, sum(steps)))
    letters = iter(range(1, 200))
    rows: list[tuple[str, list[SyscallRow]]] = []
    expected, index = "", 0
    for number, size in enumerate(steps):
        made = [says(next(letters)) for _ in range(size)]
        if not expected and index + size >= bad:
            made.insert(bad - index, FAILS[fails][0])
            expected = f"step {number}"
        index += size
        rows.append((f"step {number}", made))
    with a_pipe() as (reading, writing):
        batch = SyscallBatch([("slots", [Preset(WRITTEN, writing)]), *rows])
        with pytest.raises(StepError) as caught:
            batch.run()
        assert performed(reading, writing) == bytes(range(1, bad + 1))
    assert caught.value.step == expected
    assert caught.value.errno == FAILS[fails][1]
    assert batch.table.failure.row == bad


def test_results_of_rows_are_passed_on() -> None:
    with a_pipe() as (reading, writing):
        os.write(writing, b"ab")
        rows: list[SyscallRow | Preset] = [
            Preset(WRITTEN, reading),
            call("dup3", WRITTEN, 500, os.O_CLOEXEC, keeps=OPENED),
            call("read", OPENED, Address(RESULT), 2, least=2),
            call("close", OPENED),
        ]
        batch = SyscallBatch([("all", rows)])
        batch.run()
        assert batch.slots[OPENED] == 500
        assert batch.slots[RESULT].to_bytes(8, "little") == b"ab" + bytes(6)
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(500)


def test_failures_that_are_tolerated_are_successes() -> None:
    rows = [
        call("close", -1, tolerated=(errno.EPERM, errno.EBADF), keeps=RESULT),
        call("close", -1, least=REFUSED, tolerated=(errno.EBADF,)),
    ]
    batch = SyscallBatch([("all", rows)])
    batch.run()
    assert batch.slots[RESULT] == -errno.EBADF


def test_an_error_names_the_call_and_its_meaning() -> None:
    with pytest.raises(StepError, match=r"^\[Errno 2\] chdir: No such file or directory$"):
        SyscallBatch([("a", [call("chdir", b"/nowhere")])]).run()
    with pytest.raises(StepError, match="nobody has written"):
        SyscallBatch(
            [("a", [call("close_range", -1, -1, 0, least=4, reason="nobody has written")])]
        ).run()


def test_a_signal_is_handled_during_a_batch() -> None:
    """As in CPython: the call is repeated unless the handler raises."""
    heard = []
    with a_pipe() as (reading, writing):

        def handle(number: int, frame: object) -> None:
            heard.append(number)
            if len(heard) == 1:
                os.write(writing, b"1234")

        before = signal.signal(signal.SIGALRM, handle)
        try:
            rows = [
                call("dup3", reading, 500, os.O_CLOEXEC),
                call("read", 500, Address(RESULT), 4, least=4),
                call("close", 500),
            ]
            # Again and again: a signal right before the call does not interrupt it.
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.1)
            SyscallBatch([("read", rows)]).run()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert {*heard} == {signal.SIGALRM}


CORRUPT = {
    "no name": (0, "Q", 0),
    "a number that is none": (8, "i", -1),
    "an argument from a slot that is none": (12, "B", 1 << 1),
    "more arguments than there are": (12, "B", 1 << 6),
    "a result to a slot that is none": (14, "h", 99),
    "a result to a negative slot": (14, "h", -2),
    "an errno that is none": (24, "h", -1),
}


@pytest.mark.parametrize("corrupt", CORRUPT)
@pytest.mark.parametrize("index", range(3))
def test_a_corrupt_table_is_refused_before_its_first_call(corrupt: str, index: int) -> None:
    offset, kind, value = CORRUPT[corrupt]
    with a_pipe() as (reading, writing):
        rows = [call("write", writing, b"x", 1) for _ in range(3)]
        batch = SyscallBatch([("step", rows)])
        size = len(packed_rows(batch)) // 3
        word = {"Q": ctypes.c_uint64, "i": ctypes.c_int, "B": ctypes.c_ubyte, "h": ctypes.c_short}
        word[kind].from_buffer(packed_rows(batch), index * size + offset).value = value
        with pytest.raises(StepError, match="corrupt") as caught:
            batch.run()
        assert caught.value.errno == errno.EINVAL
        assert batch.table.failure.row == index
        assert performed(reading, writing) == b""


@pytest.mark.parametrize(
    ("rows", "count", "slots", "slot_count"), [(0, 1, 0, 0), (1, -1, 0, 0), (1, 1, 0, 3)]
)
def test_tables_without_memory_are_refused(
    rows: int, count: int, slots: int, slot_count: int
) -> None:
    word, pointer = ctypes.c_long, ctypes.c_void_p
    run = library.load().function("run_steps", word, pointer, word, pointer, word, pointer)
    failure = Failure()
    assert run(rows, count, slots, slot_count, ctypes.byref(failure)) == -1
    assert failure.error == errno.EINVAL
