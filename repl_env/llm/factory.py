"""`model_of` and `NamedModel`: the model that a name or an `LLM` stands for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from repl_env.common.display import set_module

if TYPE_CHECKING:
    from repl_env.llm.base import ChatModel
    from repl_env.llm.spec import LLM


# Makes the model that an episode's settings name.


@set_module("repl_env.rlm")
def model_of(llm: LLM, **options: float) -> ChatModel | None:
    """Return the model that `llm` names.

    `options` are `timeout` and `max_retries` of the model's class.

    With `base_url` it is an `OpenAIModel`; otherwise, with a model or a key, an `HFModel`, as in
    OpenEnv's `llm_model` and `hf_token`; with neither, None. Environment variables are not read
    here; front ends read them and fill in `llm`.

    Raises:
        ImportError: naming the library and how to install it.
        TypeError, ValueError: naming the invalid field.
    """
    if llm.base_url is not None:
        if llm.model is None:
            raise ValueError("llm.model is missing: an endpoint has to be told which model")
        from repl_env.llm.openai import OpenAIModel

        return OpenAIModel(
            llm.model,
            base_url=llm.base_url,
            api_key=llm.api_key,
            headers=llm.headers,
            sampling=llm.sampling,
            **options,  # type: ignore[arg-type]
        )
    if llm.model is None and llm.api_key is None:
        return None
    from repl_env.llm.hf import DEFAULT_MODEL, HFModel

    model = DEFAULT_MODEL if llm.model is None else llm.model
    return HFModel(
        model,
        token=llm.api_key,
        headers=llm.headers,
        sampling=llm.sampling,
        **options,  # type: ignore[arg-type]
    )


# `NamedModel`: the model that an `LLM` names, open while it is used.
#
# A caller who passes an `LLM` instead of a model has nothing to close. So its connections exist
# while runs or episodes use it, and close with the last of them.


class NamedModel:
    """The model of `llm`, given as the named argument.

    Raises:
        ImportError, TypeError, ValueError: as `model_of`; `llm` is incomplete.
    """

    def __init__(self, llm: LLM, argument: str) -> None:
        self.name = llm.model
        self._llm, self._argument = llm, argument
        self._lock = threading.Lock()
        self._users = 0
        self._model: ChatModel | None = None
        self._make()  # report errors now, not at the first request

    def __repr__(self) -> str:
        return f"NamedModel({self.name!r})"

    def take(self) -> ChatModel:
        """Return the model for one more user, who has to `leave` it."""
        with self._lock:
            if self._model is None:
                self._model = self._make()
            self._users += 1
            return self._model

    async def leave(self) -> None:
        """Record that one user is done; the last closes the connections."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            # Never reused: another user may begin while this one is being closed.
            model, self._model = self._model, None
        if model is not None:
            await model.close()

    def _make(self) -> ChatModel:
        found = model_of(self._llm)
        if found is None:
            raise ValueError(
                f"{self._argument}: the LLM says neither where the model is nor how to ask for it"
            )
        return found
