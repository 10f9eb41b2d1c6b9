"""Datasets of questions, solvers of them, and the metrics of their answers."""

from __future__ import annotations

import codecs
import hashlib
import inspect
import json
import math
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeAlias
from urllib.parse import quote

from repl_env.common.display import Displayed, set_module
from repl_env.common.files import open_regular, read_regular
from repl_env.common.threads import call_user_function
from repl_env.common.values import (
    as_path,
    at_least,
    check_callable,
    check_path,
    json_text,
    replace_surrogates,
)
from repl_env.errors import EpisodeAborted, ModelError
from repl_env.llm.base import ChatModel, ModelFunction, as_model
from repl_env.rlm.budget import Spent
from repl_env.rlm.model_call import FailureStreak, TaskNote
from repl_env.rlm.trajectory_events import task_note
from repl_env.rubrics import ExactMatchRubric, FuzzyMatchRubric, answers_match

if TYPE_CHECKING:
    from repl_env.rlm.config import RLMRunResult
    from repl_env.rlm.model_call import AnyEvent, EventHandler
    from repl_sandbox.types import JSON


# Datasets: a JSON object in each line, checked whole before the first question is asked.
#
# Contexts may be larger than memory together, so a line is read again when its task begins.

_FIELDS = frozenset({"id", "question", "context", "context_file", "answer", "rubric", "metadata"})
# The names of a reset's arguments and of TorchRL's columns, so that one file serves them all.
_SYNONYMS = {"task_id": "id", "task_prompt": "question", "expected_answer": "answer"}
_BLOCK = 1 << 20  # bytes of a context file read at once


@set_module("repl_env.evaluation")
class DatasetError(ValueError):
    """A dataset cannot be used; the message names the file and the line."""


@set_module("repl_env.evaluation")
@dataclass(frozen=True, slots=True, repr=False)
class EvalTask(Displayed):
    """One question of a dataset, with what it is about and the expected answer.

    `group_id`: of the runs of one task in several epochs; None with one epoch.
    """

    id: str
    question: str
    context: JSON
    answer: JSON
    rubric: str | None
    metadata: Mapping[str, Any]
    group_id: str | None = None

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts that trajectories and samples carry: the id, those of `metadata`, and the
        group, if `metadata` names none.
        """
        group = {} if self.group_id is None else {"group_id": self.group_id}
        return {**group, **_facts(self.id, self.metadata)}


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """Place of a task in its file, with the facts that need no second read.

    `digest` is of the line, and of the context file if it names one. `kind` is what its metadata
    say under that name, if that is text; `task` has the other facts that results are grouped by.
    `epoch` counts the times that the task runs, from 1; from the second on, `id` ends with "#2" and
    so on. `group_id` is the id of the task, if it runs several times.
    """

    id: str
    line: int
    offset: int
    length: int
    digest: str
    rubric: str | None
    kind: str | None
    task: TaskNote
    epoch: int = 1
    group_id: str | None = None


@set_module("repl_env.evaluation")
@dataclass(frozen=True, slots=True, repr=False)
class Dataset(Displayed):
    """The tasks of a file, in its order."""

    path: Path
    entries: tuple[DatasetEntry, ...]

    def load(self, entry: DatasetEntry) -> EvalTask:
        """The task at `entry`.

        Raises:
            DatasetError: the file is not what it was when it was checked.
        """
        try:
            with open_regular(self.path) as file:
                file.seek(entry.offset)
                raw = file.read(entry.length)
            record = _parsed(raw)
            context, digest = _context(self.path.parent, record)
        except (OSError, ValueError) as error:
            raise DatasetError(f"{self.path}, line {entry.line}: {error}") from error
        if _digest(raw, digest) != entry.digest:
            raise DatasetError(f"{self.path}, line {entry.line}: changed while it was evaluated")
        return EvalTask(
            id=entry.id,
            question=record["question"],
            context=context,
            answer=record["answer"],
            rubric=entry.rubric,
            metadata=record.get("metadata") or {},
            group_id=entry.group_id,
        )


@set_module("repl_env.evaluation")
def read_dataset(
    path: str | os.PathLike[str], limit: int | None = None, *, epochs: int = 1
) -> Dataset:
    """Check a dataset; with `limit` only its first tasks, with `epochs` each of them so many times.

    Each line is `{"id", "question", "context" | "context_file", "answer"}`; "task_id",
    "task_prompt" and "expected_answer", the names of a reset, mean the same as "id", "question" and
    "answer". A line may have "rubric" (a name of `RUBRICS`) and "metadata" (an object, whose
    "kind", "split", "difficulty" and "group" group results). A context is any JSON value, null for
    none; a context file is UTF-8 text, beside the dataset if its path is relative. Empty lines are
    skipped.

    Raises:
        DatasetError: naming the line.
        TypeError, ValueError: naming the argument.
    """
    path = as_path(path, "path")
    max_entries = None if limit is None else at_least(limit, 0, "limit")
    try:
        with open_regular(path) as file:
            entries = tuple(islice(_entries(path, file), max_entries))
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error}") from error
    if not entries:
        raise DatasetError(f"{path}: there is no task in it")
    return Dataset(path, _repeated(path, entries, at_least(epochs, 1, "epochs")))


def _repeated(
    path: Path, entries: tuple[DatasetEntry, ...], epochs: int
) -> tuple[DatasetEntry, ...]:
    """Return all entries of the first epoch, then those of the second, and so on."""
    if epochs == 1:
        return entries
    names = {entry.id for entry in entries}
    found = [replace(entry, group_id=entry.id) for entry in entries]
    for epoch in range(2, epochs + 1):
        for entry in entries:
            name = f"{entry.id}#{epoch}"
            if name in names:
                clash = f"{entry.id!r} in epoch {epoch}"
                raise DatasetError(f'{path}: "id" {name!r} is that of {clash}, too')
            found.append(replace(entry, id=name, epoch=epoch, group_id=entry.id))
    return tuple(found)


def _entries(path: Path, file: BinaryIO) -> Iterator[DatasetEntry]:
    seen: dict[str, int] = {}
    files: dict[Path, str] = {}
    for number, offset, raw in _lines(file):
        try:
            entry = _entry(path.parent, number, offset, raw, files)
            if (first := seen.setdefault(entry.id, number)) != number:
                raise ValueError(f'"id" {entry.id!r} is that of line {first} too')
        except ValueError as error:
            raise DatasetError(f"{path}, line {number}: {error}") from error
        yield entry


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of each line that is not empty."""
    offset = 0
    for number, raw in enumerate(file, 1):
        if raw.strip():
            yield number, offset, raw
        offset += len(raw)


