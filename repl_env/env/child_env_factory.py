"""`ChildEnvFactory`: environments for the runs below an episode, and the model that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from repl_env.env.async_episode import ChildEnv
from repl_env.llm.model_spec import LLM
from repl_env.rewards.rubric import REPLRubric
from repl_env.rlm.subcalls.subcall_settings import Provider

if TYPE_CHECKING:
    from repl_env.env.environment import REPLEnvironment
    from repl_env.llm.base import ChatModel


class ChildEnvFactory:
    """Makes environments like that of an episode; a `Home` for `repl_env.rlm.subcalls.child_runs`.

    The session of the episode holds this for its sub-calls, so it must know neither the episode nor
    the environment: they would be kept alive.

    Args:
        like: what each is a copy of; it has no episode, context, rubric or transform.
        chat: makes what answers with a token of Hugging Face and a name of a model.
    """

    def __init__(self, like: REPLEnvironment, chat: Callable[..., Any]) -> None:
        self._like, self._chat = like, chat

    def child(self, provider: Provider) -> ChildEnv:
        """An environment whose sub-calls `provider` answers.

        Its sessions are from the same sandbox, and have no context of their own accord; it is
        stepped asynchronously, and scores nothing.
        """
        made = self._like.beside()
        made.rubric = REPLRubric()
        made.answer_by(provider)
        return ChildEnv(made)

    def model(self, llm: LLM) -> ChatModel:
        """The model that `llm`, which a reset was given, speaks of; see `model_of`.

        Raises:
            ImportError: its library is not installed; says what to install.
            ValueError: `llm` does not say enough.
        """
        from repl_env.llm.base import as_model

        if llm.base_url is None and not llm.headers and not llm.sampling:
            return as_model(self._chat(llm.api_key, llm.model))
        from repl_env.llm.model_factory import model_of

        found = model_of(llm)
        if found is None:
            raise ValueError("llm says neither where a model is nor with which key to ask for it")
        return found
