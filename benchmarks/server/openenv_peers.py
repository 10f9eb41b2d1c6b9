"""OpenEnv's server with two environments, in an interpreter that has `openenv`.

    python -m benchmarks.server.openenv_peers echo|repl

"repl" stands for OpenEnv's own REPL environment, which is in no package: the same fields on the
wire, the same interpreter, that of smolagents, with as many modules and functions, and around it
what that environment does for a step: names, what is new among them, a state, an answer looked for
in three ways, a rubric of two parts.
"""

from __future__ import annotations

import json
import re
import sys
import time
from contextlib import suppress
from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.rubrics.base import Rubric
from pydantic import BaseModel, Field
from smolagents.local_python_executor import LocalPythonExecutor

from .listening import serve

_SESSIONS = 1024
_ENDLESS = 10**9  # steps of an episode
# Modules that OpenEnv's environment lets code import, and names of the functions that code finds.
_IMPORTS = (
    *("array base64 bisect collections copy dataclasses datetime decimal difflib enum".split()),
    *("fractions functools hashlib heapq hmac itertools json math operator pprint".split()),
    *("random re statistics string struct textwrap typing uuid".split()),
)
_FUNCTIONS = (
    *("format_exc", "safe_json_dumps", "FINAL", "FINAL_VAR", "SHOW_VARS", "llm_batch"),
    *("llm_query", "llm_query_batched", "rlm_query", "rlm_query_batched"),
)
_WHOLE = 500  # characters of a value that are shown


class Code(Action):  # type: ignore[misc]
    """The code of a step."""

    code: str = ""
    is_final: bool = False
    final_answer: str | None = None


class Result(BaseModel):
    """The result of code."""

    stdout: str = ""
    stderr: str = ""
    locals_snapshot: dict[str, str] = Field(default_factory=dict)
    execution_time: float = Field(default=0.0, ge=0)
    success: bool = True
    exception: str | None = None


class Seen(Observation):  # type: ignore[misc]
    """The observation of a policy."""

    result: Result
    context_preview: str | None = None
    context_length: int = Field(default=0, ge=0)
    available_variables: list[str] = Field(default_factory=list)
    iteration: int = Field(default=0, ge=0)
    max_iterations: int = Field(default=30, ge=1)


class Echo(Environment):  # type: ignore[misc]
    """Says what it was told."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: Any = None, episode_id: Any = None, **_: Any) -> Seen:
        return Seen(result=Result())

    def step(self, action: Code, timeout_s: Any = None, **_: Any) -> Seen:
        return Seen(result=Result(stdout=action.code), reward=0.0)

    @property
    def state(self) -> State:
        return State()


class Episode(State):  # type: ignore[misc]
    """How far things are."""

    context: str = ""
    task_prompt: str = ""
    iteration: int = 0
    max_iterations: int = _ENDLESS
    namespace_keys: list[str] = Field(default_factory=list)
    final_answer: str | None = None
    total_execution_time: float = 0.0


class Went(Rubric):  # type: ignore[misc]
    """Whether code raised."""

    def forward(self, action: Code, observation: Seen) -> float:
        return 0.0 if observation.result.success else -0.05


class Score(Rubric):  # type: ignore[misc]
    """Of each step, as nobody expects an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.process = Went()

    def forward(self, action: Code, observation: Seen) -> float:
        return float(self.process(action, observation))


class REPL(Echo):
    """Runs code in an interpreter of Python written in Python."""

    def __init__(self) -> None:
        super().__init__(rubric=Score())

    def reset(self, seed: Any = None, episode_id: Any = None, **_: Any) -> Seen:
        self._executor = LocalPythonExecutor(additional_authorized_imports=[*_IMPORTS])
        self._executor.send_tools(dict.fromkeys(_FUNCTIONS, str))
        self._executor.send_variables({"answer": {"content": "", "ready": False}})
        self._names, self._episode = {*_FUNCTIONS, "answer"}, Episode()
        return Seen(result=Result(), available_variables=self._variables())

    def step(self, action: Code, timeout_s: Any = None, **_: Any) -> Seen:
        episode = self._episode
        episode.step_count += 1
        episode.iteration += 1
        result = self._run(action.code)
        episode.total_execution_time += result.execution_time
        episode.namespace_keys = self._variables()
        answer = self._answer(result.stdout)
        told = {"task_prompt": episode.task_prompt, "final_answer": answer}
        seen = Seen(
            result=result,
            available_variables=episode.namespace_keys,
            iteration=episode.iteration,
            max_iterations=episode.max_iterations,
            done=answer is not None,
            metadata={**told, "execution_time": result.execution_time},
        )
        seen.reward = self._apply_rubric(action, seen)
        return seen

    def _run(self, code: str) -> Result:
        before, begun, printed = set(self._executor.state), time.time(), []
        output = self._executor(code)
        if output.logs:
            printed.append(str(output.logs))
        if output.output is not None:
            printed.append(json.dumps(output.output))
        taken, made = time.time() - begun, {}
        for name, value in self._executor.state.items():
            if name not in before and not name.startswith("_"):
                shown = repr(value)
                made[name] = shown if len(shown) <= _WHOLE else f"{shown[:_WHOLE]}..."
        self._names |= made.keys()
        return Result(stdout="\n".join(printed), locals_snapshot=made, execution_time=taken)

    def _variables(self) -> list[str]:
        return [*{*(name for name in self._executor.state if name[:1] != "_"), *self._names}]

    def _answer(self, printed: str) -> str | None:
        if found := re.search(r"FINAL\(([^)]*)\)", printed):
            return found[1]
        if found := re.search(r"FINAL_VAR\((\w+)\)", printed):
            return str(self._executor.state.get(found[1]))
        answer = self._executor.state.get("answer")
        with suppress(AttributeError):
            return str(answer["content"]) if answer.get("ready") else None
        return None


if __name__ == "__main__":
    made = {"echo": Echo, "repl": REPL}[sys.argv[1]]
    serve(create_app(made, Code, Seen, env_name=sys.argv[1], max_concurrent_envs=_SESSIONS))
