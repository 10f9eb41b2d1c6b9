"""Reruns of a recorded tree without its models, and the differences."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from repl_env.common.replay_diff import RESULT, normalized
from repl_env.common.set_module import set_module
from repl_env.concurrency.background_loop import RUNS
from repl_env.errors import EpisodeAborted, ModelError
from repl_env.models import REPLObservation
from repl_env.rlm.budget.budget_limits import Budget
from repl_env.rlm.events import AnyEvent, ContextNote
from repl_env.rlm.rlm_runner import RLM
from repl_env.rlm.trajectory.replay_model import ReplayModel
from repl_env.rlm.trajectory.trajectory import Cell, Run, Trajectory
from repl_env.rlm.trajectory.trajectory_writer import digest

_END = ("final_answer", "answer_value", "stop_reason", "error_kind")
_NO_LIMIT = Budget(calls=None)
# Arguments of `RLM` that a replay takes unchanged from the settings of a trajectory.
_SHARED = ("max_depth", "blocks", "prompts", "examples", "prefix")
# Seconds for a run that is to be given up; the recorded time may be 0.
_LEAST = 0.001


@dataclass(frozen=True, slots=True)
class RunDifference:
    """A difference in run `run`.

    `cell` is the number of the cell; 0: the end of the run, or the run itself. `field` is a dotted
    path; "cell" or "run" if one side lacks it.
    """

    run: str
    cell: int
    field: str
    recorded: Any
    replayed: Any


@set_module("repl_env.rlm")
def rerun(
    trajectory: Trajectory, contexts: Mapping[str, Any] | None = None, **arguments: Any
) -> Trajectory:
    """Run a recorded tree again, in new sessions, with the recorded answers of its models.

    If outputs differ, the model answers by origin, so that all differences become visible.

    Args:
        contexts: those of the root run that are not in the file, by variable.
        arguments: of `RLM`; they override the settings of the file.

    Raises:
        ValueError: a context is missing, or differs from the recorded one; the question is not
            recorded.
    """
    if any(each.began is None for each in trajectory.roots):
        raise ValueError("what the root was asked is not recorded")
    all_contexts = given_contexts(trajectory, contexts or {})
    seed: Any = trajectory.settings.get("seed")
    events: list[AnyEvent] = []
    started = asyncio.Event()

    def on_event(event: AnyEvent) -> None:
        events.append(event)
        started.set()

    model = ReplayModel(trajectory, allow_changed_prompts=True)
    rlm = RLM(model, on_event=on_event, **_rlm_arguments(trajectory, arguments))
    try:
        with rlm.conversation(contexts=all_contexts, seed=seed) as talk:
            for each in trajectory.roots:
                with suppress(ModelError):
                    RUNS.wait_for(_ask_again(talk, each, started))
    except EpisodeAborted:
        pass  # a failed question: as recorded, or else a difference
    return Trajectory.of(events)


def _rlm_arguments(trajectory: Trajectory, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded arguments of `RLM`."""
    settings, root = trajectory.settings, trajectory.root
    known: dict[str, Any] = {name: settings[name] for name in _SHARED if name in settings}
    limits: Any = settings.get("budget")
    if isinstance(limits, Mapping):
        known["budget"] = Budget(**limits)
    own = {"max_depth": _depth(trajectory), "budget": _NO_LIMIT}
    terms: dict[str, Any] = {**own, **known, **arguments}
    if root.max_iterations is not None:
        terms.setdefault("max_iterations", root.max_iterations)
    return terms


async def _ask_again(talk: Any, run: Run, started: asyncio.Event) -> None:
    """Ask the question of `run`; if it was cancelled, cancel it after the same time."""
    task = None if run.task is None else asdict(run.task)
    ended = run.ended
    if ended is None or ended.stop_reason != "cancelled":
        limit = None
        if ended is not None and ended.stop_reason == "timeout":
            limit = max(ended.seconds, _LEAST)
        await talk.ask(run.question, timeout_s=limit, task=task)
        return
    started.clear()
    asking = asyncio.create_task(talk.ask(run.question, task=task))
    asking.add_done_callback(lambda _: started.set())
    try:
        await started.wait()
        await asyncio.wait([asking], timeout=ended.seconds)
    finally:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking


