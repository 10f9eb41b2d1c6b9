"""`ChildEnvFactory`: makes environments for child runs, and the model of an episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import ref

from repl_env.env.async_episode import ChildEnv
from repl_env.llm.model_spec import LLM
from repl_env.rewards.repl_rubric import REPLRubric
from repl_env.rlm.subcalls.subcall_settings import Provider

if TYPE_CHECKING:
    from repl_env.env.environment import REPLEnvironment
    from repl_env.llm.base import ChatModel


class ChildEnvFactory:
    """Makes environments like that of an episode: `child_runs.ChildEnvironments`.

    The session of the episode holds this object for its sub-calls, so the object must reference
    neither the episode nor the environment: it would keep them alive.

    Args:
        template: the environment to copy, without episode, context, rubric or transform.
        make_model: makes a model from a Hugging Face token and a model name.
    """

    def __init__(self, template: REPLEnvironment, make_model: Callable[..., Any]) -> None:
        self._template, self._make_model = template, make_model

    @classmethod
    def of(cls, environment: ref[REPLEnvironment]) -> ChildEnvFactory:
        """Return the factory for the episodes of `environment`, which must be alive."""
        parent = environment()
        assert parent is not None  # a call on the environment is active
        template = parent.new_sibling()
        template.transform, template.rubric = None, None
        template.settings = replace(parent.settings, context=None, task_prompt=None)
        return cls(template, parent._build_hf_chat_fn)

    def child(self, provider: Provider) -> ChildEnv:
        """Return an environment whose sub-calls `provider` answers.

        Its sessions come from the same sandbox and have no default context; its calls are awaited,
        and it scores nothing.
        """
        environment = self._template.new_sibling()
        environment.rubric = REPLRubric()
        environment.use_subcall_provider(provider)
        return ChildEnv(environment)

    def model(self, llm: LLM) -> ChatModel:
        """Return the model that `llm`, an argument of a reset, names; see `model_of`.

        Raises:
            ImportError: naming the library to install.
            ValueError: `llm` is incomplete.
        """
        from repl_env.llm.base import as_model

        if llm.base_url is None and not llm.headers and not llm.sampling:
            return as_model(self._make_model(llm.api_key, llm.model))
        from repl_env.llm.model_factory import model_of

        found = model_of(llm)
        if found is None:
            raise ValueError("llm says neither where a model is nor with which key to ask for it")
        return found
