"""An episode in a file: the format that `save` writes and `load` reads.

The file belongs to the host. It holds the checkpoint of the session (never unpickled here), its
files, the context, and the host's state of the episode, including the expected answer. It holds no
token, key or function: the caller of `load` supplies those.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from repl_env.common.replace_target import replace_target
from repl_env.episode.answers import FinalAnswer
from repl_env.episode.contexts import Context, ContextPart
from repl_env.episode.rules import Episode, EpisodeConfig, EpisodeTotals
from repl_env.models import REPLObservation
from repl_sandbox.errors import CheckpointError, RemoteProtocolError
from repl_sandbox.protocol import file_container
from repl_sandbox.protocol.values.json_text import parse_json
from repl_sandbox.types import JSON, Answers, Missing

KIND = b"epis"
VERSION = 1
WHAT = "saved episode"

StopReason: TypeAlias = Literal["answer", "max_iterations", "budget"]

_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)


class SavedAnswer(BaseModel):
    """A final answer."""

    model_config = _STRICT

    text: str
    value: JsonValue


class SavedTotals(BaseModel):
    """`repl_env.episode.rules.EpisodeTotals` in a file."""

    model_config = _STRICT

    execution_seconds: float
    waiting_seconds: float
    cpu_seconds: float
    peak_memory: int


class SavedSpent(BaseModel):
    """`repl_env.rlm.budget.budget_limits.Spent` in a file."""

    model_config = _STRICT

    calls: int
    failed_calls: int
    input_tokens: int
    output_tokens: int
    estimated_tokens: int
    usd: float
    unpriced_calls: int
    cpu_seconds: float
    children: int


class SavedEpisode(BaseModel):
    """The host's state of an episode, except for its context.

    `answer_schema` is the JSON schema; a type is not saved, and `needs_schema` records that there
    was one. `last` is the observation that ended the episode, None if it goes on. `rubric` is the
    state of a rubric with `state_dict`.
    """

    model_config = _STRICT

    episode_id: str
    task_prompt: str
    context_preview: str | None
    max_iterations: int
    max_output_length: int
    helpers: list[str]
    answers: Answers
    answer_schema: dict[str, JsonValue] | None
    needs_schema: bool
    expected_answer: JsonValue
    llm_model: str | None
    rlm_max_depth: int
    rlm_max_iterations: int | None
    iteration: int
    cells: int
    stop_reason: StopReason | None
    final: SavedAnswer | None
    masked: bool
    totals: SavedTotals
    names: list[str]
    names_are_known: bool
    last: dict[str, JsonValue] | None
    rubric: JsonValue
    spent: SavedSpent | None

    def config(self, context: Context, validator: Any, memory: int) -> EpisodeConfig:
        """The configuration that the episode continues with; `memory`: bytes that its session may
        use.
        """
        return EpisodeConfig(
            episode_id=self.episode_id,
            task_prompt=self.task_prompt,
            context=context,
            files={},  # files of the reset are in the workspace, as cells left them
            max_iterations=self.max_iterations,
            max_output_length=self.max_output_length,
            helpers=tuple(self.helpers),
            validator=validator,
            memory=memory,
        )

    def resume(self, episode: Episode, missing: Iterable[Missing]) -> None:
        """Bring a new episode with this configuration to the saved position."""
        missing_names = {variable.name for variable in missing}
        episode.iteration, episode.cells = self.iteration, self.cells
        episode.stop_reason, episode.masked = self.stop_reason, self.masked
        if self.final is not None:
            episode.final = FinalAnswer(self.final.text, self.final.value)
        episode.totals = EpisodeTotals(**self.totals.model_dump())
        episode.names = {name: None for name in self.names if name not in missing_names}
        episode.names_are_known = self.names_are_known

    def last_observation(self) -> REPLObservation | None:
        """The observation that ended the episode.

        Raises:
            CheckpointError: the saved one is invalid.
        """
        if self.last is None:
            return None
        try:
            return REPLObservation.model_validate(self.last)
        except ValidationError as error:
            raise _malformed(error) from None


class EpisodeFile:
    """An episode, its context, its workspace and the checkpoint of its session."""

    def __init__(
        self, episode: SavedEpisode, context: Context, files: dict[str, bytes], checkpoint: bytes
    ) -> None:
        self.episode = episode
        self.context = context
        self.files = files
        self.checkpoint = checkpoint

    def pack(self) -> bytes:
        """Return the bytes of the file."""
        rows: list[list[Any]] = [["checkpoint", "", "", len(self.checkpoint)]]
        state = self.episode.model_dump_json().encode()
        rows.append(["episode", "", "", len(state)])
        pieces = [self.checkpoint, state]
        for part in self.context.parts:
            kind, data = _part_as_bytes(part)
            rows.append(["context", part.name, kind, len(data)])
            pieces.append(data)
        for path, data in self.files.items():
            rows.append(["file", path, "", len(data)])
            pieces.append(data)
        return file_container.pack(KIND, VERSION, json.dumps(rows).encode(), pieces)

    @classmethod
    def parse(cls, data: bytes) -> EpisodeFile:
        """Parse the episode in `data`.

        Raises:
            CheckpointError: `data` is damaged, of another version, or not an episode.
        """
        header, payload = file_container.unpack(data, KIND, VERSION, WHAT)
        checkpoint, state, parts, files = b"", b"", [], {}
        start = 0
        for role, name, kind, size in _rows(header, len(payload)):
            piece = bytes(payload[start : start + size])
            start += size
            if role == "checkpoint":
                checkpoint = piece
            elif role == "episode":
                state = piece
            elif role == "context":
                parts.append(_part(name, kind, piece))
            else:
                files[name] = piece
        try:
            episode = SavedEpisode.model_validate_json(state)
        except ValidationError as error:
            raise _malformed(error) from None
        return cls(episode, Context(tuple(parts), episode.context_preview), files, checkpoint)


_ROLES = ("checkpoint", "episode", "context", "file")


def _rows(header: bytes, length: int) -> list[tuple[str, str, str, int]]:
    try:
        rows: Any = parse_json(header)
        checked = [(str(role), str(name), str(kind), size) for role, name, kind, size in rows]
        sizes = [size for *_, size in checked]
        if any(type(size) is not int or size < 0 for size in sizes) or sum(sizes) != length:
            raise ValueError("lengths that do not add up")
        if any(role not in _ROLES for role, *_ in checked):
            raise ValueError("a part of an unknown kind")
    except (TypeError, ValueError, RemoteProtocolError) as error:
        raise _malformed(error) from None
    return checked


def _part_as_bytes(part: ContextPart) -> tuple[str, bytes]:
    value = part.read()
    if isinstance(value, str):
        return "str", value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return "bytes", value
    return "json", json.dumps(value).encode()


def _part(name: str, kind: str, data: bytes) -> ContextPart:
    try:
        if kind == "str":
            text = data.decode("utf-8", "surrogatepass")
            return ContextPart(name, text, len(text), "chars")
        if kind == "json":
            value: JSON = json.loads(data)
            length = len(json.dumps(value, ensure_ascii=False))
            return ContextPart(name, value, length, "chars of JSON")
    except (ValueError, RecursionError) as error:
        raise _malformed(error) from None
    return ContextPart(name, data, len(data), "bytes")


def _malformed(error: Exception) -> CheckpointError:
    return CheckpointError(f"the saved episode is malformed: {error}"[:1000])


def exactly(value: Any, name: str) -> JSON:
    """Return `value` if JSON carries it unchanged.

    Raises:
        TypeError: naming the argument.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()  # a file cannot hold a lone surrogate
        if json.loads(text) == value:
            carried: JSON = value
            return carried
    except (TypeError, ValueError, RecursionError):
        pass
    raise TypeError(
        f"{name}: an episode can be saved only if this is JSON, and {value!r:.80} is not"
    )


def read(path: str | os.PathLike[str]) -> bytes:
    """Read the file `path` if it begins as a saved episode; other files may be endless.

    Raises:
        CheckpointError: the file is not a saved episode.
    """
    with open(path, "rb") as file:
        file_container.check_beginning(file.peek(), KIND, WHAT)
        return file.read()


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to the file `path` atomically; only its owner may read it.

    A link stays a link, and its target is replaced. Devices, pipes and sockets are refused.

    Raises:
        OSError: naming `path`.
    """
    try:
        _replace(replace_target(path), data)
    except OSError as error:
        # The user does not know the temporary name of the file.
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _replace(target: Path, data: bytes) -> None:
    fd, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
