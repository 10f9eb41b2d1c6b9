"""The options of an environment, the request of a reset, and the episode configuration of both.

All checks run here, before a session starts or the previous episode is touched.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from repl_env.common.argument_checks import at_least, check_callable, of_kind, one_of
from repl_env.common.json_values import json_text, replace_surrogates
from repl_env.episode import contexts
from repl_env.episode.answers import Validator
from repl_env.episode.contexts import Context, Given
from repl_env.episode.initial_files import Files, contents
from repl_env.episode.previews import MODES, Preview
from repl_env.episode.rules import EpisodeConfig
from repl_env.episode.sandbox_provider import SandboxProvider
from repl_env.llm.model_spec import LLM
from repl_env.models import (
    DEFAULT_CONTEXT_PREVIEW_LENGTH,
    DEFAULT_MAX_CONCURRENT_SUBCALLS,
    DEFAULT_MAX_ITERATIONS,
    DEFAULT_MAX_OUTPUT_LENGTH,
)
from repl_env.rlm.subcalls.subcall_settings import BUDGET, NAMES, SubcallSettings
from repl_sandbox.protocol.values.variable_names import check_free
from repl_sandbox.session.host_functions.host_function import check_function_name
from repl_sandbox.session_limits import check_seed
from repl_sandbox.types import Answers

_RESERVED = frozenset({*NAMES, BUDGET})


# The minimum of each count, and the counts that may be None.
_LEAST = {
    "max_iterations": 1,
    "max_output_length": 1,
    "context_preview_length": 0,
    "rlm_max_depth": 1,
    "rlm_max_iterations": 1,
    "max_concurrent_subcalls": 1,
}
_OPTIONAL = frozenset({"rlm_max_iterations"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentOptions:
    """The options of an environment, for all its episodes. See `REPLEnvironment`."""

    context: Given | None = None
    task_prompt: str | None = None
    max_iterations: int = DEFAULT_MAX_ITERATIONS
    max_output_length: int = DEFAULT_MAX_OUTPUT_LENGTH
    context_preview_length: int = DEFAULT_CONTEXT_PREVIEW_LENGTH
    rlm_max_depth: int = 1
    rlm_max_iterations: int | None = None
    max_concurrent_subcalls: int = DEFAULT_MAX_CONCURRENT_SUBCALLS
    tools: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    answers: Answers = "compatible"
    preview: Preview = "head"

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if (given := getattr(self, name)) is not None or name not in _OPTIONAL:
                object.__setattr__(self, name, at_least(given, least, name))
        one_of(self.answers, ("compatible", "strict"), "answers")
        one_of(self.preview, tuple(MODES), "preview")
        checked_tools(self.tools)
        if self.context is not None:
            contexts.check_kind(contexts.NAME, self.context)
        _text(self.task_prompt, "task_prompt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRequest:
    """The arguments of one reset; None means the environment's option."""

    seed: int | None = None
    episode_id: str | None = None
    context: Given | Context | None = None
    contexts: Mapping[str, Given] | None = None
    files: Files | None = None
    task_prompt: str | None = None
    max_iterations: int | None = None
    hf_token: str | None = field(default=None, repr=False)
    llm_model: str | None = None
    llm: LLM | None = None
    expected_answer: Any = field(default=None, repr=False)
    answer_schema: Any = None
    rlm_max_depth: int | None = None
    rlm_max_iterations: int | None = None

    def episode_config(
        self,
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
        check_seed(self.seed)
        resolved = contexts.resolve(
            self.context,
            self.contexts,
            settings.context,
            mode=settings.preview,
            preview_length=settings.context_preview_length,
            sandbox_provider=sandbox_provider,
        )
        for part in resolved.parts:
            check_name(part.name, "contexts", settings.tools)
        task_prompt = settings.task_prompt if self.task_prompt is None else self.task_prompt
        return EpisodeConfig(
            episode_id=_text(self.episode_id, "episode_id") or uuid.uuid4().hex,
            task_prompt=_text(task_prompt, "task_prompt"),
            context=resolved,
            files=contents(self.files, sandbox_provider.limits),
            max_iterations=at_least(
                _given(self.max_iterations, settings.max_iterations), 1, "max_iterations"
            ),
            max_output_length=settings.max_output_length,
            helpers=helpers,
            validator=check,
            memory=int(sandbox_provider.limits.memory),
        )

    def follow_up_config(
        self, previous: EpisodeConfig, settings: EnvironmentOptions, check: Validator | None
    ) -> EpisodeConfig:
        """Return the configuration of an episode that follows `previous` in the same session.

        Raises:
            TypeError, ValueError: naming the argument.
        """
        iterations = _given(self.max_iterations, settings.max_iterations)
        return replace(
            previous,
            episode_id=uuid.uuid4().hex,
            task_prompt=_text(self.task_prompt, "task_prompt"),
            max_iterations=at_least(iterations, 1, "max_iterations"),
            validator=check,
        )

    def subcalls(self, settings: EnvironmentOptions) -> SubcallSettings:
        """Return the settings for the episode's sub-calls."""
        iterations = _given(self.rlm_max_iterations, settings.rlm_max_iterations)
        if iterations is not None:
            iterations = at_least(iterations, 1, "rlm_max_iterations")
        return SubcallSettings(
            llm=LLM.of(self.llm, self.llm_model, self.hf_token),
            max_depth=at_least(
                _given(self.rlm_max_depth, settings.rlm_max_depth), 1, "rlm_max_depth"
            ),
            max_iterations=iterations,
        )


REQUEST_NAMES = frozenset(each.name for each in fields(ResetRequest))


def checked_tools(tools: Mapping[str, Callable[..., Any]] | None) -> dict[str, Callable[..., Any]]:
    """Return a copy of `tools`.

    TypeError or ValueError naming a tool that a session cannot have.
    """
    if not isinstance(tools, Mapping | None):
        raise TypeError(f"tools must be a dict of functions, not {type(tools).__name__}")
    for name, tool in (tools or {}).items():
        check_name(check_function_name(name, "tools"), "tools")
        check_callable(tool, f"tools: {name}")
    return dict(tools or {})


def check_name(name: object, argument: str, taken: Mapping[str, object] | None = None) -> None:
    """Raise TypeError or ValueError unless `name` is a valid variable name that is not reserved."""
    if (checked := check_free(name, argument)) in _RESERVED or checked in (taken or {}):
        raise ValueError(f"{argument}: the name {name!r} is taken; the session has it already")


def check_variables(variables: object, taken: Mapping[str, object]) -> None:
    """Raise TypeError or ValueError naming a variable that a follow-up cannot set."""
    if not isinstance(variables, Mapping):
        raise TypeError(f"variables must be a dict, not {type(variables).__name__}")
    for name, value in variables.items():
        check_name(name, "variables", taken)
        if not isinstance(value, (str, bytes, bytearray, memoryview)):
            json_text(f"variables: {name}", value)


def _text(value: str | None, name: str) -> str:
    if value is not None:
        of_kind(value, str, name)
    return replace_surrogates(value or "")


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value
