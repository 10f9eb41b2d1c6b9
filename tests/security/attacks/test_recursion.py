"""Depth, budget, credentials and the expected answer are the host's: code tries to get at them."""

from __future__ import annotations

from typing import Any

import pytest

from repl_env.rlm import RLM, Budget, ChatModel, Completion, ModelRequest, RLMRunResult
from repl_env.rlm.model_call import RunStarted
from repl_sandbox import Limits, Sandbox

KEY = "sk-canary-7f2a9c"
EXPECTED = "canary-answer-51b3"

# Finds the worker's socket, and speaks the protocol over it.
FORGE = """
import json, os, socket, stat, struct
FD = next(fd for fd in range(4095, 2, -1) if os.path.exists(f"/proc/self/fd/{fd}")
          and stat.S_ISSOCK(os.fstat(fd).st_mode))
wire = socket.socket(fileno=os.dup(FD))
def say(header, blob=b""):
    head = json.dumps(header).encode()
    wire.sendall(struct.pack("!II", len(head), len(blob)) + head + blob)
def call(name, args, number=900):
    say(dict(type="call", call=number, cell=1, name=name, parts=[]), json.dumps(args).encode())
"""

# Looks through everything that the process can reach, as objects and as memory.
SEARCH = """
import gc, os, sys
wanted = "".join({pieces!r})
found = []
for each in gc.get_objects():
    try:
        if wanted in repr(each)[:100_000] and each is not globals() and "wanted" not in repr(each):
            found.append(type(each).__name__)
    except Exception:
        pass
needle = wanted.encode()
own = 0
import ctypes
with open("/proc/self/maps") as maps:
    for line in maps.readlines():
        span, mode = line.split()[:2]
        start, end = (int(x, 16) for x in span.split("-"))
        if mode == "rw-p" and "[stack" not in line and end - start < 64 << 20:
            own += ctypes.string_at(start, end - start).count(needle)
FINAL([wanted in str(dict(os.environ)), found, own])
"""


# Tries something, and notes what came of it.
ATTEMPT = """
try:
    exec({!r})
    said = "done"
except Exception as error:
    said = type(error).__name__
"""


class Keeper(ChatModel):
    """A model that holds a key, and plays a reply at the root and in children."""

    name = "keeper"

    def __init__(self, *replies: str, child: str = "FINAL(1)") -> None:
        self.key = KEY
        self.replies, self.child = replies, child
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> Completion:
        self.requests.append(request)
        origin = request.origin
        if origin.purpose == "query":
            return Completion("an answer")
        replies = (self.child,) if "." in origin.run else self.replies
        code = replies[min(origin.number, len(replies)) - 1]
        return Completion(f"```repl\n{code}\n```")


@pytest.fixture(scope="module")
def sandbox() -> Any:
    with Sandbox(limits=Limits(memory="512MiB", timeout=20.0, grace=0.3)) as sandbox:
        yield sandbox


def run(sandbox: Sandbox, model: Keeper, **arguments: Any) -> RLMRunResult:
    return RLM(model, sandbox=sandbox, **arguments).run("?", expected_answer=EXPECTED)


@pytest.mark.parametrize("secret", [KEY, EXPECTED])
def test_no_secret_is_in_the_process_of_the_code(sandbox: Sandbox, secret: str) -> None:
    code = SEARCH.format(pieces=[secret[:8], secret[8:]])
    result = run(sandbox, Keeper("llm_query('a')\nrlm_query('b')", code))
    found: Any = result.answer_value
    in_environment, objects, copies = found
    # The text that the search itself assembles is in memory, several times over.
    assert (in_environment, objects) == (False, [])
    control = run(sandbox, Keeper("1", SEARCH.format(pieces=["never-", "anywhere-9d"])))
    assert copies <= control.answer_value[2] + 2  # type: ignore[index,operator]


