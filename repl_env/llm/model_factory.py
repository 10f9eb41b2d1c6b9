"""Makes the model that an episode's settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.common.set_module import set_module

if TYPE_CHECKING:
    from repl_env.llm.base import ChatModel
    from repl_env.llm.model_spec import LLM


@set_module("repl_env.rlm")
def model_of(llm: LLM) -> ChatModel | None:
    """Return the model that `llm` names.

    With `base_url` it is an `OpenAIModel`; otherwise, with a model or a key, an `HFModel`, as in
    OpenEnv's
    `llm_model` and `hf_token`; with neither, None. Environment variables are not read here; front
    ends
    read them and fill in `llm`.

    Raises:
        ImportError: naming the library and how to install it.
        TypeError, ValueError: naming the invalid field.
    """
    if llm.base_url is not None:
        if llm.model is None:
            raise ValueError("llm.model is missing: an endpoint has to be told which model")
        from repl_env.llm.endpoints.openai_model import OpenAIModel

        return OpenAIModel(
            llm.model,
            base_url=llm.base_url,
            api_key=llm.api_key,
            headers=llm.headers,
            sampling=llm.sampling,
        )
    if llm.model is None and llm.api_key is None:
        return None
    from repl_env.llm.endpoints.hf_model import DEFAULT_MODEL, HFModel

    model = DEFAULT_MODEL if llm.model is None else llm.model
    return HFModel(model, token=llm.api_key, headers=llm.headers, sampling=llm.sampling)
