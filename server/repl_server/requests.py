"""What clients may ask, and the models that their words are checked by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, SecretStr

from repl_env import wire_values

from .uploads.references import References

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Of a request: chosen by the client, and compared with the last one.
RequestId = Annotated[str, Field(min_length=1, max_length=64)]


class Strict(BaseModel):
    """Fields that are not named are refused."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


Content = Annotated[Any, BeforeValidator(wire_values.decoded)]


class Endpoint(Strict):
    """A model for sub-calls: `repl_env.LLM` on the wire."""

    model: str | None = None
    base_url: str | None = None
    api_key: SecretStr | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    sampling: dict[str, JsonValue] = Field(default_factory=dict)


class AnyReset(BaseModel):
    """The arguments of a reset that OpenEnv names, and `uploads`.

    Others may be there, for the environment.
    """

    model_config = ConfigDict(extra="allow")

    seed: Annotated[int, Field(ge=0)] | None = None
    episode_id: Annotated[str, Field(max_length=255)] | None = None
    uploads: References | None = None

    def given(self) -> dict[str, Any]:
        """What was given, by name; nothing is copied."""
        # Not by `getattr`: a client may call an argument of its own as a method here is called.
        named = {**self.__dict__, **(self.model_extra or {})}
        return {name: value for name, value in named.items() if value is not None}


class ResetRequest(AnyReset):
    """The arguments of a reset of a `REPLEnvironment`, as `repl_env.wire_values` encodes them."""

    context: Any = None
    contexts: dict[str, Any] | None = None
    files: dict[str, Any] | None = None
    task_prompt: str | None = None
    max_iterations: Annotated[int, Field(ge=1)] | None = None
    hf_token: SecretStr | None = None
    llm_model: str | None = None
    llm: Endpoint | None = None
    expected_answer: JsonValue = None
    answer_schema: dict[str, JsonValue] | None = None
    rlm_max_depth: Annotated[int, Field(ge=1)] | None = None
    rlm_max_iterations: Annotated[int, Field(ge=1)] | None = None


class FollowUp(Strict):
    """A further question in the session that is there."""

    task_prompt: str = ""
    max_iterations: Annotated[int, Field(ge=1)] | None = None
    expected_answer: JsonValue = None
    answer_schema: dict[str, JsonValue] | None = None
    variables: dict[str, Content] | None = None


class Cancel(Strict):
    """`request`: the id of the one to end."""

    request: RequestId


class Branch(Strict):
    """`seed`: of the branch's random numbers."""

    seed: Annotated[int, Field(ge=0)] | None = None


class Resume(Strict):
    """`token`: of the session."""

    token: Annotated[str, Field(max_length=200)]


class Nothing(Strict):
    """A request without data."""


class AnyObject(BaseModel):
    """Data that is checked by whom it is for."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class Kind:
    """How a request looks. `data`: its model, None for the action; `plain`: OpenEnv has it."""

    data: type[BaseModel] | None
    plain: bool = False
    needs_data: bool = False


KINDS: Mapping[str, Kind] = {
    "reset": Kind(AnyObject, plain=True),
    "step": Kind(None, plain=True, needs_data=True),
    "state": Kind(Nothing, plain=True),
    "mcp": Kind(AnyObject, plain=True, needs_data=True),
    "close": Kind(Nothing, plain=True),
    "open": Kind(Nothing),
    "resume": Kind(Resume, needs_data=True),
    "cancel": Kind(Cancel, needs_data=True),
    "variables": Kind(Nothing),
    "follow_up": Kind(FollowUp, needs_data=True),
    "draft": Kind(Nothing),
    "branch": Kind(Branch),
}
