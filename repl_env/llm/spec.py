"""The model of an episode's sub-calls: its name, its endpoint and its key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from repl_env.common.display import set_module

# The endpoint of an `OpenAIModel` without `base_url`.
OPENAI = "https://api.openai.com/v1"


@set_module("repl_env")
@dataclass(frozen=True, slots=True)
class LLM:
    """A model for one episode. Every field is optional; the provider of sub-calls supplies
    defaults.

    `api_key` and `headers` are secrets: they are in no repr, state, log or session.

    Raises:
        TypeError: naming the field.
    """

    model: str | None = None
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("model", "base_url", "api_key"):
            if not isinstance(value := getattr(self, name), str | None):
                raise TypeError(f"llm.{name} must be a str, not {type(value).__name__}")
        for name in ("headers", "sampling"):
            if not isinstance(value := getattr(self, name), Mapping):
                raise TypeError(f"llm.{name} must be a mapping, not {type(value).__name__}")

    @property
    def answers(self) -> bool:
        """Whether the fields suffice for a request: an endpoint, or a key for Hugging Face."""
        return self.base_url is not None or self.api_key is not None

    @classmethod
    def of(cls, llm: LLM | None, llm_model: str | None, hf_token: str | None) -> LLM:
        """Return the model that a reset's arguments name, in either of two forms.

        A name without a token uses the environment's `HF_TOKEN`; without a name that variable is
        ignored, as it serves other purposes as well.

        Raises:
            TypeError: both forms were given, or an argument has the wrong type.
        """
        check_forms(llm, llm_model, hf_token)
        if llm is not None:
            return llm
        if llm_model is not None and hf_token is None:
            hf_token = os.environ.get("HF_TOKEN")
        return cls(model=llm_model, api_key=hf_token)


def check_forms(llm: LLM | None, llm_model: str | None, hf_token: str | None) -> None:
    """Raise TypeError naming the argument if both forms were given, or a type is wrong."""
    for name, value in (("llm_model", llm_model), ("hf_token", hf_token)):
        if not isinstance(value, str | None):
            raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not isinstance(llm, LLM | None):
        message = "llm must be an LLM (from repl_env import LLM)"
        raise TypeError(f"{message}, not {type(llm).__name__}")
    if llm is not None and (llm_model is not None or hf_token is not None):
        raise TypeError("llm goes without llm_model and hf_token: it has both inside")
