"""Replies to requests, and their JSON. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from repl_env.common.json_values import replace_surrogates
from repl_env.models import REPLObservation

from .json_codec import LARGE
from .request_error import RequestError

_BESIDE = {"reward", "done"}
_BESIDE_AND_METADATA = _BESIDE | {"metadata"}


@dataclass(frozen=True, slots=True)
class ServerReply:
    """The outcome of a request. `data` is JSON text; `refusal` the error that it carries."""

    type: str
    data: str
    refusal: RequestError | None = None

    @classmethod
    def of_error(cls, refusal: RequestError) -> ServerReply:
        """The error reply for `refusal`."""
        return cls("error", text_of(refusal.data()), refusal)

    def frame(self, id: str | None) -> str:
        """The WebSocket frame that carries the reply."""
        if id is None:
            return f'{{"type":"{self.type}","data":{self.data}}}'
        return f'{{"type":"{self.type}","id":{text_of(id)},"data":{self.data}}}'


def text_of(value: Any) -> str:
    """`value` as JSON, with "?" for lone surrogates and null for non-finite numbers."""
    try:
        return to_json(value, inf_nan_mode="null").decode()
    except PydanticSerializationError:
        return to_json(_cleaned(value), inf_nan_mode="null").decode()


def model_text(model: BaseModel, exclude: set[str] | None = None) -> str:
    """A model as JSON, under the rules of `text_of`."""
    try:
        return model.__pydantic_serializer__.to_json(model, exclude=exclude).decode()
    except PydanticSerializationError:
        return text_of(_cleaned(model.model_dump(exclude=exclude)))


def observation_text(observation: Any, *, beside: bool) -> Iterator[str]:
    """Serialize an observation as OpenEnv's `StepResponse`; yields its large parts, then all of it.

    `beside`: repeat the metadata beside the observation, where OpenEnv's generic client reads it.
    """
    if beside and type(observation) is REPLObservation:
        # The metadata may hold a large answer, so it is serialized once for both places.
        metadata = text_of(observation.metadata)
        if len(metadata) >= LARGE:
            yield metadata
        inner = f'{model_text(observation, _BESIDE_AND_METADATA)[:-1]},"metadata":{metadata}}}'
        outer = f',"metadata":{metadata}' if observation.metadata else ""
    else:
        inner, outer = model_text(observation, _BESIDE), ""
        if beside and observation.metadata:
            outer = f',"metadata":{text_of(observation.metadata)}'
            if len(outer) >= LARGE:
                yield outer
    if len(inner) >= LARGE:
        yield inner
    reward, done = observation.reward, "true" if observation.done else "false"
    number = "null" if reward is None else repr(float(reward))
    yield f'{{"observation":{inner},"reward":{number},"done":{done}{outer}}}'


def _cleaned(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _cleaned(value.model_dump())
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {_cleaned(name): _cleaned(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(each) for each in value]
    return value
