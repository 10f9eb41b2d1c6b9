"""Episodes for trainers, agent frameworks and hubs, a module or a few for each library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Arguments of a reset that a trainer's dataset may have a column for; API keys are no columns.
COLUMNS = (
    "context", "contexts", "files", "task_prompt", "expected_answer", "answer_schema",
    "max_iterations", "seed",
)  # fmt: skip

# The same, with the id of an episode, which the rows of one task must not share.
ARGUMENTS = (*COLUMNS, "episode_id")

# How to install what the modules of `torchrl` import, and the libraries themselves.
TORCHRL = (
    "TorchRL: pip install 'repl-env[torchrl]'",
    "torch", "torchrl", "tensordict", "gymnasium", "numpy",
)  # fmt: skip


@contextmanager
def needing(install: str, *libraries: str) -> Iterator[None]:
    """Import `libraries` in the block; where one is missing, the error says what to `install`.

    Raises:
        ModuleNotFoundError: one is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        is_said = isinstance(error.__cause__, ModuleNotFoundError)  # by a block within this one
        if is_said or (error.name or "").partition(".")[0] not in libraries:
            raise
        raise ModuleNotFoundError(f"this needs {install}", name=error.name) from error


def session_code(name: str) -> str:
    """Return the code of the file `name` of `session_code/`, which runs in sessions."""
    return (Path(__file__).with_name("session_code") / name).read_text(encoding="utf-8")


def request_of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the reset that `row` describes.

    They are columns of the row, or of its "extra_info". `max_turns` is another name of
    `max_iterations`, and `reward_spec["ground_truth"]`, `reward_model["ground_truth"]` or
    `ground_truth` of `expected_answer`. Other columns are the trainer's.
    """
    named = {**(row.get("extra_info") or {}), **row}
    spec = named.get("reward_spec") or named.get("reward_model") or {}
    aliases = {
        "max_iterations": named.get("max_turns"),
        "expected_answer": spec.get("ground_truth", named.get("ground_truth")),
    }
    found = {name: named.get(name, aliases.get(name)) for name in COLUMNS}
    return {name: value for name, value in found.items() if value is not None}