def _entry(
    folder: Path, number: int, offset: int, raw: bytes, files: dict[Path, str]
) -> DatasetEntry:
    record = _parsed(raw)
    _check(record)
    digest = ""
    if (name := record.get("context_file")) is not None:
        file = folder / name
        if file not in files:
            files[file] = _text_digest(file)
        digest = files[file]
    kind = (record.get("metadata") or {}).get("kind")
    return DatasetEntry(
        id=record["id"],
        line=number,
        offset=offset,
        length=len(raw),
        digest=_digest(raw, digest),
        rubric=record.get("rubric"),
        kind=kind if isinstance(kind, str) else None,
        task=task_note(_facts(record["id"], record.get("metadata") or {})) or TaskNote(),
    )


def _facts(name: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a task; what is no text or number under their names is the dataset's own."""
    facts = {
        key: value
        for key, value in metadata.items()
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
    }
    return {**facts, "name": name}


def _parsed(raw: bytes) -> dict[str, Any]:
    """The object in a line; ValueError saying what is wrong with it."""
    try:
        record = json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse)
        if b"\\ud" in raw.lower():  # may be half a character, which no file or session can carry
            json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from error
    except UnicodeEncodeError as error:
        raise ValueError("a text in it has half of a surrogate pair") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}, at character {error.pos + 1}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError(f"an object is wanted, not {type(record).__name__}")
    for synonym, name in _SYNONYMS.items():
        if synonym in record:
            if name in record:
                raise ValueError(f'"{name}" and "{synonym}" are one field')
            record[name] = record.pop(synonym)
    return record


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _check(record: dict[str, Any]) -> None:
    for name in ("id", "question"):
        if not isinstance(record.get(name), str) or not record[name]:
            raise ValueError(f'"{name}" must be text' if name in record else f'"{name}" is missing')
    if record.get("answer") is None:
        raise ValueError('"answer" is missing')
    if ("context" in record) == ("context_file" in record):
        raise ValueError('one of "context" and "context_file" is wanted')
    if "context_file" in record and not isinstance(record["context_file"], str):
        raise ValueError('"context_file" must be a path')
    # A dataset is data: it must not name functions of this system, for whose running it would ask.
    if record.get("rubric") is not None and record["rubric"] not in RUBRICS:
        raise ValueError(f'"rubric" must be one of {", ".join(RUBRICS)}')
    if not isinstance(record.get("metadata") or {}, dict):
        raise ValueError('"metadata" must be an object')
    if unknown := sorted(record.keys() - _FIELDS):
        raise ValueError(f'"{unknown[0]}" is no field; what is your own goes under "metadata"')


