"""One step of an episode that runs several code blocks, each in its own cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from repl_env.episode.observations import on_new_line
from repl_env.errors import INFRASTRUCTURE_KINDS
from repl_env.models import CodeBlockResult, REPLAction, REPLObservation, give, trusted
from repl_env.rlm.prompt_templates import shown_result

# Entries of a step's metadata and usage that are summed over its cells.
_SUMS = ("execution_time", "waiting_time")
_USAGE = ("execution_seconds", "waiting_seconds", "cpu_seconds")


class BlocksAction(REPLAction):
    """An action of several blocks, which run in order until one ends the episode.

    `code` is their joined text, for records; `blocks` are the blocks to run. It has no wire form.
    """

    blocks: tuple[str, ...] = Field(default=(), exclude=True)


def blocks_action(codes: Sequence[str]) -> REPLAction:
    """Return the action that runs these blocks: a plain one for a single block."""
    if len(codes) == 1:
        return REPLAction(code=codes[0])
    return BlocksAction(code="\n\n".join(codes), blocks=tuple(codes))


def joined(previous: REPLObservation, last: REPLObservation) -> REPLObservation:
    """Add the output, changes and cost of the earlier cells of this step to `last`.

    `metadata["blocks"]` has each cell's outcome as text, in order.
    """
    metadata = _joined_metadata(previous.metadata, last.metadata)
    metadata["blocks"] = [*outcome_texts(previous), *outcome_texts(last)]
    give(last, result=_joined_results(previous.result, last.result), metadata=metadata)
    return last


def outcome_texts(observation: REPLObservation) -> list[str]:
    """Return the outcomes of a step's cells as text."""
    blocks: list[str] | None = observation.metadata.get("blocks")
    return [shown_result(observation.result)] if blocks is None else blocks


def _joined_metadata(previous: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    kinds = [last["error_kind"], previous["error_kind"]]
    infrastructure = [kind for kind in kinds if kind in INFRASTRUCTURE_KINDS]
    usage = {name: previous["usage"][name] + last["usage"][name] for name in _USAGE}
    usage["peak_memory"] = max(previous["usage"]["peak_memory"], last["usage"]["peak_memory"])
    return {
        **last,
        **{name: previous[name] + last[name] for name in _SUMS},
        "error_kind": next((kind for kind in (*infrastructure, *kinds) if kind is not None), None),
        "truncated": previous["truncated"] or last["truncated"],
        "usage": usage,
    }


def _joined_results(previous: CodeBlockResult, last: CodeBlockResult) -> CodeBlockResult:
    return trusted(
        CodeBlockResult,
        stdout=on_new_line(previous.stdout) + last.stdout,
        stderr=on_new_line(previous.stderr) + last.stderr,
        locals_snapshot={**previous.locals_snapshot, **last.locals_snapshot},
        execution_time=previous.execution_time + last.execution_time,
        success=previous.success and last.success,
        exception=previous.exception if last.exception is None else last.exception,
        value=last.value,
        changes=[*previous.changes, *last.changes],
        figures=[*previous.figures, *last.figures],
        truncated=previous.truncated or last.truncated,
    )
