"""An episode in a file and as a snapshot, from which it goes on."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from repl_env.common.binary_json import MAX_FILES
from repl_env.common.files import open_regular, replace_target
from repl_env.common.threads import Offload
from repl_env.common.values import check_path
from repl_env.env.current_episode import (
    CurrentEpisode,
    EpisodeSlot,
    HiddenTask,
    Mode,
    SessionOpening,
)
from repl_env.env.options import EpisodeEquipment
from repl_env.env.step import RewardStep
from repl_env.episode import effects
from repl_env.episode.answers import FinalAnswer, Validator, validator
from repl_env.episode.contexts import Context, ContextPart, Value, measured
from repl_env.episode.effects import Effects, make_session
from repl_env.episode.rules import Episode, EpisodeConfig, EpisodeTotals
from repl_env.episode.sandboxes import SandboxProvider
from repl_env.llm.spec import LLM
from repl_env.models import REPLObservation, result_of
from repl_env.rlm.answerers import SubcallSettings
from repl_env.rlm.budget import Spent
from repl_env.rubrics import state_of, takes_expected
from repl_sandbox.errors import CheckpointError, RemoteProtocolError
from repl_sandbox.protocol import checkpoints
from repl_sandbox.protocol.values import parse_json
from repl_sandbox.tables import Table
from repl_sandbox.types import JSON, Answers, File, Missing

# An episode in a file: the format that `save` writes and `load` reads.
#
# The file belongs to the host. It holds the checkpoint of the session (never unpickled here), its
# files, the context, and the host's state of the episode, including the expected answer. It holds
# no token, key or function: the caller of `load` supplies those.

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
    """`repl_env.rlm.budget.Spent` in a file."""

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
        return checkpoints.pack_container(KIND, VERSION, json.dumps(rows).encode(), pieces)

    @classmethod
    def parse(cls, data: bytes) -> EpisodeFile:
        """Parse the episode in `data`.

        Raises:
            CheckpointError: `data` is damaged, of another version, or not an episode.
        """
        header, payload = checkpoints.unpack_container(data, KIND, VERSION, WHAT)
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
    if isinstance(value, Table):
        return "table", value.data
    return "json", json.dumps(value).encode()


def _part(name: str, kind: str, data: bytes) -> ContextPart:
    value: Value = data
    try:
        if kind == "str":
            value = data.decode("utf-8", "surrogatepass")
        elif kind == "json":
            value = json.loads(data)
        elif kind == "table":
            value = Table.from_bytes(data)
        return ContextPart(name, value, *measured(value))
    except (ValueError, RecursionError) as error:
        raise _malformed(error) from None


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
    """Read the file `path` if it begins as a saved episode.

    Raises:
        CheckpointError: the file is not a saved episode.
        OSError: naming the file; it cannot be read, or is a pipe or a device.
    """
    with open_regular(path) as file:
        checkpoints.check_beginning(file.peek(), KIND, WHAT)
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


# The contents of a saved episode: collected from a live one, and restored to a session.

# Bytes of workspace files, all held in memory: the default limit of a workspace. Sparse files have
# any size at no cost to the session.
MAX_BYTES = 256 << 20


def episode_snapshot(current: CurrentEpisode, answers: Answers, rubric: Any) -> SavedEpisode:
    """Return the host's state of the episode between two steps.

    Raises:
        TypeError: the expected answer, or the state of the rubric, is not JSON.
        ValueError: an answer waits for the next step.
    """
    current.check_no_waiting_answer("save")
    episode, hidden_task, last, spent = (
        current.episode,
        current.hidden_task,
        current.last,
        current.spent,
    )
    config, final, schema = episode.config, episode.final, hidden_task.answer_schema
    return SavedEpisode(
        episode_id=config.episode_id,
        task_prompt=config.task_prompt,
        context_preview=config.context.preview,
        max_iterations=config.max_iterations,
        max_output_length=config.max_output_length,
        helpers=list(config.helpers),
        answers=answers,
        answer_schema=schema if isinstance(schema, dict) else None,
        needs_schema=schema is not None and not isinstance(schema, dict),
        expected_answer=exactly(hidden_task.expected_answer, "expected_answer"),
        llm_model=hidden_task.subcalls.llm.model,
        rlm_max_depth=hidden_task.subcalls.max_depth,
        rlm_max_iterations=hidden_task.subcalls.max_iterations,
        iteration=episode.iteration,
        cells=episode.cells,
        stop_reason=cast("StopReason | None", episode.stop_reason),
        final=None if final is None else SavedAnswer(text=final.text, value=final.value),
        masked=episode.masked,
        totals=SavedTotals(**asdict(episode.totals)),
        names=list(episode.names),
        names_are_known=episode.names_are_known,
        last=None if last is None else last.observation.model_dump(mode="json"),
        rubric=exactly(state_of(rubric), "rubric"),
        spent=None if spent is None else SavedSpent(**asdict(spent)),
    )


def hidden_task_of(
    saved: SavedEpisode,
    offered: Sequence[str],
    answers: Answers,
    rubric: Any,
    schema: Any,
    llm: LLM,
) -> HiddenTask:
    """Return the hidden settings of a restored episode, from its file and the caller's arguments.

    Raises:
        ValueError: naming the missing part.
    """
    if lacking := sorted(set(saved.helpers) - set(offered)):
        raise ValueError(
            f"the episode was begun with {', '.join(lacking)}; functions are not saved, so give "
            "them to the environment that loads it"
        )
    if saved.answers != answers:
        raise ValueError(f"answers: the episode was begun with {saved.answers!r}, not {answers!r}")
    if saved.needs_schema and schema is None:
        raise ValueError("answer_schema: the episode had a type, which is not saved; give it again")
    if saved.expected_answer is not None and not takes_expected(rubric):
        raise ValueError(f"{type(rubric).__name__} takes no expected answer; the episode has one")
    if llm.model is None:
        llm = replace(llm, model=saved.llm_model)
    return HiddenTask(
        saved.expected_answer,
        schema if saved.needs_schema else saved.answer_schema,
        SubcallSettings(llm, saved.rlm_max_depth, saved.rlm_max_iterations),
    )


def restored_episode(
    mode: Mode, file: EpisodeFile, hidden_task: HiddenTask, check: Validator | None, memory: int
) -> CurrentEpisode:
    """Return the episode of `file`, not open yet; `check` belongs to its answer schema.

    `memory`: bytes that its session may use.

    Raises:
        CheckpointError: the observation that ended it is invalid.
    """
    config = file.episode.config(file.context, check, memory)
    last = file.episode.last_observation()
    return CurrentEpisode(
        mode, Episode(config), hidden_task, None if last is None else result_of(last)
    )


def usage_of(saved: SavedEpisode) -> Spent | None:
    """Return the recorded spending of the episode; None if it was not counted."""
    return None if saved.spent is None else Spent(**saved.spent.model_dump())


def save_effects(
    session: Any, episode: Episode, saved: SavedEpisode, path: str | os.PathLike[str], plain: bool
) -> Effects[tuple[Missing, ...]]:
    """Write the episode with its session to the file `path`.

    Return the parts that are not in it.
    """
    data = yield session.checkpoint
    files, missing = yield from _files(session)
    file = EpisodeFile(saved, episode.config.context, files, data)
    yield _off_loop(lambda: write(path, file.pack()), plain)
    return checkpoints.read_manifest(data).missing + tuple(missing)


def read_effects(path: str | os.PathLike[str], plain: bool) -> Effects[EpisodeFile]:
    """Read the episode in the file `path`."""
    file: EpisodeFile = yield _off_loop(lambda: EpisodeFile.parse(read(path)), plain)
    return file


def _off_loop(work: Callable[[], Any], plain: bool) -> Callable[[], Any]:
    """Run file access, which takes as long as the disk does, outside the event loop."""
    return work if plain else partial(asyncio.to_thread, work)


def _files(session: Any) -> Effects[tuple[dict[str, bytes], list[Missing]]]:
    """Return the regular files of the workspace, and the entries of other kinds."""
    listing = yield partial(session.files.list, limit=MAX_FILES)
    if not listing.complete:
        raise CheckpointError(
            f"the workspace cannot be listed whole: it has more than {MAX_FILES:,} entries, is "
            "too deep, or has a directory that is closed to its owner"
        )
    regular_files = [file for file in listing if _unsaved(file) is None]
    if sum(file.size for file in regular_files) > MAX_BYTES:
        raise CheckpointError(f"the workspace has files of more than {MAX_BYTES:,} bytes")
    paths = [file.path for file in regular_files]
    found = yield partial(session.files.get_all, paths, limit=MAX_BYTES)
    missing = []
    for file in listing:
        reason = _unsaved(file)
        if isinstance(error := found.get(file.path), OSError):
            reason = error.strerror or type(error).__name__
        if reason:
            path = file.path.encode("utf-8", "replace").decode()
            missing.append(Missing(path, file.kind, reason))
    files = {path: data for path, data in found.items() if isinstance(data, bytes)}
    return files, missing


def _unsaved(file: File) -> str | None:
    """Return why a file is not saved; "" if it need not be, None if it is to be saved."""
    if file.kind == "directory":
        return ""
    if file.kind != "file":
        return "only regular files are saved"
    try:
        file.path.encode()
    except UnicodeEncodeError:
        return "its name is no UTF-8"
    return None


def restore_effects(
    sandbox_provider: SandboxProvider, *, plain: bool, file: EpisodeFile, **arguments: Any
) -> Effects[Any]:
    """Make a session from `file`, in the sandbox of `sandbox_provider`."""
    data, files = file.checkpoint, file.files
    return (
        yield from make_session(
            sandbox_provider,
            lambda sandbox: sandbox.restore(data, files=files, **arguments),
            plain=plain,
        )
    )


# `EpisodeContinuation`: saves an episode, loads one from a file, undoes cells, makes branches.


class EpisodeContinuation:
    """Saves the episode of `slot`, loads one into it, and branches it into other slots."""

    def __init__(
        self,
        slot: EpisodeSlot,
        equipment: EpisodeEquipment,
        scorer: RewardStep,
        session_opening: SessionOpening,
    ) -> None:
        self._slot, self._equipment = slot, equipment
        self._scorer, self._session_opening = scorer, session_opening

    def save(self, mode: Mode, path: str | os.PathLike[str]) -> Effects[tuple[Missing, ...]]:
        """Write the episode to the file `path`; see `REPLEnvironment.save`."""
        check_path(path, "path")
        current = self._slot.current_in(mode)
        saved = episode_snapshot(current, self._equipment.settings.answers, self._scorer.rubric)
        plain = mode == "plain"
        return (yield from save_effects(current.session, current.episode, saved, path, plain))

    def load(
        self, mode: Mode, path: str | os.PathLike[str], schema: Any, llm: LLM
    ) -> Effects[tuple[Missing, ...]]:
        """Continue the episode in the file `path`; see `REPLEnvironment.load`."""
        check_path(path, "path")
        if mode == "plain":
            self._slot.check_mode(mode)
        file = yield from read_effects(path, mode == "plain")
        loaded = yield from self._unopened_episode(mode, file, schema, llm)
        answers = self._equipment.settings.answers
        sandbox_provider = file.context.sandbox_provider or self._equipment.sandbox_provider
        start = partial(
            restore_effects,
            sandbox_provider,
            plain=mode == "plain",
            answers=answers,
            file=file,
        )
        with self._slot.reset_guard:
            yield from self._session_opening.open(loaded, start, usage_of(file.episode))
            missing: tuple[Missing, ...] = loaded.session.missing
            try:
                file.episode.resume(loaded.episode, missing)
                expected, state = file.episode.expected_answer, file.episode.rubric
                yield from self._scorer.reset_rubric(self._slot.current, mode, expected, state)
            except BaseException:
                yield from loaded.close()
                raise
            yield from self._slot.replace_current(loaded)
        return missing

    def _unopened_episode(
        self, mode: Mode, file: EpisodeFile, schema: Any, llm: LLM
    ) -> Effects[CurrentEpisode]:
        """Return the episode of `file`, without a session yet."""
        saved, equipment = file.episode, self._equipment
        helpers = equipment.helpers(SubcallSettings(llm))
        answers, rubric = equipment.settings.answers, self._scorer.rubric
        hidden_task = hidden_task_of(saved, helpers, answers, rubric, schema, llm)
        check = yield Offload(validator, hidden_task.answer_schema)
        memory = int(equipment.sandbox_provider.limits.memory)
        return restored_episode(mode, file, hidden_task, check, memory)

    def rollback(self, mode: Mode, cells: int) -> Effects[tuple[str, ...]]:
        """Undo the last `cells` cells; see `REPLEnvironment.rollback`."""
        current = self._slot.current_in(mode)
        with current.step_guard:
            return (yield from effects.roll_back(current.session, current.episode, cells))

    def branch(self, mode: Mode, seed: int | None, other: EpisodeSlot) -> Effects[None]:
        """Put a branch of the episode into `other`, which holds none."""
        current = self._slot.current_in(mode)
        branch = current.branch()
        start = partial(effects.branch_session, current.session, seed=seed)
        yield from self._session_opening.open(branch, start, current.spent)
        current.branches += 1
        other.current = branch
