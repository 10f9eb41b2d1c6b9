"""The data of the viewer: runs, evaluations and recorded episodes as rows and summaries."""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from tempfile import mkdtemp
from typing import Any, Final

from repl_env.display.files import LONGEST_LINE, MAX_FILES, GrowingLines, NamedFile, NamedFiles
from repl_env.env.recordings import Recording
from repl_env.evaluation.evaluator import Result, parse_results
from repl_env.evaluation.report import TaskChange, compare, interval
from repl_env.models import REPLAction
from repl_env.rlm.trajectory_events import FORMAT, VERSION, as_line, parsed

# `event_row`: the small row of an event, by which a page shows lists without the event itself.
#
# Everything in an event is hostile: a field of another type than the format says is left out.

PREVIEW: Final = 90  # characters of a text: a line of a list
_MAX_MESSAGES: Final = 1000  # of one turn

Row = dict[str, Any]


def event_row(line: bytes) -> Row:
    """Return the row of a line; of kind "broken" with an `error` if the line is not an event."""
    if not line:
        return {"event": "broken", "error": "an empty line, or one that is too long to show"}
    try:
        event = parsed(line)
    except ValueError as error:
        return {"event": "broken", "error": preview(str(error))}
    return row_of(event)


def row_of(event: Mapping[str, Any]) -> Row:
    """Return the row of a parsed event."""
    kind, run = event.get("event"), event.get("run")
    if not isinstance(kind, str) or not isinstance(run, str) or kind not in _FIELDS:
        return {"event": "other", "error": preview(f"event {kind!r} of run {run!r}")}
    row: Row = {"event": kind, "run": run[:200], "time": number(event.get("time"))}
    row.update(_FIELDS[kind](event))
    return {name: value for name, value in row.items() if value is not None}


def preview(value: object, limit: int = PREVIEW) -> str | None:
    """Return the beginning of a text as one line; None of anything else."""
    if not isinstance(value, str):
        return None
    short = " ".join(value[: 2 * limit].split())
    return short if len(short) <= limit else short[:limit] + "…"


def number(value: object) -> float | int | None:
    """Return a finite number; None of anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) and abs(value) < 2**53 else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object; an empty one of anything else."""
    return value if isinstance(value, dict) else {}


def _run_started(event: Mapping[str, Any]) -> Row:
    task = mapping(event.get("task"))
    return {
        "text": preview(event.get("question")),
        "model": preview(event.get("model")),
        "depth": number(event.get("depth")),
        "max_iterations": number(event.get("max_iterations")),
        "task": preview(task.get("name")),
        "group": preview(task.get("group_id"), 200),
    }


def _model_replied(event: Mapping[str, Any]) -> Row:
    completion = mapping(event.get("completion"))
    usage, added = mapping(completion.get("usage")), event.get("added")
    messages = added if isinstance(added, list) else []
    return {
        "turn": number(event.get("turn")),
        "kept": number(event.get("kept")),
        "added": [_message(message) for message in messages[:_MAX_MESSAGES]],
        "text": preview(completion.get("text")),
        "model": preview(completion.get("model")),
        "input_tokens": number(usage.get("input_tokens")),
        "output_tokens": number(usage.get("output_tokens")),
        "usd": number(usage.get("usd")),
        "seconds": number(event.get("seconds")),
        "truncated": completion.get("finish_reason") == "length" or None,
        "last": event.get("last") is True or None,
    }


def _message(message: object) -> tuple[str, int]:
    """Return the role and the number of characters."""
    fields = mapping(message)
    content = fields.get("content")
    length = len(content) if isinstance(content, str) else len(str(content))
    return preview(fields.get("role"), 40) or "?", length


def _cell(event: Mapping[str, Any]) -> Row:
    return {
        "turn": number(event.get("turn")),
        "cell": number(event.get("cell")),
        "text": preview(event.get("code")),
        "seconds": number(event.get("seconds")),
    }


