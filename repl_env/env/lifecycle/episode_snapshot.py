"""The contents of a saved episode: collected from a live one, and restored to a session."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, cast

from repl_env.common.binary_json import MAX_FILES
from repl_env.env.lifecycle.current_episode import CurrentEpisode, HiddenTask, Mode
from repl_env.episode.answers import Validator
from repl_env.episode.effects import Effects
from repl_env.episode.rules import Episode
from repl_env.episode.sandbox_provider import SandboxProvider
from repl_env.episode.session_effects import make_session
from repl_env.llm.model_spec import LLM
from repl_env.models import result_of
from repl_env.rewards.scoring import state_of, takes_expected
from repl_env.rlm.budget.budget_limits import Spent
from repl_env.rlm.subcalls.subcall_settings import SubcallSettings
from repl_env.storage.episode_file import (
    EpisodeFile,
    SavedAnswer,
    SavedEpisode,
    SavedSpent,
    SavedTotals,
    StopReason,
    exactly,
    read,
    write,
)
from repl_sandbox.errors import CheckpointError
from repl_sandbox.protocol import checkpoint_manifest
from repl_sandbox.types import Answers, File, Missing

# Bytes of workspace files, all held in memory: the default limit of a workspace. Sparse files have
# any size at no cost to the session.
MAX_BYTES = 256 << 20


def snapshot(current: CurrentEpisode, answers: Answers, rubric: Any) -> SavedEpisode:
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
    return checkpoint_manifest.read_manifest(data).missing + tuple(missing)


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
