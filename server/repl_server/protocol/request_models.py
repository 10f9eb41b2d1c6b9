"""Types of requests, and the models that validate their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, SecretStr

from repl_env.common import binary_json

from .upload_reference import References

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# The client chooses the id; the server compares it with ids of earlier requests.
RequestId = Annotated[str, Field(min_length=1, max_length=64)]


class StrictModel(BaseModel):
    """A model that rejects unknown fields."""

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
    """The reset arguments that OpenEnv defines, and `uploads`; others go to the environment."""

    model_config = ConfigDict(extra="allow")

    seed: Annotated[int, Field(ge=0)] | None = None
    episode_id: Annotated[str, Field(max_length=255)] | None = None
    uploads: References | None = None

    def given(self) -> dict[str, Any]:
        """The arguments that are not None, by name; values are not copied."""
        # Not by `getattr`: a client's argument may have the name of a method of this class.
        named = {**self.__dict__, **(self.model_extra or {})}
        return {name: value for name, value in named.items() if value is not None}


class REPLResetArguments(ResetArguments):
    """Reset arguments of a `REPLEnvironment`, in the encoding of `repl_env.common.binary_json`."""

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
    """Arguments of a further task in the same session."""

    task_prompt: str = ""
    max_iterations: Annotated[int, Field(ge=1)] | None = None
    expected_answer: JsonValue = None
    answer_schema: dict[str, JsonValue] | None = None
    variables: dict[str, Content] | None = None


class CancelArguments(StrictModel):
    """`request`: the id of the request to cancel."""

    request: RequestId


class RollbackArguments(StrictModel):
    """`cells`: the number of cells to undo."""

    cells: Annotated[int, Field(ge=1)] = 1


class BranchArguments(StrictModel):
    """`seed`: of the random numbers in the branch."""

    seed: Annotated[int, Field(ge=0)] | None = None


class ResumeArguments(StrictModel):
    """`token`: of the session to resume."""

    token: Annotated[str, Field(max_length=200)]


class NoArguments(StrictModel):
    """Arguments of a request that takes none."""


class AnyArguments(BaseModel):
    """Arguments that the handler of the request validates."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class RequestType:
    """`data`: the arguments' model, None for an action. `plain`: OpenEnv has the type too."""

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
    "rollback": RequestType(RollbackArguments),
    "branch": RequestType(BranchArguments),
}
