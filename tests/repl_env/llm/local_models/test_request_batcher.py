"""Batches: their members, their order, and the absence of starvation."""

from __future__ import annotations

import threading

import pytest

from repl_env.llm.batching import BatchedRequest, RequestBatcher


class Run:
    """Answers each request with itself; blocks in its first batch until released."""

    def __init__(self):
        self.batches = []
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, batch):
        self.batches.append([asked.question for asked in batch])
        self.begun.set()
        assert self.go.wait(60)
        for asked in batch:
            if asked.question == "bad":
                raise ValueError("bad")
            asked.give(asked.question)


def submitted(batches, *questions):
    """Each question with its group, asked while the first batch runs."""
    made = [BatchedRequest(question, group) for question, group in questions]
    for asked in made:
        batches.submit(asked)
    return made


@pytest.fixture
def run():
    return Run()


def begun(run, size):
    batches = RequestBatcher(run, size, wait=0)
    batches.submit(BatchedRequest("first", "a"))
    assert run.begun.wait(60)
    return batches


def test_the_oldest_request_runs_first_with_its_group(run):
    batches = begun(run, 2)
    asked = submitted(batches, ("1", "b"), ("2", "c"), ("3", "b"), ("4", "b"), ("5", "c"))

    run.go.set()

    assert [one.answer.result(60) for one in asked] == ["1", "2", "3", "4", "5"]
    assert run.batches == [["first"], ["1", "3"], ["2", "5"], ["4"]]


def test_a_request_without_a_group_runs_alone(run):
    batches = begun(run, 4)
    asked = submitted(batches, ("1", None), ("2", None), ("3", "a"))

    run.go.set()

    assert [one.answer.result(60) for one in asked] == ["1", "2", "3"]
    assert run.batches[1:] == [["1"], ["2"], ["3"]]


def test_a_cancelled_request_is_not_run(run):
    batches = begun(run, 2)
    asked = submitted(batches, ("1", "a"), ("2", "a"), ("3", "a"), ("4", "a"))
    for dropped in asked[0], asked[2]:
        dropped.answer.cancel()

    run.go.set()

    assert [asked[place].answer.result(60) for place in (1, 3)] == ["2", "4"]
    assert run.batches == [["first"], ["2", "4"]]


def test_an_exception_fails_the_batch_and_the_next_one_runs(run):
    batches = begun(run, 2)
    asked = submitted(batches, ("0", "b"), ("bad", "b"), ("1", "c"))

    run.go.set()

    assert asked[0].answer.result(60) == "0"
    with pytest.raises(ValueError, match="bad"):
        asked[1].answer.result(60)
    assert asked[2].answer.result(60) == "1"


def test_closing_fails_all_requests_and_joins_the_thread(run):
    others = set(threading.enumerate())
    batches = begun(run, 1)
    (waiting,) = submitted(batches, ("1", "a"))
    closing = threading.Thread(target=batches.close, args=(RuntimeError("closed"),))

    closing.start()
    with pytest.raises(RuntimeError, match="closed"):
        waiting.answer.result(60)
    run.go.set()
    closing.join(60)

    assert not closing.is_alive()
    assert run.batches == [["first"]]
    left = set(threading.enumerate()) - others
    assert not [each for each in left if each.name == "repl-env batches"]


def test_the_thread_ends_when_no_request_waits(run, monkeypatch):
    batches = RequestBatcher(run, 1, wait=0)

    def full(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        with pytest.raises(RuntimeError, match="new thread"):
            batches.submit(BatchedRequest("1", "a"))
    run.go.set()
    (asked,) = submitted(batches, ("2", "a"))

    assert asked.answer.result(60) == "2"
    assert run.batches == [["2"]]
