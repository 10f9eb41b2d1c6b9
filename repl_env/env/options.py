"""The options of environments, of their constructors and of episodes; checks of names, tools."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

from repl_env.common.values import (
    at_least,
    check_callable,
    json_text,
    of_kind,
    one_of,
    replace_surrogates,
)
from repl_env.episode import contexts
from repl_env.episode.answers import Validator
from repl_env.episode.call_options import FollowUpOptions, ResetOptions, options_in
from repl_env.episode.contexts import MODES, Given, Preview
from repl_env.episode.initial_files import contents
from repl_env.episode.rules import EpisodeConfig
from repl_env.episode.sandboxes import SandboxProvider, SandboxSettings
from repl_env.llm.spec import LLM
from repl_env.models import (
    DEFAULT_CONTEXT_PREVIEW_LENGTH,
    DEFAULT_MAX_CONCURRENT_SUBCALLS,
    DEFAULT_MAX_ITERATIONS,
    DEFAULT_MAX_OUTPUT_LENGTH,
)
from repl_env.rlm.answerers import BUDGET, NAMES, Provider, SubcallSettings, UserFunction
from repl_env.rlm.providers import GivenProvider
from repl_sandbox.protocol.values import check_free
from repl_sandbox.session.host_functions import check_function_name
from repl_sandbox.tables import is_table
from repl_sandbox.types import Answers, check_seed

if TYPE_CHECKING:
    from repl_env.interfaces import Transform
    from repl_env.models import REPLObservation
    from repl_env.rlm.budget import Budget, Price
    from repl_env.rubrics import Rubric
    from repl_sandbox import AsyncSandbox, Limits, Policy, Sandbox


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
    tools: Mapping[str, UserFunction] = field(default_factory=dict)  # None counts as none
    answers: Answers = "compatible"
    preview: Preview = "head"

    def __post_init__(self) -> None:
        for name, minimum in _LEAST.items():
            if (value := getattr(self, name)) is not None or name not in _OPTIONAL:
                object.__setattr__(self, name, at_least(value, minimum, name))
        one_of(self.answers, ("compatible", "strict"), "answers")
        one_of(self.preview, tuple(MODES), "preview")
        object.__setattr__(self, "tools", checked_tools(self.tools))
        if self.context is not None:
            contexts.check_kind(contexts.NAME, self.context)
        if self.task_prompt is not None:
            of_kind(self.task_prompt, str, "task_prompt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstructorOptions(EnvironmentOptions):
    """The options of the constructors of `REPLEnvironment` and of the local environments."""

    rubric: Rubric | None = None
    llm_query_fn: UserFunction | None = None
    llm_batch_fn: UserFunction | None = None
    subcall_fn: UserFunction | None = None
    subcall_batch_fn: UserFunction | None = None
    sandbox: Sandbox | AsyncSandbox | None = None
    isolation: str = "auto"
    require: str | None = None
    image: str | None = None
    runtime: str | None = None
    limits: Limits | None = None
    policy: Policy | None = None
    preload: Sequence[str] = ()
    history: int = 0
    budget: Budget | None = None
    prices: Mapping[str, Price] | None = None
    transform: Transform[REPLObservation] | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Return the options among `arguments`."""
        return cls(**options_in(cls, arguments))


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


def check_name(name: object, argument: str, used_names: Mapping[str, object] | None = None) -> None:
    """Raise TypeError or ValueError unless `name` is a valid variable name that is not reserved."""
    if (checked := check_free(name, argument)) in _RESERVED or checked in (used_names or {}):
        raise ValueError(f"{argument}: the name {name!r} is taken; the session has it already")


def check_variables(variables: object, used_names: Mapping[str, object]) -> None:
    """Raise TypeError or ValueError naming a variable that a follow-up cannot set."""
    if not isinstance(variables, Mapping):
        raise TypeError(f"variables must be a dict, not {type(variables).__name__}")
    for name, value in variables.items():
        check_name(name, "variables", used_names)
        if not isinstance(value, (str, bytes, bytearray, memoryview)) and not is_table(value):
            json_text(f"variables: {name}", value)


# The configuration of an episode, from the options of its reset or follow-up.
#
# All checks run here, before a session starts or the previous episode is touched.


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


# `EpisodeEquipment`: the options and providers for later episodes of an environment.


@dataclass(slots=True)
class EpisodeEquipment:
    """Options and providers; replacing one leaves the current episode unchanged.

    Attributes:
        settings: the default configuration of episodes.
        subcall_provider: answers sub-calls.
        sandbox_provider: provides the sandbox of sessions.
    """

    settings: EnvironmentOptions
    subcall_provider: Provider
    sandbox_provider: SandboxProvider

    @classmethod
    def of(cls, options: ConstructorOptions) -> EpisodeEquipment:
        """Return the equipment for the options of a constructor.

        Raises:
            TypeError, ValueError: naming the argument.
        """
        names = [each.name for each in fields(EnvironmentOptions)]
        settings = EnvironmentOptions(**{name: getattr(options, name) for name in names})
        return cls(settings, _subcall_provider(options), _sandbox_provider(options))

    def helpers(self, subcalls: SubcallSettings) -> tuple[str, ...]:
        """Return the names of the functions that a session has with these settings."""
        return (*sorted(self.subcall_provider.names(subcalls)), *self.settings.tools)


def _subcall_provider(options: ConstructorOptions) -> GivenProvider:
    return GivenProvider(
        options.llm_query_fn,
        options.llm_batch_fn,
        options.subcall_fn,
        options.subcall_batch_fn,
        budget=options.budget,
        prices=options.prices,
    )


def _sandbox_provider(options: ConstructorOptions) -> SandboxProvider:
    settings = SandboxSettings.of(
        options.isolation,
        options.require,
        options.limits,
        options.preload,
        options.policy,
        options.image,
        options.runtime,
        options.history,
    )
    return SandboxProvider(options.sandbox, settings)
