"""One step of an episode that runs several code blocks, each in its own cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from repl_env.episode.observations import on_new_line
from repl_env.errors import OURS
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


def joined(before: REPLObservation, last: REPLObservation) -> REPLObservation:
    """Add the output, changes and cost of the earlier cells of this step to `last`.

    `metadata["blocks"]` has each cell's outcome as text, in order.
    """
    metadata = _joined_metadata(before.metadata, last.metadata)
    metadata["blocks"] = [*outcome_texts(before), *outcome_texts(last)]
    give(last, result=_joined_results(before.result, last.result), metadata=metadata)
    return last


def outcome_texts(observation: REPLObservation) -> list[str]:
    """Return the outcomes of a step's cells as text."""
    blocks: list[str] | None = observation.metadata.get("blocks")
    return [shown_result(observation.result)] if blocks is None else blocks


def _joined_metadata(before: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    kinds = [last["error_kind"], before["error_kind"]]
    infrastructure = [kind for kind in kinds if kind in OURS]
    usage = {name: before["usage"][name] + last["usage"][name] for name in _USAGE}
    usage["peak_memory"] = max(before["usage"]["peak_memory"], last["usage"]["peak_memory"])
    return {
        **last,
        **{name: before[name] + last[name] for name in _SUMS},
        "error_kind": next((kind for kind in (*infrastructure, *kinds) if kind is not None), None),
        "truncated": before["truncated"] or last["truncated"],
        "usage": usage,
    }


def _joined_results(before: CodeBlockResult, last: CodeBlockResult) -> CodeBlockResult:
    return trusted(
        CodeBlockResult,
        stdout=on_new_line(before.stdout) + last.stdout,
        stderr=on_new_line(before.stderr) + last.stderr,
        locals_snapshot={**before.locals_snapshot, **last.locals_snapshot},
        execution_time=before.execution_time + last.execution_time,
        success=before.success and last.success,
        exception=before.exception if last.exception is None else last.exception,
        value=last.value,
        changes=[*before.changes, *last.changes],
        figures=[*before.figures, *last.figures],
        truncated=before.truncated or last.truncated,
    )