def given_contexts(trajectory: Trajectory, contexts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contexts of the root run: those in the file, and `contexts` for the others.

    Raises:
        ValueError: one is missing, or unknown, or differs.
    """
    notes = {note.name: note for note in trajectory.root.contexts}
    if unknown := sorted(contexts.keys() - notes.keys()):
        raise ValueError(f"contexts: the run had no {unknown[0]!r}, but {sorted(notes)}")
    found: dict[str, Any] = {}
    for name, note in notes.items():
        if name in contexts:
            found[name] = contexts[name]
            _check(note, contexts[name], trajectory.digests.get(name))
        elif name in trajectory.contexts:
            found[name] = trajectory.contexts[name]
        elif note.length:
            raise ValueError(f"contexts: {name!r} is needed, a {note.type} of length {note.length}")
    return found


@set_module("repl_env.rlm")
def differences(recorded: Trajectory, replayed: Trajectory) -> tuple[RunDifference, ...]:
    """Return the differences, each run before those below it.

    Compared are the cells of each run with their outputs and exceptions, and the ends of runs; not
    times, costs and rewards. Child runs are matched by their questions, because concurrent calls
    may have other numbers. Parts missing in a cut trajectory do not count as differences.
    """
    found: list[RunDifference] = []
    left: list[tuple[Run | None, Run | None]] = []
    left += zip_longest(recorded.roots, replayed.roots)
    while left:
        before, now = left.pop(0)
        if before is not None and now is not None:
            found += (*_of_cells(before, now), *_of_ends(before, now))
            left += _pairs(before, now)
        elif before is not None:
            found.append(RunDifference(before.id, 0, "run", before.question, None))
        elif now is not None:
            found.append(RunDifference(now.id, 0, "run", None, now.question))
    return tuple(found)


def _of_cells(before: Run, now: Run) -> Iterator[RunDifference]:
    cells = {cell.number: cell for cell in now.cells}
    for cell in before.cells:
        rerun_cell = cells.pop(cell.number, None)
        if cell.observation is None:
            continue
        if rerun_cell is None or rerun_cell.observation is None:
            yield RunDifference(before.id, cell.number, "cell", cell.code, None)
        else:
            yield from _of_cell(before.id, cell, rerun_cell)
    if before.ended is not None:
        for extra in cells.values():
            yield RunDifference(before.id, extra.number, "cell", None, extra.code)


def _of_cell(run: str, cell: Cell, rerun_cell: Cell) -> Iterator[RunDifference]:
    replayed_values = dict(_compared(rerun_cell))
    for field, value in _compared(cell):
        if normalized(value) != normalized(replayed_values[field]):
            yield RunDifference(run, cell.number, field, value, replayed_values[field])


def _compared(cell: Cell) -> Iterator[tuple[str, Any]]:
    observation = cell.observation
    assert isinstance(observation, REPLObservation)
    yield "code", cell.code
    for name in RESULT:
        yield f"result.{name}", getattr(observation.result, name)
    yield "done", observation.done


def _of_ends(before: Run, now: Run) -> Iterator[RunDifference]:
    if before.ended is None or now.ended is None:
        return
    for name in _END:
        was, came = getattr(before.ended, name), getattr(now.ended, name)
        if normalized(was) != normalized(came):
            yield RunDifference(before.id, 0, name, was, came)


def _pairs(before: Run, now: Run) -> Iterator[tuple[Run | None, Run | None]]:
    """Yield each child with the one of the same question, if possible with the same number."""
    left = list(now.children)
    for child in before.children:
        same = [each for each in left if each.question == child.question]
        partner = min(same, key=lambda each: each.id != child.id, default=None)
        if partner is not None:
            left.remove(partner)
        yield child, partner
    if before.ended is not None:
        yield from ((None, each) for each in left)


def _check(note: ContextNote, value: Any, recorded: str | None) -> None:
    counted = value if isinstance(value, (str, bytes)) else json.dumps(value, ensure_ascii=False)
    length = len(counted)
    if (type(value).__name__, length) != (note.type, note.length):
        was = f"a {note.type} of length {note.length}"
        now = f"a {type(value).__name__} of length {length}"
        raise ValueError(f"contexts: {note.name!r} was {was}, and is {now}")
    if recorded is not None and digest(value) != recorded:
        raise ValueError(f"contexts: {note.name!r} has the recorded length, but another content")


def _depth(trajectory: Trajectory) -> int:
    """Return the allowed levels of runs, as far as the tree shows them."""
    deepest = max(run.depth for run in trajectory.runs())
    has_children = any(call.kind == "rlm" for call in trajectory.root.calls)
    return deepest + 1 if has_children else 2
