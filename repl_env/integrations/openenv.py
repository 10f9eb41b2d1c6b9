"""`REPLEnvironment` as an environment of OpenEnv, for its server and trainers that host one."""

from __future__ import annotations

from typing import Any, cast

from openenv.core.env_server import interfaces, types

from repl_env import models
from repl_env.common.display import set_module
from repl_env.env import environment
from repl_env.env.attributes import of_inner
from repl_env.episode.contexts import Given
from repl_env.interfaces import Transform
from repl_env.models import trusted
from repl_env.openenv import REPLAction, REPLObservation, REPLState


@set_module("repl_env.openenv")
class REPLEnvironment(interfaces.Environment[REPLAction, REPLObservation, REPLState]):
    """A `repl_env.REPLEnvironment` behind OpenEnv's interface.

    The arguments are those of `repl_env.REPLEnvironment`. Transforms and rubrics may be OpenEnv's;
    they are given observations of its kind.
    ```python
    app = create_fastapi_app(
        REPLEnvironment, REPLAction, REPLObservation, max_concurrent_envs=8, state_cls=REPLState
    )
    ```
    Episodes are plain ones. `reset_async` and `step_async` are OpenEnv's, which call the plain
    methods: by that its server knows that it must run them in a thread, one for each session.

    Attributes:
        those of `repl_env.REPLEnvironment`, which may be assigned.
        environment: the environment behind it, which has `branch`, `save` and the rest.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    max_iterations = of_inner("environment", "max_iterations")
    initial_context = of_inner("environment", "initial_context")
    initial_task_prompt = of_inner("environment", "initial_task_prompt")
    max_concurrent_subcalls = of_inner("environment", "max_concurrent_subcalls")
    llm_query_fn = of_inner("environment", "llm_query_fn")
    llm_batch_fn = of_inner("environment", "llm_batch_fn")
    subcall_fn = of_inner("environment", "subcall_fn")
    subcall_batch_fn = of_inner("environment", "subcall_batch_fn")
    max_output_length = of_inner("environment", "max_output_length")
    context_preview_length = of_inner("environment", "context_preview_length")
    rlm_max_depth = of_inner("environment", "rlm_max_depth")
    rlm_max_iterations = of_inner("environment", "rlm_max_iterations")

    def __init__(self, *given: Any, transform: Any = None, **settings: Any) -> None:
        self.environment = environment.REPLEnvironment(
            *given, transform=_Presented(transform), **settings
        )
        super().__init__(transform=transform, rubric=self.environment.rubric)

    @property
    def rubric(self) -> Any:
        """The environment's own copy of the rubric."""
        return self.environment.rubric

    @rubric.setter
    def rubric(self, rubric: Any) -> None:
        self.environment.rubric = rubric

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        context: Given | None = None,
        task_prompt: str | None = None,
        hf_token: str | None = None,
        llm_model: str | None = None,
        **kwargs: Any,
    ) -> REPLObservation:
        """Begin an episode; see `repl_env.REPLEnvironment.reset`."""
        observation = self.environment.reset(
            seed, episode_id, context, task_prompt, hf_token, llm_model, **kwargs
        )
        return cast(REPLObservation, observation)  # by the transform below

    def step(
        self, action: REPLAction, timeout_s: float | None = None, **kwargs: Any
    ) -> REPLObservation:
        """Run the action's code, or submit its answer; see `repl_env.REPLEnvironment.step`."""
        return cast(REPLObservation, self.environment.step(action, timeout_s, **kwargs))

    @property
    def state(self) -> REPLState:
        """The episode so far; NotReset if none has begun."""
        return trusted(REPLState, **vars(self.environment.state))

    def get_metadata(self) -> types.EnvironmentMetadata:
        """Name, description and version."""
        return types.EnvironmentMetadata(**self.environment.get_metadata().model_dump())

    def close(self) -> None:
        """Close the session. Safe to call twice."""
        self.environment.close()


class _Presented(Transform[models.REPLObservation]):
    """Makes an observation one of OpenEnv's kind, then does what the user's transform does."""

    def __init__(self, then: Any) -> None:
        self._then = then

    def __call__(self, observation: models.REPLObservation) -> REPLObservation:
        presented = trusted(REPLObservation, **vars(observation))
        return presented if self._then is None else self._then(presented)