def _cell_ran(event: Mapping[str, Any]) -> Row:
    observation = mapping(event.get("observation"))
    result = mapping(observation.get("result"))
    figures = result.get("figures")
    return _cell(event) | {
        "ok": result.get("success") is not False,
        "error_kind": preview(mapping(observation.get("metadata")).get("error_kind")),
        "figures": len(figures) if isinstance(figures, list) and figures else None,
        "reward": number(observation.get("reward")),
    }


def _call(event: Mapping[str, Any]) -> Row:
    usage = mapping(event.get("usage"))
    return {
        "call": preview(event.get("call"), 200),
        "kind": "rlm" if event.get("kind") == "rlm" else "llm",
        "cell": number(event.get("cell")),
        "model": preview(event.get("model")),
        "prompt": preview(event.get("prompt")),
        "text": preview(event.get("text")),
        "error": preview(event.get("error")),
        "input_tokens": number(usage.get("input_tokens")),
        "output_tokens": number(usage.get("output_tokens")),
        "usd": number(usage.get("usd")),
        "seconds": number(event.get("seconds")),
        "child": event.get("child") is True or None,
    }


_SPENT: Final = (
    "calls",
    "failed_calls",
    "input_tokens",
    "output_tokens",
    "usd",
    "unpriced_calls",
    "cpu_seconds",
    "children",
)


def spent_row(value: object) -> Row:
    """Return the numbers of what a run or a task spent."""
    spent = mapping(value)
    return {name: number(spent.get(name)) or 0 for name in _SPENT}


def _run_ended(event: Mapping[str, Any]) -> Row:
    return {
        "text": preview(event.get("final_answer")),
        "stop_reason": preview(event.get("stop_reason")),
        "error_kind": preview(event.get("error_kind")),
        "reward": number(event.get("reward")),
        "task_reward": number(event.get("task_reward")),
        "iterations": number(event.get("iterations")),
        "seconds": number(event.get("seconds")),
        "ended": preview(event.get("ended")),
        "total": spent_row(event["total"]) if "total" in event else None,
    }


_FIELDS: Final[Mapping[str, Callable[[Mapping[str, Any]], Row]]] = {
    "run_started": _run_started,
    "model_replied": _model_replied,
    "cell_started": _cell,
    "cell_ran": _cell_ran,
    "call_started": _call,
    "call_ended": _call,
    "run_ended": _run_ended,
}


# Evaluations as a page shows them: results of tasks, means with intervals, comparisons.

_TEXT = 4000  # characters of a question, an answer or an error; a trajectory has them whole


def results_of(file: NamedFile) -> tuple[Result, ...]:
    """Return the last result of each task of a results file.

    Raises:
        OSError: the file cannot be read.
        ResultsError: it is no results file, or is damaged.
    """
    with file.open() as opened:
        return parse_results(opened.read(), file.path.joinpath(*file.parts)).results


def evaluation_data(results: Sequence[Result]) -> dict[str, Any]:
    """Return results as JSON."""
    kinds = sorted({result.kind for result in results if result.kind is not None})
    groups = [("all", results), *((kind, [r for r in results if r.kind == kind]) for kind in kinds)]
    return {
        "scores": [_scores(name, group) for name, group in groups],
        "tasks": [_task(result) for result in results],
    }


def comparison_data(before: Sequence[Result], after: Sequence[Result]) -> dict[str, Any]:
    """Return the comparison of two evaluations as JSON, with the answers of changed tasks."""
    found = compare(before, after)
    return {
        "differences": [asdict(difference) for difference in found.differences],
        "changes": [_changed(each) for each in (*found.worse, *found.better)],
        "unequal": found.unequal,
        "only_before": found.only_before,
        "only_after": found.only_after,
    }


def _changed(change: TaskChange) -> dict[str, Any]:
    sides = {"before": change.before, "after": change.after}
    answers = {f"{name}_answer": _cut(side.answer) for name, side in sides.items()}
    scores = {name: side.score for name, side in sides.items()}
    return {"id": change.id, "kind": change.after.kind, **scores, **answers}


