"""A tree of runs as its events: a root of two turns, two sub-calls, and a child run.

The events are made by hand, so that a test can compare every written and read field.
"""

from __future__ import annotations

from pathlib import Path

from repl_env.llm.base import Completion, ModelUsage, TokenTrace
from repl_env.models import CodeBlockResult, REPLObservation
from repl_env.rlm import TrajectoryWriter
from repl_env.rlm.budget import Spent
from repl_env.rlm.model_call import (
    AnyEvent,
    CallEnded,
    CallStarted,
    CellRan,
    CellStarted,
    ContextNote,
    ModelReplied,
    RunEnded,
    RunStarted,
    TaskNote,
)

SYSTEM = {"role": "system", "content": "You work in a REPL."}
QUESTION = {"role": "user", "content": "How many?"}
FIRST = "```repl\nparts = llm_query_batched(['a?', 'b?'])\nprint(rlm_query('deep?'))\n```"
REPORT = {"role": "user", "content": "It printed: 3"}
SECOND = "```repl\nFINAL(3)\n```"
DEEP = {"role": "user", "content": "deep?"}


def observed(stdout="", *, figures=(), done=False, **metadata):
    result = CodeBlockResult(stdout=stdout, figures=list(figures), locals_snapshot={"x": "1"})
    return REPLObservation(
        result=result, done=done, reward=0.5, iteration=1, metadata={"error_kind": None, **metadata}
    )


def started(run="0", time=1.0, **fields):
    given = {
        "depth": run.count("."),
        "question": "How many?",
        "model": "m",
        "max_iterations": 5,
        "contexts": (ContextNote("context", "str", 12),),
        "task": TaskNote(name="words", group_id="g1", split="test", difficulty="3", group="counts"),
    }
    return RunStarted(run=run, time=time, **{**given, **fields})


def replied(run="0", turn=1, kept=0, added=(SYSTEM, QUESTION), text=FIRST, **fields):
    completion = Completion(
        text,
        ModelUsage(10, 4, 0.25),
        "stop",
        "m-1",
        TokenTrace((1, 2), (3,), (-0.5,)),
    )
    given = {"time": 2.0, "seconds": 0.5, "completion": completion, **fields}
    return ModelReplied(run=run, turn=turn, kept=kept, added=tuple(added), **given)


def cell_started(run="0", turn=1, cell=1, code="code", time=3.0):
    return CellStarted(run=run, time=time, turn=turn, cell=cell, code=code)


def cell_ran(run="0", turn=1, cell=1, code="code", observation=None, time=4.0):
    observation = observation or observed("3\n")
    return CellRan(
        run=run, time=time, turn=turn, cell=cell, code=code, observation=observation, seconds=1.0
    )


def call_started(call, kind="llm", prompt="a?", cell=1, time=3.1):
    run = call.rpartition(".")[0]
    return CallStarted(
        run=run, time=time, call=call, kind=kind, cell=cell, model=None, prompt=prompt
    )


def call_ended(call, kind="llm", prompt="a?", text="A", cell=1, **fields):
    given = {
        "time": 3.2,
        "model": "m-1",
        "error": None,
        "truncated": False,
        "usage": ModelUsage(1, 2),
        "seconds": 0.1,
        **fields,
    }
    run = call.rpartition(".")[0]
    return CallEnded(run=run, call=call, kind=kind, cell=cell, prompt=prompt, text=text, **given)


def ended(run="0", answer="3", **fields):
    given = {
        "time": 9.0,
        "answer_value": None if answer is None else int(answer),
        "stop_reason": "answer",
        "error_kind": None,
        "reward": 1.0,
        "iterations": 2,
        "own": Spent(calls=2, input_tokens=20, output_tokens=8, usd=0.5),
        "total": Spent(calls=5, input_tokens=40, output_tokens=16, usd=0.75, children=1),
        "seconds": 8.0,
        "ended": "terminated",
        "task_reward": 0.75,
        **fields,
    }
    return RunEnded(run=run, final_answer=answer, **given)


def account() -> tuple[AnyEvent, ...]:
    """The whole tree."""
    return (
        started(),
        replied(),
        cell_started(),
        call_started("0.1"),
        call_started("0.2", prompt="b?"),
        call_ended("0.2", prompt="b?", text="B"),
        call_ended("0.1"),
        call_started("0.3", "rlm", "deep?"),
        started("0.3", question="deep?", contexts=()),
        replied("0.3", added=(SYSTEM, DEEP), text="```repl\nFINAL(3)\n```"),
        cell_started("0.3"),
        cell_ran("0.3", observation=observed(done=True, final_answer="3")),
        ended("0.3", reward=None),
        call_ended("0.3", "rlm", "deep?", "3", usage=ModelUsage(), child=True, model=None),
        cell_ran(),
        replied(turn=2, kept=3, added=(REPORT,), text=SECOND),
        cell_started(turn=2, cell=2),
        cell_ran(turn=2, cell=2, observation=observed(done=True, final_answer="3")),
        ended(),
    )


def write(path: Path, events, **arguments) -> Path:
    """Write a trajectory of these events; its path."""
    with TrajectoryWriter(path, **arguments) as writer:
        for event in events:
            writer(event)
    return path
