"""Results of tool calls, in the form of the Model Context Protocol.

Text is what a person at a terminal would see; the structured content is the observation, whose
figures are images beside the text and not in it a second time.
"""

from __future__ import annotations

from typing import Any

from mcp_types import CallToolResult, ContentBlock, ImageContent, TextContent

from repl_env.common.values import replace_surrogates
from repl_env.models import CodeBlockResult, REPLObservation

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
    content += [ImageContent(type="image", data=each, mime_type="image/png") for each in figures]
    return CallToolResult(
        content=content,
        structured_content=structured(observation),
        is_error=not observation.result.success,
    )


def structured(observation: REPLObservation) -> dict[str, Any]:
    """The observation as JSON, without its figures."""
    content: dict[str, Any] = observation.model_dump(mode="json")
    content["result"]["figures"] = []
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
