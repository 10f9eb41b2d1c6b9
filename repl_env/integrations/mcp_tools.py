"""The tools by which a model works in a session: `execute`, `reset` and `submit_answer`.

`repl_env.integrations.mcp` runs the calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from mcp_types import (
    CallToolResult,
    ContentBlock,
    ImageContent,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    WithJsonSchema,
)

from repl_env.common.values import replace_surrogates
from repl_env.models import Code, CodeBlockResult, REPLObservation

# ── arguments ────────────────────────────────────────────────────────────────────────────────────


def _material(value: Any) -> Any:
    if isinstance(value, (str, list, dict)):
        return value
    raise ValueError("must be text, a list or an object")


_DATA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {}}, {"type": "object"}]}
_JSON = {"anyOf": [*_DATA["anyOf"], {"type": "number"}, {"type": "boolean"}]}

Data: TypeAlias = Annotated[Any, AfterValidator(_material), WithJsonSchema(_DATA)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(strict=True, ge=1)]
Seed: TypeAlias = Annotated[int, Field(strict=True, ge=0)]


def _about(text: str, **more: Any) -> Any:
    return Field(description=text, **more)


class Arguments(BaseModel):
    """Arguments of a tool; an unknown argument is refused."""

    model_config = ConfigDict(extra="forbid")


class Execute(Arguments):
    """Arguments of `execute`."""

    code: Code = _about("Python code. The value of a last expression is shown, as at a prompt.")
    timeout_s: Seconds | None = _about(
        "Seconds that the code may run, if it needs more or less than is usual.", default=None
    )


class Reset(Arguments):
    """Arguments of `reset`."""

    context: Data | None = _about(
        "Material to work on. It becomes the variable `context`.", default=None
    )
    contexts: dict[str, Data] | None = _about(
        "Several materials, by the names of their variables.", default=None
    )
    files: dict[str, str] | None = _about(
        "Text files for the working directory, by their relative paths.", default=None
    )
    task_prompt: str | None = _about("What is to be done.", default=None)
    max_iterations: Count | None = _about(
        "How many calls of `execute` the task may take; by default as many as it needs.",
        default=None,
    )
    seed: Seed | None = _about("Seed of the session's random numbers.", default=None)
    keep_variables: bool = _about(
        "Go on in the session that is there, with its variables and files, and begin only a new "
        "task. It does not go with `context`, `contexts`, `files` and `seed`.",
        default=False,
    )


class SubmitAnswer(Arguments):
    """Arguments of `submit_answer`."""

    answer: Annotated[JsonValue, WithJsonSchema(_JSON)] = _about(
        "The final answer: a text, a number, a truth value, a list or an object."
    )


# ── what a model is told ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Kind:
    """A tool: its name, its arguments, and what a model is told of it."""

    name: str
    title: str
    arguments: type[Arguments]
    description: str
    destructive: bool


KINDS = (
    Kind(
        "execute",
        "Run Python code",
        Execute,
        "Run Python code in a persistent session. Variables, functions, imports and files in the "
        "working directory are there in the next call. Returns what the code printed, the value "
        "of its last expression, and the traceback if it failed; matplotlib figures come back as "
        "images. Code that takes too long is interrupted. Its variables are kept, or the result "
        "says what was lost. Of a long output the beginning and the end are shown, and _out[n] "
        "has all that cell n printed. Material that was given is in the variable `context`, "
        "or in variables that `reset` named. SHOW_VARS() lists the variables. There is no "
        "terminal: input() fails. Top-level await works.",
        destructive=False,
    ),
    Kind(
        "reset",
        "Begin anew",
        Reset,
        "Begin a new task in a new, empty session; the variables and files of the last one are "
        "gone, unless `keep_variables` is true. Not needed before the first `execute`. Call it to "
        "give the session material, or after an answer was submitted.",
        destructive=True,
    ),
    Kind(
        "submit_answer",
        "Submit the final answer",
        SubmitAnswer,
        "End the task with its final answer. Code is not run any more until `reset` begins "
        "another task. Code can submit a value of the session itself: FINAL(value).",
        destructive=False,
    ),
)


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of arguments, without what says nothing to a model."""
    whole = model.model_json_schema()
    return {
        "type": "object",
        "properties": {name: _field(each) for name, each in whole["properties"].items()},
        "required": whole.get("required", []),
        "additionalProperties": False,
    }


