"""A recorded tree of runs as JSON, which `repl-env replay --json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_env.rlm.trajectory.trajectory import Call, Cell, Run, Turn


def as_dict(run: Run) -> dict[str, Any]:
    """Return a run with all below it: new messages of each turn, the number of figures."""
    ended = run.ended
    return {
        "run": run.id,
        "parent": run.parent,
        "depth": run.depth,
        "question": run.question,
        "model": run.model,
        "contexts": [asdict(note) for note in run.contexts],
        "task": None if run.task is None else asdict(run.task),
        "turns": [_turn_dict(turn) for turn in run.turns],
        "calls": [_call_dict(call) for call in run.calls],
        "ended": ended is not None,
        "final_answer": run.final_answer,
        "answer_value": None if ended is None else ended.answer_value,
        "stop_reason": None if ended is None else ended.stop_reason,
        "error_kind": None if ended is None else ended.error_kind,
        "ending": run.ending,
        "reward": run.reward,
        "task_reward": run.task_reward,
        "seconds": None if ended is None else ended.seconds,
        "own": None if ended is None else asdict(ended.own),
        "total": None if ended is None else asdict(ended.total),
    }


def _turn_dict(turn: Turn) -> dict[str, Any]:
    return {
        "turn": turn.number,
        "messages": list(turn.messages[len(turn.messages) - turn.added :]),
        "reply": turn.completion.text,
        "finish_reason": turn.completion.finish_reason,
        "input_tokens": turn.completion.usage.input_tokens,
        "output_tokens": turn.completion.usage.output_tokens,
        "seconds": turn.seconds,
        "last": turn.last,
        "cells": [_cell_dict(cell) for cell in turn.cells],
    }


def _cell_dict(cell: Cell) -> dict[str, Any]:
    fields: dict[str, Any] = {"cell": cell.number, "code": cell.code, "seconds": cell.seconds}
    if cell.observation is not None:
        result = cell.observation.result
        fields |= {
            "success": result.success,
            "stdout": result.stdout,
            "stderr": result.stderr,
            "value": result.value,
            "figures": len(result.figures),
            "error_kind": cell.observation.error_kind,
        }
    return fields


def _call_dict(call: Call) -> dict[str, Any]:
    ended = call.ended
    return {
        "call": call.id,
        "kind": call.kind,
        "cell": call.cell,
        "model": call.model if ended is None else ended.model,
        "prompt": call.prompt,
        "text": call.text,
        "error": call.error,
        "truncated": None if ended is None else ended.truncated,
        "input_tokens": None if ended is None else ended.usage.input_tokens,
        "output_tokens": None if ended is None else ended.usage.output_tokens,
        "seconds": None if ended is None else ended.seconds,
        "child": None if call.child is None else as_dict(call.child),
    }