def _context(folder: Path, record: dict[str, Any]) -> tuple[JSON, str]:
    """The context of a record, and the digest of its file if it is in one."""
    if "context_file" not in record:
        context: JSON = record.get("context")
        return context, ""
    data = read_regular(folder / record["context_file"])
    return data.decode("utf-8-sig"), hashlib.sha256(data).hexdigest()


def _text_digest(path: Path) -> str:
    """The digest of a file, read in pieces; ValueError if it is not UTF-8 text."""
    digest, decoder = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")()
    try:
        with open_regular(path) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                decoder.decode(block)
        decoder.decode(b"", final=True)
    except OSError as error:
        raise ValueError(f'"context_file" {path}: {error.strerror or error}') from error
    except UnicodeDecodeError as error:
        raise ValueError(f'"context_file" {path}: not UTF-8 text') from error
    return digest.hexdigest()


def _digest(raw: bytes, file_digest: str) -> str:
    return hashlib.sha256(raw.strip() + file_digest.encode()).hexdigest()


# Scores of final answers: the named rubrics of an evaluation, and functions of the user's.
#
# A rubric here is a function of the expected answer, the given one as text, and as JSON value
# (None if it has none). Those of steps and episodes are in `repl_env.rubrics`, and two of these
# are theirs.

Metric: TypeAlias = "Callable[[JSON, str, JSON], float | Awaitable[float]]"
# A list in a text that is no JSON: (1, 2), (3, 4), or lines, or commas.
_GROUP = re.compile(r"[\[(]([^\[\]()]*)[\])]")
_BULLET = re.compile(r"^\s*(?:[-*\u2022]|\d{1,3}[.)])\s+")


async def score(metric: Metric, expected: JSON, text: str, value: JSON) -> float:
    """Score of an answer by `metric`.

    Raises:
        TypeError, ValueError: it says what is no score; and what it raises itself.
    """
    found = metric(expected, text, value)
    if inspect.isawaitable(found):
        found = await found
    if not hasattr(found, "__float__"):  # as rewards: numpy's and torch's numbers have it
        raise TypeError(f"the score is {type(found).__name__}, not a number")
    if not math.isfinite(number := float(found)):
        raise ValueError(f"the score is {number}")
    return number


def check_metric(value: Any) -> Metric:
    """`value` if it takes what a metric is given; TypeError if not.

    One whose signature tells nothing may be right.
    """
    requirement = "metric must be a function of (expected, text, value), as RUBRICS['exact'] is"
    if isinstance(value, type) or not callable(value):
        raise TypeError(f"{requirement}, not {value!r:.80}")
    metric: Metric = value
    try:
        signature = inspect.signature(metric)
    except (TypeError, ValueError):
        return metric
    try:
        signature.bind(None, "", None)
    except TypeError:
        hint = "metric_of(function) makes one of a function of (expected, answer)"
        raise TypeError(f"{requirement}, not one of {signature}; {hint}") from None
    return metric


@set_module("repl_env.evaluation")
def metric_of(function: Callable[[Any, Any], Any]) -> Metric:
    """The metric `function(expected, answer)`: the answer's value, or its text if it has none.

    A plain function runs in a thread: it may ask a judge, and other tasks go on meanwhile.
    """

    async def metric(expected: JSON, text: str, value: JSON) -> Any:
        return await call_user_function(function, expected, text if value is None else value)

    return metric


def json_score(expected: JSON, text: str, value: JSON) -> float:
    """1.0 if the answer is the same JSON value, as such or written as JSON text; else 0.0."""
    if answers_match(expected, value):
        return 1.0
    try:
        return float(answers_match(expected, json.loads(text)))
    except (ValueError, RecursionError):
        return 0.0