def _scores(name: str, results: Iterable[Result]) -> dict[str, Any]:
    scores = [result.score for result in results if result.score is not None]
    low, high = interval(scores) or (None, None)
    mean = fmean(scores) if scores else None
    return {"name": name, "n": len(scores), "mean": mean, "low": low, "high": high}


def _task(result: Result) -> dict[str, Any]:
    return {
        "id": result.id,
        "kind": result.kind,
        "score": result.score,
        "question": _cut(result.question),
        "expected": result.expected if len(str(result.expected)) <= _TEXT else None,
        "answer": _cut(result.answer),
        "stop_reason": preview(result.stop_reason),
        "error_kind": preview(result.error_kind),
        "error": _cut(result.error),
        "seconds": result.seconds,
        "time": result.time,
        "spent": spent_row(asdict(result.spent)),
    }


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _TEXT else text[:_TEXT] + "…"


# `TrajectoryIndex`: a row for each event of a trajectory file, with its place in the file.

# Rows of one answer: a page makes its lists of so many in less than the time of a frame.
MAX_ROWS = 2000


class TrajectoryIndex:
    """The rows of `file`, made as they are asked for; safe to use from several threads.

    A row is that of `event_row`, with `at` and `size`: the bytes of the event's line. The header of
    the file is a row of the kind "header".
    """

    def __init__(self, file: NamedFile) -> None:
        self._lines = GrowingLines(file)
        self._rows: list[Row] = []
        self._generation = 0
        self._lock = threading.Lock()

    def rows(self, start: int, generation: int, seconds: float = 0.25) -> dict[str, Any]:
        """Return rows from number `start`, read for at most about `seconds` more.

        A page whose `generation` is another than that of the result has rows of a file that was
        replaced, and begins anew from row 0.

        Raises:
            OSError: the file cannot be read.
        """
        with self._lock:
            if start + MAX_ROWS > len(self._rows):
                self._grow(seconds)
            if generation != self._generation:
                start = 0
            rows = self._rows[start : start + MAX_ROWS]
            return {
                "generation": self._generation,
                "start": start,
                "rows": rows,
                "more": self._lines.more or start + len(rows) < len(self._rows),
                "size": self._lines.size,
            }

    def _grow(self, seconds: float) -> None:
        for at, line in self._lines.read(seconds):
            self._forget_if_replaced()
            row = {"event": "header"} if at == 0 else event_row(line)
            self._rows.append(row | {"at": at, "size": len(line)})
        self._forget_if_replaced()

    def _forget_if_replaced(self) -> None:
        if self._lines.generation != self._generation:
            self._generation = self._lines.generation
            self._rows.clear()


# `TrajectorySummary`: the root runs of a trajectory file, as a list of runs shows them.
#
# Only the lines that begin or end a root are parsed, so that a file of 200 MB takes a fraction of
# a second.

# The writer puts the kind first. A line of another order costs a look at all of it, and no more.
_ENDS: Final = re.compile(rb'"event":\s*"run_(?:started|ended)"')
_HEAD: Final = 200


