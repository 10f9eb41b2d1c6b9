"""Models of an environment: actions, observations, states. OpenEnv's module path."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    field_serializer,
    model_serializer,
    model_validator,
)

from repl_env.common.display import Displayed, framed, set_module
from repl_env.common.values import replace_surrogates
from repl_env.parsing.blocks import strip_fence

# `EncodedFigure`: a figure of an observation, which travels as base64.


class EncodedFigure(str):
    """A picture that a cell has drawn: PNG in base64, which a notebook shows."""

    __slots__ = ()

    @property
    def png(self) -> bytes:
        """The bytes of the PNG file; ValueError if the text is no base64."""
        try:
            return base64.b64decode(self, validate=True)
        except binascii.Error as error:
            raise ValueError(f"the figure is no base64: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the PNG file `path`, which is replaced if there is one."""
        png = self.png
        with open(path, "wb") as file:
            file.write(png)

    def __repr__(self) -> str:
        return f"<EncodedFigure, {len(self) * 3 // 4:,} bytes of PNG>"

    def _repr_png_(self) -> bytes:
        return self.png


# The end of an episode in Gymnasium's terms, and the task's part of a reward.

Ending: TypeAlias = Literal["terminated", "truncated"]


def termination_of(done: bool, metadata: Mapping[str, Any]) -> Ending | None:
    """Return whether an answer, or a limit or loss, ended the episode; None while it goes on.

    OpenEnv's servers send no `stop_reason`: an answer then counts as the end.
    """
    if not done:
        return None
    reason = metadata.get("stop_reason")
    answered = metadata.get("final_answer") is not None if reason is None else reason == "answer"
    return "terminated" if answered else "truncated"


class TerminationMixin:
    """Properties of observations and results: the end of the episode and the task's own reward."""

    __slots__ = ()

    done: bool
    metadata: Any

    @property
    def terminated(self) -> bool:
        """Whether the policy ended the episode with an answer."""
        return termination_of(self.done, self.metadata or {}) == "terminated"

    @property
    def truncated(self) -> bool:
        """Whether a limit, or the loss of the session, ended the episode.

        Exactly one of `terminated` and `truncated` is True once `done` is. An episode whose
        iterations are used up is truncated, even if `answer["content"]` then becomes its answer.
        `metadata["truncated"]`
        means something else: the output of the step was cut.
        """
        return termination_of(self.done, self.metadata or {}) == "truncated"

    @property
    def task_reward(self) -> float | None:
        """The task's part of `reward`, without the rubric's `shaping`; None if the parts are
        unknown.
        """
        part: float | None = (self.metadata or {}).get("task_reward")
        return part


# Models of an environment: actions, observations, states.
#
# Names, fields and defaults are those of OpenEnv's `repl_env`, with further fields. The wire form
# is `model_dump(mode="json")`; it is finite JSON.

__all__ = [
    "Action",
    "CellDisplay",
    "CodeBlockResult",
    "Observation",
    "REPLAction",
    "REPLObservation",
    "REPLState",
    "State",
    "StepResult",
]

DEFAULT_MAX_ITERATIONS = 30
DEFAULT_MAX_CONCURRENT_SUBCALLS = 8
DEFAULT_MAX_OUTPUT_LENGTH = 8192
DEFAULT_CONTEXT_PREVIEW_LENGTH = 500

# States are requested often and contexts are large: beyond a page the wire form has only the
# length.
WIRE_CONTEXT_LENGTH = 8192


_ModelT = TypeVar("_ModelT", bound=BaseModel)
_set = object.__setattr__


def trusted(model: type[_ModelT], **fields: Any) -> _ModelT:
    """Return a model from trusted values for every field, without validation and defaults.

    The result is that of `model_construct`, without its loop over the fields, which is too slow for
    the models of each step.
    """
    made = model.__new__(model)
    _set(made, "__dict__", fields)
    _set(made, "__pydantic_fields_set__", set(fields))
    _set(made, "__pydantic_extra__", None)
    _set(made, "__pydantic_private__", None)
    return made


def give(model: BaseModel, **fields: Any) -> None:
    """Set fields of a model that `trusted` made to trusted values, without validation."""
    model.__dict__.update(fields)