@pytest.mark.parametrize(
    ("attempt", "told", "deepest"),
    [
        ("import os\nos.environ.update(RLM_MAX_DEPTH='9', REPL_RLM_MAX_DEPTH='9')", "done", 1),
        ("rlm_query.__defaults__ = (9,)", "done", 1),
        ("rlm_query.__globals__.update(max_depth=9, depth=0)", "done", 1),
        # The function itself is broken by it.
        ("for cell in rlm_query.__closure__ or ():\n    cell.cell_contents = 9", "done", 0),
        ("import sys\nsys._getframe().f_globals['depth'] = -5", "done", 1),
        ("rlm_query('x', depth=-5)", "TypeError", 1),
        ("rlm_query('x', max_depth=9, account=None)", "TypeError", 1),
    ],
)
def test_the_depth_cannot_be_changed(
    sandbox: Sandbox, attempt: str, told: str, deepest: int
) -> None:
    tried = (
        f"{ATTEMPT.format(attempt)}try: rlm_query('deeper')\nexcept TypeError: pass\nFINAL(said)"
    )
    events: list[Any] = []
    model = Keeper(tried, child=tried)
    result = run(sandbox, model, max_depth=2, max_iterations=4, on_event=events.append)
    assert result.answer_value == told
    assert max(event.depth for event in events if isinstance(event, RunStarted)) == deepest


@pytest.mark.parametrize(
    ("attempt", "told"),
    [
        ("budget = lambda: {'left': {'calls': 10**9}}", "done"),
        ("budget()['left']['calls'] = 10**9", "done"),
        ("class BudgetExceeded(Exception): pass", "done"),
        ("llm_query.__code__ = (lambda *a, **k: 'free').__code__", "ValueError"),
        ("import builtins\nbuiltins.calls = 10**9", "done"),
        ("llm_batch(['x'] * 3, price=0)", "TypeError"),
    ],
)
def test_the_budget_cannot_be_changed(sandbox: Sandbox, attempt: str, told: str) -> None:
    many = (
        f"{ATTEMPT.format(attempt)}made = 0\nfor n in range(20):\n    try:\n"
        "        llm_query('q')\n        made += 1\n    except Exception as error:\n"
        "        last = type(error).__name__\nFINAL([said, made, last])"
    )
    model = Keeper(many)
    result = run(sandbox, model, budget=Budget(calls=6))
    assert result.answer_value == [told, 5, "BudgetExceeded"]
    assert len(model.requests) == 6
    assert (result.usage.calls, result.stop_reason) == (len(model.requests), result.stop_reason)


def test_forged_calls_are_calls_like_all_others(sandbox: Sandbox) -> None:
    forged = FORGE + (
        "for n in range(40):\n    call('llm_query', [['q'], {}], 900 + n)\n"
        "import time\ntime.sleep(1)"
    )
    model = Keeper(forged, "1")
    result = run(sandbox, model, budget=Budget(calls=5))
    assert len(model.requests) <= 5
    assert result.usage.calls == len(model.requests)


@pytest.mark.parametrize(
    "forged",
    [
        "call('rlm_query', [['q'], {'depth': -3, 'account': None, 'path': '0'}])",
        "call('rlm_spawn.result', [[1, None], {}])",
        "call('rlm_spawn.cancel', [[{'a': 1}], {}])",
        "call('rlm_spawn.wait', [[[True, 10**30]], {}])",
        "call('budget', [[], {'calls': 10**9}])",
        "call('close', [[], {}])",
        "call('account', [[], {}])",
        "call('submit_final_answer', [['x'], {}])",
        "call('llm_query', [[['not', 'text']], {}])",
        "call('llm_query', [['q'], {'timeout': -1, 'schema': 5, 'model': 7}])",
    ],
)
def test_a_forged_call_has_no_effect_and_the_run_goes_on(sandbox: Sandbox, forged: str) -> None:
    code = FORGE + forged + "\nimport time\ntime.sleep(0.3)"
    model = Keeper(code, "FINAL('mine')")
    events: list[Any] = []
    result = run(sandbox, model, budget=Budget(calls=8), max_depth=2, on_event=events.append)
    assert result.final_answer == "mine"
    assert result.reward != 1.0
    assert max(event.depth for event in events if isinstance(event, RunStarted)) <= 1


def test_an_answer_of_a_child_cannot_answer_for_its_parent(sandbox: Sandbox) -> None:
    child = FORGE + (
        "say(dict(type='answered', call=1, cell=1, form='FINAL'), json.dumps(['stolen', 1, None])"
        ".encode())\nFINAL('child')"
    )
    result = run(sandbox, Keeper("r = rlm_query('a')", "FINAL('parent')", child=child))
    assert result.final_answer == "parent"
