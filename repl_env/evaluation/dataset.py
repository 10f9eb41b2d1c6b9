"""Datasets: a JSON object in each line, checked whole before the first question is asked.

Contexts may be larger than memory together, so a line is read again when its task begins.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from repl_env.common.argument_checks import as_path, at_least
from repl_env.common.displayed import Displayed
from repl_env.common.set_module import set_module
from repl_env.rlm.events import TaskNote
from repl_env.rlm.trajectory.task_facts import task_note

if TYPE_CHECKING:
    from repl_sandbox.types import JSON

_FIELDS = frozenset({"id", "question", "context", "context_file", "answer", "rubric", "metadata"})
_BLOCK = 1 << 20  # bytes of a context file read at once


@set_module("repl_env.evaluation")
class DatasetError(ValueError):
    """A dataset cannot be used; the message names the file and the line."""


@set_module("repl_env.evaluation")
@dataclass(frozen=True, slots=True, repr=False)
class EvalTask(Displayed):
    """One question of a dataset, with what it is about and the expected answer."""

    id: str
    question: str
    context: JSON
    answer: JSON
    rubric: str | None
    metadata: Mapping[str, Any]

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts that trajectories and samples carry: the id, and those of `metadata`."""
        return _facts(self.id, self.metadata)


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """Place of a task in its file, with the facts that need no second read.

    `digest` is of the line, and of the context file if it names one. `kind` is what its metadata
    say under that name, if that is text; `task` has the other facts that results are grouped by.
    """

    id: str
    line: int
    offset: int
    length: int
    digest: str
    rubric: str | None
    kind: str | None
    task: TaskNote


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
            with self.path.open("rb") as file:
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
        )


@set_module("repl_env.evaluation")
def read_dataset(path: str | os.PathLike[str], limit: int | None = None) -> Dataset:
    """Check a dataset; with `limit` only its first tasks.

    Each line is `{"id", "question", "context" | "context_file", "answer"}`, and may have "rubric"
    (a name of `RUBRICS`) and "metadata" (an object, whose "kind", "split", "difficulty" and "group"
    group results). A context is any
    JSON value, null for none; a context file is UTF-8 text, beside the dataset if its path is
    relative. Empty lines are skipped.

    Raises:
        DatasetError: naming the line.
        TypeError, ValueError: naming the argument.
    """
    path = as_path(path, "path")
    max_entries = None if limit is None else at_least(limit, 0, "limit")
    try:
        with path.open("rb") as file:
            entries = tuple(islice(_entries(path, file), max_entries))
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error}") from error
    if not entries:
        raise DatasetError(f"{path}: there is no task in it")
    return Dataset(path, entries)


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
    return record


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _check(record: dict[str, Any]) -> None:
    from repl_env.evaluation.metrics import RUBRICS

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
    data = (folder / record["context_file"]).read_bytes()
    return data.decode("utf-8-sig"), hashlib.sha256(data).hexdigest()


def _text_digest(path: Path) -> str:
    """The digest of a file, read in pieces; ValueError if it is not UTF-8 text."""
    digest, decoder = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
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
