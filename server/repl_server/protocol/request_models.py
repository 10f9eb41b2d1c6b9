"""What clients may ask, and the models that their words are checked by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, SecretStr

from repl_env.common import binary_json

from .upload_reference import References

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Of a request: chosen by the client, and compared with the last one.
RequestId = Annotated[str, Field(min_length=1, max_length=64)]


class StrictModel(BaseModel):
    """Fields that are not named are refused."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


Content = Annotated[Any, BeforeValidator(binary_json.decoded)]


class ModelEndpoint(StrictModel):
    """A model for sub-calls: `repl_env.LLM` on the wire."""

    model: str | None = None
    base_url: str | None = None
    api_key: SecretStr | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    sampling: dict[str, JsonValue] = Field(default_factory=dict)


class ResetArguments(BaseModel):
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


class REPLResetArguments(ResetArguments):
    """The arguments of a reset of a `REPLEnvironment`, as `repl_env.common.binary_json` encodes
    them.
    """

    context: Any = None
    contexts: dict[str, Any] | None = None
    files: dict[str, Any] | None = None
    task_prompt: str | None = None
    max_iterations: Annotated[int, Field(ge=1)] | None = None
    hf_token: SecretStr | None = None
    llm_model: str | None = None
    llm: ModelEndpoint | None = None
    expected_answer: JsonValue = None
    answer_schema: dict[str, JsonValue] | None = None
    rlm_max_depth: Annotated[int, Field(ge=1)] | None = None
    rlm_max_iterations: Annotated[int, Field(ge=1)] | None = None


class FollowUpArguments(StrictModel):
    """A further question in the session that is there."""

    task_prompt: str = ""
    max_iterations: Annotated[int, Field(ge=1)] | None = None
    expected_answer: JsonValue = None
    answer_schema: dict[str, JsonValue] | None = None
    variables: dict[str, Content] | None = None


class CancelArguments(StrictModel):
    """`request`: the id of the one to end."""

    request: RequestId


class BranchArguments(StrictModel):
    """`seed`: of the branch's random numbers."""

    seed: Annotated[int, Field(ge=0)] | None = None


class ResumeArguments(StrictModel):
    """`token`: of the session."""

    token: Annotated[str, Field(max_length=200)]


class NoArguments(StrictModel):
    """A request without data."""


class AnyArguments(BaseModel):
    """Data that is checked by whom it is for."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class RequestType:
    """How a request looks. `data`: its model, None for the action; `plain`: OpenEnv has it."""

    data: type[BaseModel] | None
    plain: bool = False
    needs_data: bool = False


KINDS: Mapping[str, RequestType] = {
    "reset": RequestType(AnyArguments, plain=True),
    "step": RequestType(None, plain=True, needs_data=True),
    "state": RequestType(NoArguments, plain=True),
    "mcp": RequestType(AnyArguments, plain=True, needs_data=True),
    "close": RequestType(NoArguments, plain=True),
    "open": RequestType(NoArguments),
    "resume": RequestType(ResumeArguments, needs_data=True),
    "cancel": RequestType(CancelArguments, needs_data=True),
    "variables": RequestType(NoArguments),
    "follow_up": RequestType(FollowUpArguments, needs_data=True),
    "draft": RequestType(NoArguments),
    "branch": RequestType(BranchArguments),
}
