"""A run each text of which tries to become markup, an address, or code of the page."""

from __future__ import annotations

import base64

from repl_env.llm.base import Completion, ModelUsage
from repl_env.models import CodeBlockResult, REPLObservation
from repl_env.rlm import CallEnded, CallStarted
from repl_env.rlm.budget import Spent
from repl_env.rlm.model_call import (
    AnyEvent,
    CellRan,
    CellStarted,
    ContextNote,
    ModelReplied,
    RunEnded,
    RunStarted,
    TaskNote,
)

HOSTILE = (
    "<img src=x onerror=alert(1)><script>alert(2)</script></script><!--<script>-->"
    "<svg onload=alert(3)><iframe src='javascript:alert(4)'></iframe>\"'`</textarea></pre>"
    "${alert(5)} javascript:alert(6) "
    "[a](javascript:alert(7)) <a href='javascript:alert(8)'>x</a> https://evil.example/x.png"
    " \u2028\u2029\u202eabc\u202c \x00\x1b]8;;javascript:alert(9)\x07link\x1b]8;;\x07 \ud83d"
)
SVG = base64.b64encode(
    b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(10)'><script>alert(11)</script></svg>"
).decode()
CALL = {"run": "0", "call": "0.1", "kind": "llm", "cell": 1, "model": HOSTILE, "prompt": HOSTILE}


def hostile_events() -> list[AnyEvent]:
    """The events of one run, with a turn, a cell and a call."""
    result = CodeBlockResult.model_construct(
        stdout=HOSTILE,
        stderr=HOSTILE,
        success=False,
        exception=HOSTILE + "!",
        value=HOSTILE,
        locals_snapshot={HOSTILE: HOSTILE, "__proto__": HOSTILE, "constructor": HOSTILE},
        changes=[
            {"name": HOSTILE, "kind": HOSTILE, "type": HOSTILE, "size": 1, "preview": HOSTILE},
            {"name": "__proto__", "kind": "new", "type": "x", "size": 1, "preview": "y"},
        ],
        # Their HTML and SVG: `test_displays.py`.
        displays=[
            {"text": HOSTILE, "forms": {form: HOSTILE}, "is_value": False}
            for form in ("text/latex", "application/json", HOSTILE, "__proto__")
        ],
        figures=[SVG, "javascript:alert(12)", HOSTILE.encode("ascii", "replace").decode()],
        execution_time=0.1,
        truncated=True,
    )
    observation = REPLObservation.model_construct(
        result=result, metadata={"error_kind": HOSTILE, "final_answer": HOSTILE}
    )
    message = {"role": HOSTILE, "content": HOSTILE}
    parts = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": HOSTILE}}]}
    spent = Spent(calls=1)
    reply = Completion(f"{HOSTILE}\n```repl\n{HOSTILE}\n```", ModelUsage(1, 1), HOSTILE, HOSTILE)
    return [
        RunStarted(
            run="0", time=1.0, depth=0, question=HOSTILE, model=HOSTILE, max_iterations=3,
            contexts=(ContextNote(HOSTILE, HOSTILE, 1),),
            task=TaskNote(name=HOSTILE, group_id=HOSTILE, split=HOSTILE, difficulty=HOSTILE),
        ),
        ModelReplied(
            run="0", time=2.0, turn=1, kept=0, added=(message, parts), completion=reply, seconds=1.0
        ),
        CellStarted(run="0", time=2.0, turn=1, cell=1, code=HOSTILE),
        CallStarted(time=2.1, **CALL),
        CallEnded(
            time=2.2, text=HOSTILE, error=HOSTILE, truncated=True, usage=ModelUsage(1, 1),
            seconds=0.1, **CALL,
        ),
        CellRan(
            run="0", time=3.0, turn=1, cell=1, code=HOSTILE, observation=observation, seconds=1.0
        ),
        RunEnded(
            run="0", time=3.0, final_answer=HOSTILE, answer_value=HOSTILE, stop_reason=HOSTILE,
            error_kind=HOSTILE, reward=0.5, iterations=1, own=spent, total=spent, seconds=2.0,
        ),
    ]  # fmt: skip
