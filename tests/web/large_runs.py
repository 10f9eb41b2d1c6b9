"""A trajectory of any size, written without running anything."""

from __future__ import annotations

from pathlib import Path

from repl_env.llm.base import Completion, ModelUsage
from repl_env.models import CodeBlockResult, REPLObservation
from repl_env.rlm import TrajectoryWriter
from repl_env.rlm.model_call import CellRan, CellStarted, ModelReplied, RunStarted


def write_large(path: Path, events: int, body: int) -> Path:
    """Write a run of three events a turn, each with about `body` characters of text."""
    filler = "".join("\n" if index % 80 == 0 else chr(97 + index % 26) for index in range(body))
    with TrajectoryWriter(path) as write:
        write(
            RunStarted(
                run="0", time=0.0, depth=0, question="Many?", model="m", max_iterations=99_999,
                contexts=(),
            )
        )  # fmt: skip
        for turn in range(1, (events - 1) // 3 + 1):
            code = f"print('printed {turn}')  # {filler}"
            message = {"role": "user", "content": f"turn {turn} {filler}"}
            reply = Completion(f"```repl\n{code}\n```", ModelUsage(10, 5))
            result = CodeBlockResult.model_construct(stdout=f"printed {turn}\n{filler}")
            cell = {"run": "0", "turn": turn, "cell": turn, "code": code}
            write(
                ModelReplied(
                    run="0", time=turn + 0.5, turn=turn, kept=min(turn - 1, 1) * 2,
                    added=(message,), completion=reply, seconds=0.4,
                )
            )  # fmt: skip
            write(CellStarted(time=turn + 0.5, **cell))
            seen = REPLObservation.model_construct(result=result)
            write(CellRan(time=turn + 0.9, observation=seen, seconds=0.4, **cell))
        for _ in range((events - 1) % 3):
            write(CellStarted(run="0", time=1.0, turn=1, cell=90_000, code="pass"))
    return path
