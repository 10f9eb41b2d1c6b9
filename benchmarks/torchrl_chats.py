"""Rollouts of TorchRL's chat with our tool transform and with TorchRL's own interpreter.

    python -m benchmarks.torchrl_chats

Runs where TorchRL is installed. Prints the seconds of the rollouts as JSON; then, without
recovery and with it, "one" while one row has a session, and "group" while a group of rows beside it
has, each until a line comes in.
"""

from __future__ import annotations

import json
import sys
import warnings
from time import perf_counter
from typing import Any

from tensordict import TensorDict, lazy_stack, set_list_to_stack
from torchrl import torchrl_logger
from torchrl.data.llm import History
from torchrl.envs.llm import ChatEnv
from torchrl.envs.llm.transforms import PythonInterpreter

from repl_env.integrations.torchrl import REPLToolTransform
from repl_sandbox import Sandbox

from .samples import Samples, interleave
from .work import CHAT_GROUP, CHAT_ROWS, CHAT_TURNS, TEXT_LINE

ROUNDS = 9
_20_MB = 20_000_000
# In the one kind of fence that both run.
_STEP = "```python\ntotal = sum(range(1000))\nprint(total)\n```"
_LOOK = "```python\nlen(context), context.count('x')\n```"


class Rollouts:
    """Rollouts of one environment; the time of the policy is left out."""

    def __init__(self, tool: Any) -> None:
        self._env = ChatEnv(batch_size=(CHAT_ROWS,)).append_transform(tool)
        self._policy_seconds = 0.0

    def seconds(self) -> float:
        """Seconds that the environment takes for a reset and `CHAT_TURNS` turns."""
        self._policy_seconds, start = 0.0, perf_counter()
        td = self._env.reset(
            TensorDict({"query": ["a question"] * CHAT_ROWS}, batch_size=(CHAT_ROWS,))
        )
        for _ in range(CHAT_TURNS):
            td = self._env.step_mdp(self._env.step(self._policy(td)))
        seconds = perf_counter() - start - self._policy_seconds
        for row in td["history"].prompt.unbind(0):
            if "499500" not in row[-1].content:
                raise RuntimeError(f"the tool did not run: {row[-1].content}")
        return seconds

    def close(self) -> None:
        self._env.close()

    def _policy(self, td: Any) -> Any:
        start = perf_counter()
        td = _replied(td, _STEP)
        self._policy_seconds += perf_counter() - start
        return td


def rollouts() -> dict[str, Samples]:
    """Both, in turn."""
    ours, theirs = Rollouts(REPLToolTransform()), Rollouts(PythonInterpreter(persistent=True))
    taken = interleave({"ours": ours.seconds, "theirs": theirs.seconds}, rounds=ROUNDS)
    ours.close()
    theirs.close()
    return taken


def looking(rows: int, context: str, sandbox: Sandbox | None) -> Any:
    """An environment whose rows have one context, and have looked at it `CHAT_TURNS` times."""
    env = ChatEnv(batch_size=(rows,)).append_transform(REPLToolTransform(sandbox=sandbox))
    data = {"query": ["a question"] * rows, "context": [context] * rows}
    td = env.reset(TensorDict(data, batch_size=(rows,)))
    for _ in range(CHAT_TURNS):
        td = env.step_mdp(env.step(_replied(td, _LOOK)))
    shown = td["history"].prompt[0, -1].content
    if str(len(context)) not in shown:
        raise RuntimeError(f"the context did not arrive: {shown}")
    return env


def hold(told: str) -> None:
    """Say what there is, until a line comes in."""
    print(told, flush=True)
    sys.stdin.readline()


def main() -> None:
    """Measure, tell, then hold one row for a comparison, and a group beside it, twice."""
    warnings.simplefilter("ignore")
    torchrl_logger.setLevel("ERROR")  # it writes to stdout
    set_list_to_stack(True).set()
    taken = rollouts()
    print(json.dumps({name: samples.values for name, samples in taken.items()}), flush=True)
    text = (TEXT_LINE * (_20_MB // len(TEXT_LINE) + 1))[:_20_MB]
    with Sandbox(recovery="restart") as plain:
        for sandbox in (plain, None):  # None: as an environment has it by default
            one = looking(1, "a short text", sandbox)
            hold("one")
            group = looking(CHAT_GROUP, text, sandbox)
            hold("group")
            group.close()
            one.close()


def _replied(td: Any, text: str) -> Any:
    """`td` with this reply in every row."""
    reply = History(role="assistant", content=text)
    rows = [lazy_stack([*row.unbind(0), reply]) for row in td["history"].prompt.unbind(0)]
    td["history"].full = lazy_stack(rows)
    return td


if __name__ == "__main__":
    main()