class TrajectorySummary:
    """The roots of `file` as far as it was read."""

    def __init__(self, file: NamedFile) -> None:
        self._lines = GrowingLines(file)
        self._generation = 0
        self._roots: dict[str, Row] = {}
        self._events = 0

    @property
    def more(self) -> bool:
        """True if there are lines that were not read yet."""
        return self._lines.more

    def read(self, seconds: float) -> dict[str, Any]:
        """Read for about `seconds`, and return the known facts.

        Raises:
            OSError: the file cannot be read.
        """
        for at, line in self._lines.read(seconds):
            self._forget_if_replaced()
            if at > 0:
                self._take(line)
        self._forget_if_replaced()
        return {
            "size": self._lines.size,
            "events": self._events,
            "roots": list(self._roots.values()),
        }

    def _forget_if_replaced(self) -> None:
        if self._lines.generation != self._generation:
            self._generation = self._lines.generation
            self._roots, self._events = {}, 0

    def _take(self, line: bytes) -> None:
        self._events += 1
        if _ENDS.search(line[:_HEAD]) is None:
            return
        row = event_row(line)
        run = row.get("run")
        if not isinstance(run, str) or "." in run:
            return
        known = self._roots.setdefault(run, {"run": run, "done": False})
        if row["event"] == "run_started":
            fields = ("model", "task", "group", "time")
            known |= {"question": row.get("text")} | {name: row.get(name) for name in fields}
        else:
            ended = {name: row.get(name) for name in _ENDED}
            known |= {"answer": row.get("text"), "done": True, **ended}


_ENDED: Final = (
    "stop_reason",
    "error_kind",
    "reward",
    "task_reward",
    "iterations",
    "seconds",
    "total",
)


# `ViewData`: the data of a viewer's pages, from the named files.

_OPEN: Final = 8  # indexes that are kept: those of pages that are open
_HEADER: Final = 2**20  # bytes of a first line; contexts in it have 64 KiB
_SECONDS: Final = 0.3  # of reading for one answer, so that a page soon shows something


def kind_of(file: NamedFile) -> str:
    """Return "trajectory", "results", or "other", by the first line; OSError if unreadable."""
    with file.open() as opened:
        line = opened.readline(_HEADER)
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        return "other"
    if not isinstance(header, dict):
        return "other"
    if header.get("format") == FORMAT:
        return "trajectory"
    return "results" if header.get("type") == "results" else "other"


