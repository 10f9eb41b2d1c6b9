"""A runner without models and sessions, for tests of what `repl-env run` makes of one.

The question says what happens: "answer", "budget", "none", "model-error", "wait", ...
"""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

from repl_env.errors import BudgetExceeded, ModelError
from repl_env.llm.base import Completion, ModelUsage
from repl_env.models import CodeBlockResult, REPLObservation
from repl_env.rlm.budget import Spent
from repl_env.rlm.model_call import (
    CallEnded,
    CallStarted,
    CellRan,
    ModelReplied,
    RunEnded,
    RunStarted,
)
from repl_sandbox.errors import IsolationError

HOST_TIMEOUT = 60.0
QUITS = Completion("I give up \x1b[2J.", ModelUsage(1, 1, 0.0))

made = []
# More bytes than the machine of this stand-in has.
TOO_MUCH = 1 << 50


class RLM:
    """Takes the arguments of `RLM` and reports events as a run would."""

    def __init__(self, model, **arguments):
        if arguments["limits"].memory == TOO_MUCH:
            raise IsolationError("jailed", "namespaces", "refused", "Ask root.")
        self.model, self.arguments, self.asked = model, arguments, None
        self._watch = arguments["on_event"]
        made.append(self)

    async def arun(self, question, context=None, **asked):
        self.asked = {"context": context, **asked}
        if question == "bad-schema":
            raise ValueError("answer_schema is no JSON schema")
        self._tell(
            RunStarted,
            depth=0,
            question=question,
            model="scripted",
            max_iterations=self.arguments["max_iterations"],
            contexts=(),
        )
        reply = Completion("x", ModelUsage(100, 10, 0.25))
        self._tell(ModelReplied, turn=1, kept=0, added=(), completion=reply, seconds=0.1)
        self._call(ModelUsage(7, 3, 0.25))
        return await self._end(question)

    async def _end(self, question):
        match question:
            case "wait":
                print("waiting", flush=True)
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError as error:
                    error.result = self._result("half", "cancelled")  # type: ignore[attr-defined]
                    raise
            case "model-error":
                error = ModelError("connection", "no such host")
                error.result = self._result("so far", "error", error_kind="llm")
                raise error
            case "exceeded":
                raise BudgetExceeded("calls", "no calls are left")
            case "defect":
                raise TypeError("a defect of ours")
            case "budget":
                return self._result("part", "budget")
            case "failing":
                self._tell(ModelReplied, turn=2, kept=0, added=(), completion=QUITS, seconds=0.1)
                self._cell(1)
                self._tell(ModelReplied, turn=3, kept=0, added=(), completion=QUITS, seconds=0.1)
                self._tell(ModelReplied, turn=4, kept=0, added=(), completion=QUITS, seconds=0.1)
                self._cell(2)
                return self._result(None, "max_iterations")
            case "none":
                return self._result(None, "max_iterations")
            case "last-reply":
                return self._result("I do not know", "max_iterations")
            case "lost":
                return self._result(None, "aborted", error_kind="sandbox")
        return self._result("42\x1b[2J", "answer", value=42)

    def _result(self, answer, reason, *, error_kind=None, value=None):
        total = Spent(2, 0, 107, 13, 0, 0.5)
        self._tell(
            RunEnded,
            final_answer=answer,
            answer_value=value,
            stop_reason=reason,
            error_kind=error_kind,
            reward=None,
            iterations=1,
            own=total,
            total=total,
            seconds=0.5,
        )
        return SimpleNamespace(
            final_answer=answer,
            answer_value=value,
            stop_reason=reason,
            error_kind=error_kind,
            usage=total,
            iterations=1,
        )

    def _call(self, usage):
        call = {"call": "0.1", "kind": "llm", "cell": 1, "model": None, "prompt": "part"}
        self._tell(CallStarted, **call)
        self._tell(
            CallEnded, **call, text="", error=None, truncated=False, usage=usage, seconds=0.1
        )

    def _cell(self, number):
        exception = "NameError: name 'foo' is not defined\nTraceback"
        result = CodeBlockResult(
            stdout="one\n", stderr=exception, success=False, exception=exception
        )
        observation = REPLObservation(result=result)
        told = {"code": "print(1)\nfoo()", "observation": observation, "seconds": 0.1}
        self._tell(CellRan, turn=number, cell=number, **told)

    def _tell(self, event, **fields):
        self._watch(event(run="0", time=time.time(), **fields))
