"""Results from the data of replies.

Fields are validated as in an environment's own models. Unknown fields are dropped: servers may be
newer than their clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from repl_env.client.protocol.client_frames import MAX_VALUES, values
from repl_env.errors import BadReply
from repl_env.models import CodeBlockResult, REPLObservation, REPLState, StepResult, result_of

Result = StepResult[REPLObservation]
_ModelT = TypeVar("_ModelT", bound=BaseModel)
_OBSERVATION = frozenset(REPLObservation.model_fields)
_RESULT = frozenset(CodeBlockResult.model_fields)


def step_result(data: Mapping[str, Any]) -> Result:
    """Return the result in an observation's data.

    OpenEnv sends reward and done next to the observation, and metadata next to or inside it.
    """
    inner = data.get("observation")
    if not isinstance(inner, dict):
        raise BadReply("the server sent a result without an observation")
    fields = {name: inner[name] for name in inner.keys() & _OBSERVATION}
    result = fields.get("result")
    if isinstance(result, dict):
        fields["result"] = {name: result[name] for name in result.keys() & _RESULT}
    for name in ("reward", "done", "metadata"):
        if data.get(name) is not None:
            fields[name] = data[name]
    return result_of(_checked(REPLObservation, fields))


def state(data: Mapping[str, Any]) -> REPLState:
    """Return the state in a reply."""
    return _checked(REPLState, data)


def field(data: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    """Return one field of a reply, checked to be of this type."""
    value = data.get(name)
    if not isinstance(value, kind):
        raise BadReply(f"the server sent a reply whose {name!r} is no {kind.__name__}")
    return value


def _checked(model: type[_ModelT], fields: Mapping[str, Any]) -> _ModelT:
    # Each invalid value becomes an error of hundreds of bytes before the first one is reported.
    if values([fields.get(name) for name in model.model_fields if name != "metadata"]) > MAX_VALUES:
        raise BadReply(f"the server sent no {model.__name__}; it has over {MAX_VALUES:,} values")
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        message = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
        raise BadReply(f"the server sent no {model.__name__}; {message}") from None