class Printed(Displayed, BaseModel):
    """A model with a repr of a few lines, however long its texts.

    The wire form has the whole texts.
    """

    def __str__(self) -> str:
        return repr(self)


class Action(Printed):
    """Base of a policy's actions. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    metadata: dict[str, Any] = Field(default_factory=dict)


class Observation(Printed):
    """Base of an environment's observations. `reward` is for this step alone."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    done: bool = False
    reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict, repr=False)


class State(Printed):
    """Base of an environment's state. Environments may add fields."""

    model_config = ConfigDict(extra="allow", validate_assignment=True)

    episode_id: str | None = None
    step_count: int = Field(default=0, ge=0)


def _as_code(value: object) -> object:
    """Return code from a client's value: a number, fenced code, or text after a BOM."""
    if isinstance(value, (bool, int, float)):
        return str(value)
    return strip_fence(value.removeprefix("\ufeff")) if isinstance(value, str) else value


def _escaped(value: object) -> object:
    """Return a text for the wire: it may quote a reply that holds lone surrogates."""
    return replace_surrogates(value) if isinstance(value, str) else value


Code: TypeAlias = Annotated[str, BeforeValidator(_as_code)]
EscapedText: TypeAlias = Annotated[str, BeforeValidator(_escaped)]


@set_module("repl_env")
class REPLAction(Action):
    """One step: code to run, a final answer to submit, or a reply that held neither.

    `code` may be a scalar, which becomes text, and may stand in one Markdown fence, which is
    removed.
    With `is_final`, `final_answer` is submitted and `code` is not run. With `format_error`, nothing
    is
    run: the step counts, the policy sees that text, and its `error_kind` is "format".

    Raises:
        ValueError: `format_error` comes with code, or with `is_final`.
    """

    # Only `code` is required on the wire: clients map a plain reply to the one required field.
    model_config = ConfigDict(json_schema_extra={"required": ["code"]})

    code: Code = Field(default="", description="Python code to run in the session.")
    is_final: bool = Field(default=False, description="Submit final_answer and end the episode.")
    final_answer: JsonValue = Field(default=None, description="The answer, when is_final is set.")
    format_error: EscapedText | None = Field(
        default=None,
        min_length=1,
        description="Why the reply held no action, for the policy to read; no code is run.",
    )

    @model_serializer(mode="wrap")
    def _as_openenv_has_it(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields, without `format_error` if it is None: OpenEnv's server refuses that
        field.
        """
        fields: dict[str, Any] = dump(self)
        if self.format_error is None:
            fields.pop("format_error", None)
        return fields

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        if self.format_error is not None and (self.code or self.is_final):
            raise ValueError("format_error says that there is no action: give no code or answer")
        return self


def action_of(code: object) -> REPLAction:
    """Return the action that runs `code`; TypeError unless it is text or a scalar."""
    if not isinstance(code, (str, bool, int, float)):
        raise TypeError(f"code must be a str, not {type(code).__name__}")
    return REPLAction(code=code)  # type: ignore[arg-type]  # a scalar becomes text there


@set_module("repl_env")
class CellDisplay(Printed):
    """An object that a cell displayed, in rich forms by MIME type: `repl_sandbox.Display`."""

    text: str = ""
    forms: dict[str, str] = Field(default_factory=dict)
    is_value: bool = False

    def html(self) -> str:
        """Return HTML that shows the object: in a frame without scripts and without network."""
        return framed(self.text, self.forms)

    def _repr_html_(self) -> str:
        return self.html()


@set_module("repl_env")
class CodeBlockResult(Printed):
    """The output and changes of one cell.

    `stdout` ends with the value of the last expression, as in a REPL; `value` is that text alone.
    `locals_snapshot` holds short previews of new and modified variables, `changes` those and the
    deleted ones with kind, type and size in bytes. `figures` are PNG images in base64, `displays`
    the other rich forms of what was displayed, such as tables as HTML; a policy reads their text in
    `stdout`. `exception` is None unless the code failed. `execution_time` is in seconds, without
    waiting.
    """

    stdout: str = ""
    stderr: str = ""
    locals_snapshot: dict[str, str] = Field(default_factory=dict, repr=False)
    execution_time: float = Field(default=0.0, ge=0)
    success: bool = True
    exception: str | None = None
    value: str | None = None
    changes: list[dict[str, str | int]] = Field(default_factory=list, repr=False)
    figures: list[Annotated[str, AfterValidator(EncodedFigure)]] = Field(default_factory=list)
    displays: list[CellDisplay] = Field(default_factory=list)
    truncated: bool = False

    _DISPLAYED_TOO: ClassVar[tuple[str, ...]] = ("error",)

    @property
    def error(self) -> str | None:
        """The first line of `exception`, as "ZeroDivisionError: division by zero", or None."""
        text: object = self.exception  # of a server, which may send anything
        return text.partition("\n")[0] if isinstance(text, str) else None


def message_result(stdout: str, error: str | None = None) -> CodeBlockResult:
    """Return a result without a cell: a message of the environment, or a refusal."""
    return trusted(
        CodeBlockResult,
        stdout=stdout,
        stderr=error or "",
        locals_snapshot={},
        execution_time=0.0,
        success=error is None,
        exception=error,
        value=None,
        changes=[],
        figures=[],
        displays=[],
        truncated=False,
    )


@set_module("repl_env")
class REPLObservation(TerminationMixin, Observation):
    """The policy's view after a reset or a step."""

    result: CodeBlockResult
    context_preview: str | None = Field(default=None, repr=False)
    context_length: int = Field(default=0, ge=0)
    available_variables: list[str] = Field(default_factory=list, repr=False)
    iteration: int = Field(default=0, ge=0)
    max_iterations: int = Field(default=DEFAULT_MAX_ITERATIONS, ge=1)

    _DISPLAYED_TOO: ClassVar[tuple[str, ...]] = ("final_answer", "error_kind")

    @property
    def error_kind(self) -> str | None:
        """The kind of failure of this step, from `metadata`; None without one."""
        kind: str | None = self.metadata.get("error_kind")
        return kind

    @property
    def final_answer(self) -> str | None:
        """The accepted answer as text, from `metadata`; None if there is none."""
        answer: str | None = self.metadata.get("final_answer")
        return answer


@set_module("repl_env")
class REPLState(State):
    """An episode so far. `context` is the text itself here, and short or None on the wire.

    `usage` sums the steps' costs in seconds; its `peak_memory` is the largest one, in bytes.
    """

    context: str | None = Field(default=None, repr=False)
    task_prompt: str | None = None
    iteration: int = 0
    max_iterations: int = DEFAULT_MAX_ITERATIONS
    namespace_keys: list[str] = Field(default_factory=list, repr=False)
    final_answer: str | None = None
    total_execution_time: float = 0.0
    context_length: int = 0
    stop_reason: str | None = None
    usage: dict[str, float] = Field(default_factory=dict, repr=False)

    @field_serializer("context", when_used="json")
    def _context_for_the_wire(self, context: str | None) -> str | None:
        return context_for_the_wire(context)


def context_for_the_wire(context: str | None) -> str | None:
    """Return a context as states carry it on the wire: short, without lone surrogates, or None."""
    if context is None or len(context) > WIRE_CONTEXT_LENGTH:
        return None
    return replace_surrogates(context)


ResultObsT = TypeVar("ResultObsT")


@set_module("repl_env")
@dataclass(frozen=True, slots=True, repr=False)
class StepResult(Displayed, TerminationMixin, Generic[ResultObsT]):
    """The result of one reset or step for clients; `metadata` is the observation's."""

    observation: ResultObsT
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = field(default=None, repr=False)


def result_of(observation: REPLObservation) -> StepResult[REPLObservation]:
    """Return the result of an observation."""
    return StepResult(observation, observation.reward, observation.done, observation.metadata)


def showing(name: str) -> str:
    """Return code that shows a variable.

    TypeError or ValueError if `name` is not a name or path.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {type(name).__name__}")
    if not all(part.isidentifier() and not iskeyword(part) for part in name.split(".")):
        raise ValueError(f"{name!r} is not the name of a variable; use execute() for expressions")
    return f"print(repr({name}))"
