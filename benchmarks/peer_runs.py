"""The runs of `benchmarks/runs.py` by `rlms`, the library of arXiv 2512.24601's authors.

Its environment "local" executes in the process of the host. Its client is a stub that answers at
once, as our scripted model does, and tells when it was asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

from .work import ASK, ASK_BATCH, RUN_TURNS, STEP, TEXT_10_MB, block, timing

_ANSWER = "answer['content'] = 'done'\nanswer['ready'] = True"


def measure() -> dict[str, float]:
    """Every figure of runs that it can do. Its children have no session in a run of one level."""
    stamps: list[tuple[float, float]] = []

    def step(_: object) -> str:
        return block(STEP if len(stamps) < RUN_TURNS else _ANSWER)

    _run(step, TEXT_10_MB, stamps)
    # From one reply to the next question.
    turns = [after[0] - before[1] for before, after in pairwise(stamps)]
    return {
        "turn": median(turns),
        "turn_at_once": median(turns),
        "turn_late": median(turns[-RUN_TURNS // 4 :]),
        "subcall": _in_a_cell(ASK, 100),
        "subcall_batch": _in_a_cell(ASK_BATCH, 30),
    }


def _in_a_cell(call: str, rounds: int) -> float:
    """The median of what a cell takes for `call`."""
    ready = "answer['content'] = repr(sorted(taken['ours'])[len(taken['ours']) // 2])"
    code = timing(rounds, f"{ready}\nanswer['ready'] = True", ours=call)

    def reply(prompt: object) -> str:
        # Questions of code are texts, those of the run conversations.
        return "an answer" if isinstance(prompt, str) else block(code)

    return float(_run(reply, "text", []))


def _run(reply: Callable[[object], str], context: str, stamps: list[tuple[float, float]]) -> str:
    """The answer of a run; `stamps` gets when each question came and when it was answered."""
    import rlm.core.rlm as library
    from rlm.clients.base_lm import BaseLM
    from rlm.core.types import ModelUsageSummary, UsageSummary

    class Stub(BaseLM):  # type: ignore[misc]
        def completion(self, prompt: object) -> str:
            asked = time.perf_counter()
            text = reply(prompt)
            stamps.append((asked, time.perf_counter()))
            return text

        async def acompletion(self, prompt: object) -> str:
            return self.completion(prompt)

        def get_usage_summary(self) -> Any:
            return UsageSummary({self.model_name: self.get_last_usage()})

        def get_last_usage(self) -> Any:
            return ModelUsageSummary(1, 1, 1)

    # It knows clients by name only.
    library.get_client = lambda *_: Stub("stub")
    run = library.RLM(environment="local", max_iterations=RUN_TURNS + 1)
    return str(run.completion(context).response)