def list_score(expected: JSON, text: str, value: JSON) -> float:
    """How well a list names the expected items: F1 of the two sets, 1.0 if they are the same.

    Order and repetition do not count, nor case and outer space of texts. An answer in text may be
    JSON, Python, or items apart by commas or lines.
    """
    expected_items = {_item(each) for each in _items(expected, str(expected))}
    try:
        given_items = {_item(each) for each in _items(value, text)}
    except RecursionError:
        return 0.0
    if not expected_items and not given_items:
        return 1.0
    return 2 * len(expected_items & given_items) / (len(expected_items) + len(given_items))


RUBRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "exact": ExactMatchRubric().compare,
        "fuzzy": FuzzyMatchRubric().compare,
        "json": json_score,
        "list": list_score,
    }
)


def _items(value: JSON, text: str) -> Iterable[JSON]:
    """The items that an answer lists."""
    if isinstance(value, list):
        return value
    if value is not None and not isinstance(value, str):
        return [value]
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return _written(text)
    return parsed if isinstance(parsed, list) else [parsed]


def _written(text: str) -> list[JSON]:
    """The items of a text that is no JSON; never evaluated, whatever it looks like."""
    groups = _GROUP.findall(text)
    if len(groups) > 1:
        return [[*_parts(group)] for group in groups]
    inner = groups[0] if groups else text
    nested = re.match(r"\s*[\[(]\s*[\[(]", text) is not None
    return [[*_parts(inner)]] if nested else [*_parts(inner)]


def _parts(text: str) -> list[str]:
    lines = text.splitlines()
    pieces = lines if len(lines) > 1 else text.split(",")
    bare = (_BULLET.sub("", piece).strip().strip("\"'`,").strip() for piece in pieces)
    return [piece for piece in bare if piece]


def _item(item: JSON) -> str:
    """An item as text that is equal for what counts as equal."""
    plain = _plain(item)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _plain(item: JSON) -> Any:
    """A list as lists of texts, for one dump: a dump of each level doubles the quotes inside."""
    if isinstance(item, list):
        return [_plain(each) for each in item]
    if isinstance(item, float) and item.is_integer():
        item = int(item)
    return item.strip().casefold() if isinstance(item, str) else json.dumps(item, sort_keys=True)


# Solvers: what is evaluated. A recursive language model, or any function, for baselines.

_LONGEST_NAME = 200  # bytes; file systems take 255

Function: TypeAlias = "Callable[[EvalTask], Any | Awaitable[Any]]"


@set_module("repl_env.evaluation")
@dataclass(frozen=True, slots=True)
class Solved:
    """Result of a solver: the answer as text (None without one) and as JSON value.

    `error_kind` as of a run: "llm", "sandbox" and "cancelled" are no fault of the solver's, and
    make that the task counts as not done. `error` says in words why there is no answer.
    `trajectory` is the file with the trajectory of the run, if one was written.

    Raises:
        TypeError: naming the field.
    """

    text: str | None
    value: JSON = None
    stop_reason: str | None = None
    error_kind: str | None = None
    spent: Spent = field(default_factory=Spent)
    error: str | None = None
    trajectory: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        # Told to the solver that makes it: what cannot be written down would end all others.
        for name in ("text", "stop_reason", "error_kind", "error"):
            value = getattr(self, name)
            if not (value is None or isinstance(value, str)):
                raise TypeError(f"{name} must be a str or None, not {type(value).__name__}")
        if not isinstance(self.spent, Spent):
            raise TypeError(f"spent must be a Spent, not {type(self.spent).__name__}")
        if self.trajectory is not None:
            check_path(self.trajectory, "trajectory")


@set_module("repl_env.evaluation")
class Solver(Protocol):
    """Something that answers tasks, several at once in one event loop."""

    async def solve(self, task: EvalTask) -> Solved:
        """Answer `task`. ModelError and EpisodeAborted: there is no answer, and no score."""

    async def close(self) -> None:
        """Let go of what it holds."""


