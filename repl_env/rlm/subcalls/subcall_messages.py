"""Requests of a session's code to models, and the replies."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from repl_env.common.binary_json import BYTES
from repl_env.common.json_values import replace_surrogates
from repl_env.concurrency.offload import check_size
from repl_env.episode.answers import validator
from repl_env.errors import BudgetExceeded, ModelError
from repl_env.llm.base import Completion, ModelUsage
from repl_env.parsing.reasoning import without_thoughts

if TYPE_CHECKING:
    from repl_sandbox.types import JSON

# A whole answer in a fence: models format JSON so when asked for JSON alone.
_OPENING = re.compile(r"```\w*[ \t]*")


@dataclass(frozen=True, slots=True)
class SubcallRequest:
    """One request of the session's code.

    `context` is the subject of the prompt: text, bytes or JSON; None: all is in the prompt.
    `schema` is a JSON schema for the answer. `timeout` is in seconds; None: no limit of its own.
    """

    prompt: str
    model: str | None = None
    context: Any = None
    schema: Mapping[str, Any] | None = None
    timeout: float | None = None

    @property
    def text(self) -> str:
        """The request as one prompt for a model that has no REPL."""
        text = self.prompt
        if self.context is not None:
            text = f"{text}\n\n{readable(self.context)}"
        if self.schema is not None:
            schema = json.dumps(self.schema, ensure_ascii=False)
            text += f"\n\nReply with JSON and nothing else. It must fit this JSON schema:\n{schema}"
        return replace_surrogates(text)


@dataclass(frozen=True, slots=True)
class SubcallReply:
    """The reply to a request. `error` None: there is an answer.

    `text` is for the code; `full_text` the model's whole text, including reasoning.
    `infrastructure`: an infrastructure failure, not one of the code. `refusal`: the budget did not
    allow the request. `child`: a child run gave the answer.
    """

    text: str
    error: str | None = None
    usage: ModelUsage = field(default_factory=ModelUsage)
    truncated: bool = False
    value: JSON = None
    infrastructure: bool = False
    refusal: BudgetExceeded | None = None
    child: bool = False
    model: str | None = None
    full_text: str | None = None

    @classmethod
    def of(cls, completion: Completion, value: JSON = None) -> SubcallReply:
        """Return the reply with a model's answer."""
        full_text = replace_surrogates(completion.text)
        return cls(
            without_thoughts(full_text),
            usage=completion.usage,
            truncated=completion.truncated,
            value=value,
            model=completion.model,
            full_text=full_text,
        )

    @classmethod
    def failed(cls, error: Exception) -> SubcallReply:
        """Return a failed reply: its text says so, because code that expects text gets it."""
        of_model = isinstance(error, ModelError)
        name = replace_surrogates(str(error) if of_model else f"{type(error).__name__}: {error}")
        refusal = error if isinstance(error, BudgetExceeded) else None
        return cls(f"Error: {name}", name, infrastructure=of_model, refusal=refusal)

    def to_json(self) -> dict[str, Any]:
        """Return the reply in its form for the session."""
        usage = self.usage
        known = usage.input_tokens is not None or usage.output_tokens is not None
        return {
            "text": self.text,
            "ok": self.error is None,
            "error": self.error,
            "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
            if known
            else None,
            "truncated": self.truncated,
            "value": self.value,
        }


def readable(context: Any) -> str:
    """Return a context as text that a model can read."""
    if isinstance(context, str):
        return context
    if isinstance(context, (bytes, bytearray)):
        return bytes(context).decode("utf-8", "replace")
    return json.dumps(context, ensure_ascii=False, indent=1)


def parsed(text: str, schema: Mapping[str, Any]) -> JSON:
    """Return the JSON in `text`, perhaps in one fence; ValueError says why it does not fit."""
    check_size(text)
    try:
        value: JSON = json.loads(_unfenced(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the answer is not JSON: {error}") from None
    check = validator(dict(schema))
    assert check is not None
    return check(value)


def _unfenced(text: str) -> str:
    opening, _, rest = text.strip().partition("\n")
    whole = _OPENING.fullmatch(opening) and rest.endswith("```")
    return rest.removesuffix("```") if whole else text


def check_prompt(prompt: object) -> str:
    """Return `prompt` if it is a str; TypeError for the session's code."""
    if not isinstance(prompt, str):
        was_bytes = isinstance(prompt, dict) and list(prompt) == [BYTES]  # its type in the session
        kind = "bytes" if was_bytes else type(prompt).__name__
        raise TypeError(f"a prompt must be a str, not {kind}")
    return prompt


def check_prompts(prompts: object) -> list[str]:
    """Return `prompts` if they are a list of str; TypeError for the session's code."""
    if not isinstance(prompts, list):
        raise TypeError(f"prompts must be a list of str, not {type(prompts).__name__}")
    return [check_prompt(prompt) for prompt in prompts]


def check_schema(schema: object) -> Mapping[str, Any] | None:
    """Return `schema` if it is a JSON schema or None; TypeError or ValueError otherwise."""
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise TypeError(f"schema must be a JSON schema as a dict, not {type(schema).__name__}")
    try:
        validator(schema)
    except ValueError as error:
        raise ValueError(str(error).replace("answer_schema", "schema")) from None
    return schema


def check_timeout(timeout: object) -> float | None:
    """Return `timeout` if it is a number of seconds or None; TypeError or ValueError otherwise."""
    seconds = check_wait(timeout)
    if seconds == 0:
        raise ValueError("timeout must be more than 0 seconds")
    return seconds


def check_wait(timeout: object) -> float | None:
    """Return `timeout` of a wait, which may be 0; TypeError or ValueError otherwise."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds, not {type(timeout).__name__}")
    if not timeout >= 0:
        raise ValueError("timeout must be at least 0 seconds")
    return float(timeout)


def check_model(model: object) -> str | None:
    """Return `model` if it is a name or None; TypeError otherwise."""
    if model is not None and not isinstance(model, str):
        raise TypeError(f"model must be a str, not {type(model).__name__}")
    return model
