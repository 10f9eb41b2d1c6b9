"""The configuration of an episode, from the options of its reset or follow-up.

All checks run here, before a session starts or the previous episode is touched.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from repl_env.common.argument_checks import at_least, of_kind
from repl_env.common.json_values import replace_surrogates
from repl_env.env.options import EnvironmentOptions, check_name
from repl_env.episode import contexts
from repl_env.episode.answers import Validator
from repl_env.episode.call_options import FollowUpOptions, ResetOptions
from repl_env.episode.initial_files import contents
from repl_env.episode.rules import EpisodeConfig
from repl_env.episode.sandbox_provider import SandboxProvider
from repl_env.llm.model_spec import LLM
from repl_env.rlm.subcalls.subcall_settings import SubcallSettings
from repl_sandbox.session_limits import check_seed


def episode_config(
    options: ResetOptions,
    settings: EnvironmentOptions,
    helpers: tuple[str, ...],
    sandbox_provider: SandboxProvider,
    check: Validator | None,
) -> EpisodeConfig:
    """Return the episode's configuration for a session of `sandbox_provider`; `check` is of
    `answer_schema`.

    Raises:
        TypeError, ValueError, OSError: naming the argument.
    """
    check_seed(options.seed)
    resolved = contexts.resolve(
        options.context,
        options.contexts,
        settings.context,
        mode=settings.preview,
        preview_length=settings.context_preview_length,
        sandbox_provider=sandbox_provider,
    )
    for part in resolved.parts:
        check_name(part.name, "contexts", settings.tools)
    task_prompt = settings.task_prompt if options.task_prompt is None else options.task_prompt
    return EpisodeConfig(
        episode_id=_text(options.episode_id, "episode_id") or uuid.uuid4().hex,
        task_prompt=_text(task_prompt, "task_prompt"),
        context=resolved,
        files=contents(options.files, sandbox_provider.limits),
        max_iterations=at_least(
            _given(options.max_iterations, settings.max_iterations), 1, "max_iterations"
        ),
        max_output_length=settings.max_output_length,
        helpers=helpers,
        validator=check,
        memory=int(sandbox_provider.limits.memory),
    )


def follow_up_config(
    options: FollowUpOptions,
    previous: EpisodeConfig,
    settings: EnvironmentOptions,
    check: Validator | None,
) -> EpisodeConfig:
    """Return the configuration of an episode that follows `previous` in the same session.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    iterations = _given(options.max_iterations, settings.max_iterations)
    return replace(
        previous,
        episode_id=uuid.uuid4().hex,
        task_prompt=_text(options.task_prompt, "task_prompt"),
        max_iterations=at_least(iterations, 1, "max_iterations"),
        validator=check,
    )


def subcall_settings(options: ResetOptions, settings: EnvironmentOptions) -> SubcallSettings:
    """Return the settings for the episode's sub-calls."""
    iterations = _given(options.rlm_max_iterations, settings.rlm_max_iterations)
    if iterations is not None:
        iterations = at_least(iterations, 1, "rlm_max_iterations")
    return SubcallSettings(
        llm=LLM.of(options.llm, options.llm_model, options.hf_token),
        max_depth=at_least(
            _given(options.rlm_max_depth, settings.rlm_max_depth), 1, "rlm_max_depth"
        ),
        max_iterations=iterations,
    )


def _text(value: str | None, name: str) -> str:
    if value is not None:
        of_kind(value, str, name)
    return replace_surrogates(value or "")


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value