def check_solver(solver: Any) -> Solver:
    """`solver` if it is one; TypeError if not."""
    if isinstance(solver, type) or not callable(getattr(solver, "solve", None)):
        hint = "FunctionSolver(function) makes one of a function, RLMSolver(model, {}) of a model"
        raise TypeError(f"solver must be a solver, not {solver!r:.80}; {hint}")
    checked: Solver = solver
    return checked


@set_module("repl_env.evaluation")
class FunctionSolver:
    """`function(task)` as a solver; a plain one runs in a thread.

    It returns a `Solved`, or the answer: text, a JSON value, None for no answer.
    """

    def __init__(self, function: Function) -> None:
        check_callable(function, "function")
        self._function = function

    async def solve(self, task: EvalTask) -> Solved:
        """Call the function.

        Raises:
            TypeError, ValueError: what it returned is no answer; and what it raises itself.
        """
        answer = await call_user_function(self._function, task)
        return answer if isinstance(answer, Solved) else answered(answer)

    async def close(self) -> None:
        """Nothing is held."""


def answered(answer: object) -> Solved:
    """An answer as a `Solved`.

    Raises:
        TypeError, ValueError: it is neither text nor a JSON value.
    """
    if answer is None:
        return Solved(None)
    if isinstance(answer, str):
        text = replace_surrogates(answer)
        return Solved(text, text)
    value = json.loads(replace_surrogates(json_text("the solver's answer", answer, any_keys=True)))
    return Solved(json.dumps(value), value)


@set_module("repl_env.evaluation")
class RLMSolver:
    """A recursive language model, made anew for each task.

    Args:
        options: those of `RLM`.
        trajectories: a folder that gets the trajectory of each run; a later one of the same task
            replaces it.
    """

    def __init__(
        self,
        model: ChatModel | ModelFunction,
        options: Mapping[str, Any],
        trajectories: str | os.PathLike[str] | None = None,
    ) -> None:
        self._model = as_model(model)
        self._options = options
        self._trajectories = None if trajectories is None else as_path(trajectories, "trajectories")

    async def solve(self, task: EvalTask) -> Solved:
        """Run it on the task's context."""
        # The runner loads the engine, which other solvers do without.
        from repl_env.rlm.runner import RLM

        options, path, streak = dict(self._options), self._trajectory(task), FailureStreak()
        options["on_event"] = _both(streak.feed, options.get("on_event"))
        if path is not None:
            path.unlink(missing_ok=True)
            options["trajectory"] = path
        run = RLM(self._model, **options)
        try:
            result = await run.arun(
                task.question, _given(task.context), expected_answer=task.answer, task=task
            )
        except (ModelError, EpisodeAborted) as error:
            error.trajectory = path  # type: ignore[union-attr]  # for the result, as `error.result`
            raise
        return Solved(
            text=result.final_answer,
            value=result.answer_value,
            stop_reason=result.stop_reason,
            error_kind=result.error_kind,
            spent=result.usage,
            error=None if result.final_answer is not None else _error(result, streak),
            trajectory=path,
        )

    def _trajectory(self, task: EvalTask) -> Path | None:
        """The file for the trajectory of `task`."""
        if self._trajectories is None:
            return None
        return self._trajectories / trajectory_name(task.id)

    async def close(self) -> None:
        """Close the models."""
        await self._model.close()
        if (sub_model := self._options.get("sub_model")) is not None:
            await sub_model.close()


def _error(result: RLMRunResult, streak: FailureStreak) -> str | None:
    """Why there is no answer: the part of the budget that ended the run, and its last errors."""
    return "; ".join(filter(None, (result.reason, str(streak)))) or None


def _both(first: EventHandler, second: EventHandler | None) -> EventHandler:
    """A handler that passes each event to both."""
    if second is None:
        return first
    also = second

    def handle(event: AnyEvent) -> None:
        first(event)
        also(event)

    return handle


def _given(context: JSON) -> str | list[Any] | dict[str, Any] | None:
    """A context as episodes take them: a bare number or truth value as its text."""
    if context is None or isinstance(context, (str, list, dict)):
        return context
    return json.dumps(context)


def trajectory_name(task: str) -> str:
    """The name of the file for the task of this id, which may be any text."""
    name = quote(task, safe=" ")
    if len(name) > _LONGEST_NAME:
        digest = hashlib.sha256(task.encode()).hexdigest()[:16]
        name = f"{name[:_LONGEST_NAME]}-{digest}"
    return f"{name}.jsonl"