def _field(field: dict[str, Any]) -> dict[str, Any]:
    schema = {name: each for name, each in field.items() if name != "title"}
    if schema.get("default", ...) is None:
        # Left out is what None stands for, and the only way that is offered.
        del schema["default"]
        kinds = [kind for kind in schema.pop("anyOf") if kind != {"type": "null"}]
        schema |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return schema


def _tool(kind: Kind) -> Tool:
    return Tool(
        name=kind.name,
        title=kind.title,
        description=kind.description,
        input_schema=_schema(kind.arguments),
        output_schema=_observation_schema(),
        annotations=ToolAnnotations(
            title=kind.title,
            read_only_hint=False,
            destructive_hint=kind.destructive,
            idempotent_hint=False,
            open_world_hint=False,
        ),
    )


def _observation_schema() -> dict[str, Any]:
    """The schema of the structured content, in one piece: some clients follow no references."""
    schema = REPLObservation.model_json_schema()
    result = schema.pop("$defs")["CodeBlockResult"]
    del result["properties"]["displays"]  # see `structured`
    schema["properties"]["result"] = result
    return schema


TOOLS = tuple(_tool(kind) for kind in KINDS)

BY_NAME: Mapping[str, Kind] = {kind.name: kind for kind in KINDS}


# Results of tool calls, in the form of the Model Context Protocol.
#
# Text is what a person at a terminal would see; the structured content is the observation, whose
# figures are images beside the text and not in it a second time.

# Characters of an answer that are repeated when it ends the task.
_ANSWER_SHOWN = 500

# Characters of a complaint, which may have an argument in it.
_COMPLAINT_SHOWN = 1000


def result_of_cell(observation: REPLObservation) -> CallToolResult:
    """An observation of `execute` or `submit_answer`; code that failed is an error."""
    result = observation.result
    parts = [result.stdout.rstrip("\n")]
    complaint = result.stderr.rstrip("\n")
    if complaint:
        parts.append(complaint if not result.success else f"[stderr]\n{complaint}")
    if not any(parts):
        parts = [_silence(result)]
    if observation.done:
        parts.append(_ending(observation))
    return _result(observation, "\n".join(part for part in parts if part))


def result_of_reset(observation: REPLObservation) -> CallToolResult:
    """An observation of `reset`."""
    parts = [observation.result.stdout]
    if observation.context_preview:
        parts.append(f"The context, in part:\n{observation.context_preview}")
    return _result(observation, "\n\n".join(parts))


def refusal(text: str) -> CallToolResult:
    """A call that did nothing; `text` tells the model what it can do about that."""
    content = TextContent(type="text", text=replace_surrogates(text[:_COMPLAINT_SHOWN]))
    return CallToolResult(content=[content], is_error=True)


def _result(observation: REPLObservation, text: str) -> CallToolResult:
    content: list[ContentBlock] = [TextContent(type="text", text=text)]
    figures = observation.result.figures
    content += [
        ImageContent(type="image", data=figure, mime_type="image/png") for figure in figures
    ]
    return CallToolResult(
        content=content,
        structured_content=structured(observation),
        is_error=not observation.result.success,
    )


def structured(observation: REPLObservation) -> dict[str, Any]:
    """The observation as JSON, without its figures and displays, which a model need not read."""
    content: dict[str, Any] = observation.model_dump(mode="json")
    content["result"]["figures"] = []
    del content["result"]["displays"]
    return content


def _silence(result: CodeBlockResult) -> str:
    """Describe code that printed nothing, by the variables that it set."""
    names = list(result.locals_snapshot)
    shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    return f"(no output; set: {shown})" if names else "(no output)"


def _ending(observation: REPLObservation) -> str:
    answer = observation.metadata["final_answer"]
    if answer is None:
        return "[The task is over without an answer.]"
    if len(answer) > _ANSWER_SHOWN:
        answer = f"{answer[:_ANSWER_SHOWN]}... ({len(answer)} characters)"
    return f"[The task is over. Answer: {answer}]"