class ViewData:
    """Lists, rows, bytes and evaluations of `files`; safe to use from several threads.

    A method that takes the `id` of a file raises KeyError for an unknown one, OSError for one that
    cannot be read, and ValueError for one that is damaged.
    """

    def __init__(self, files: NamedFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._summaries: dict[str, TrajectorySummary] = {}
        self._listed: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {}
        self._indexes: OrderedDict[str, TrajectoryIndex] = OrderedDict()

    def listing(self) -> dict[str, Any]:
        """Return all files with what is known of them; "more" while there is more to read.

        "full": there may be files beyond the number that is listed.
        """
        until = time.monotonic() + _SECONDS
        with self._lock:
            rows = [self._row(file, until) for file in self._files.files()]
        shown = [row for row in rows if row["kind"] != "other"]
        more = any(row.get("more") for row in shown)
        return {"files": shown, "more": more, "full": len(rows) == MAX_FILES}

    def rows(self, identifier: str, start: int, generation: int) -> dict[str, Any]:
        """Return rows of a trajectory from number `start`."""
        file = self._files.get(identifier)
        with self._lock:
            index = self._indexes.pop(identifier, None) or TrajectoryIndex(file)
            self._indexes[identifier] = index
            while len(self._indexes) > _OPEN:
                self._indexes.popitem(last=False)
        return index.rows(start, generation)

    def part(self, identifier: str, start: int, stop: int) -> bytes:
        """Return the bytes of a file from `start` up to `stop`."""
        with self._files.get(identifier).open() as file:
            file.seek(start)
            return file.read(min(stop - start, LONGEST_LINE))

    def evaluation(self, identifier: str) -> dict[str, Any]:
        """Return an evaluation; a task whose trajectory is among the files has its id as "run"."""
        file = self._files.get(identifier)
        results = results_of(file)
        data = evaluation_data(results)
        ids = {each.address: each.id for each in self._files.files()}
        folder = os.path.dirname(file.address)
        for task, result in zip(data["tasks"], results, strict=True):
            if result.trajectory is not None:
                task["run"] = ids.get(os.path.normpath(os.path.join(folder, result.trajectory)))
        return data

    def comparison(self, before: str, after: str) -> dict[str, Any]:
        """Return the comparison of two evaluations."""
        first, second = self._files.get(before), self._files.get(after)
        return comparison_data(results_of(first), results_of(second))

    def _row(self, file: NamedFile, until: float) -> dict[str, Any]:
        """Return the row of a file, anew if the file is not the one of the last time."""
        row: dict[str, Any] = {"id": file.id, "name": file.name}
        try:
            signature = file.signature()
            before, known = self._listed.get(file.id, (None, row))
            if before == signature and not known.get("more"):
                return known
            row |= self._content(file, until)
        except (OSError, ValueError) as error:
            return row | {"kind": "broken", "error": str(error)}
        self._listed[file.id] = signature, row
        return row

    def _content(self, file: NamedFile, until: float) -> dict[str, Any]:
        kind = kind_of(file)
        if kind == "trajectory":
            summary = self._summaries.setdefault(file.id, TrajectorySummary(file))
            content = summary.read(until - time.monotonic())
            return {"kind": kind, **content, "more": summary.more}
        if kind == "results":
            return {"kind": kind, "scores": evaluation_data(results_of(file))["scores"]}
        return {"kind": kind}


# `viewable`: recorded episodes as trajectory files, which the pages show.
#
# A recording (`repl_env.Recording`) is the download of the playground too. It has neither replies
# of a model nor times, so the file has only the cells, each in a turn of its own.

_RUN = "0"


def viewable(path: Path, folder: Path) -> Path:
    """Return `path`; for a recorded episode, the path of a trajectory file made in `folder`.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is nothing that the pages show.
    """
    if path.is_dir():
        return path
    (file,) = NamedFiles([path]).files()
    if kind_of(file) != "other":
        return path
    try:
        recording = read_recording(file)
    except ValueError as error:
        kinds = "a trajectory, results of eval, or a recorded episode"
        raise ValueError(f"{path} is not {kinds}") from error
    made = Path(mkdtemp(dir=folder)) / path.name
    made.write_bytes(b"".join(trajectory_lines(recording)))
    return made


def read_recording(file: NamedFile) -> Recording:
    """Return the recording in `file`.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a recording, or is longer than `LONGEST_LINE` bytes.
    """
    with file.open() as opened:
        content = opened.read(LONGEST_LINE + 1)
    if len(content) > LONGEST_LINE:
        raise ValueError(f"a recording has at most {LONGEST_LINE:,} bytes")
    return Recording.from_json(content.decode("utf-8"))


def trajectory_lines(recording: Recording) -> Iterator[bytes]:
    """Yield the lines of a trajectory file with one run."""
    first, last = recording.observations[0], recording.observations[-1]
    yield as_line({"format": FORMAT, "version": VERSION, "contexts": {}, "settings": {}})
    length = first.context_length
    yield _line(
        "run_started",
        depth=0,
        question=recording.reset.get("task_prompt") or "",
        max_iterations=first.max_iterations,
        contexts=[{"name": "context", "type": "str", "length": length}] if length else [],
    )
    for number, action in enumerate(recording.actions, 1):
        observation = recording.observations[number]
        yield _line(
            "cell_ran",
            turn=number,
            cell=number,
            code=_code(action),
            observation=observation.model_dump(mode="json"),
            seconds=observation.result.execution_time,
        )
    yield _line(
        "run_ended",
        final_answer=last.final_answer,
        # The page of a run without an end would wait for further events.
        stop_reason=last.metadata.get("stop_reason") or "not ended",
        error_kind=last.error_kind,
        reward=last.reward if last.done else None,
        iterations=len(recording.actions),
        seconds=sum(each.result.execution_time for each in recording.observations[1:]),
    )


def _line(kind: str, **fields: Any) -> bytes:
    return as_line({"event": kind, "run": _RUN, **fields})


def _code(action: REPLAction) -> str:
    """Return the code of an action; a comment for an action without code."""
    if action.is_final:
        return f"# submitted without code: {action.final_answer!r}"
    return action.code or "# a reply without code"
