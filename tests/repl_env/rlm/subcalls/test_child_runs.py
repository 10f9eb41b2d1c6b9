"""Trees of runs: sub-calls, children, what they may spend, and what ends with what."""

import asyncio
import threading

import pytest

from repl_env.errors import ModelError
from repl_env.rlm import (
    Budget,
    Completion,
    ModelUsage,
    RunConfig,
    ScriptedModel,
    Trajectory,
    answerers,
)
from repl_env.rlm.model_call import CallEnded, CallStarted, RunEnded, RunStarted
from tests.repl_env.rlm.replies import code, tree


def prompt_of(request):
    return request.messages[0]["content"]


# ── plain questions ──────────────────────────────────────────────────────────────────────────────


def test_llm_query_returns_a_text_with_its_call_details(rlm):
    asked = "t = llm_query('Who?')\nFINAL((t, t.ok, t.error, t.truncated, t.usage, t.upper()))"
    model = tree([code(asked)], query=Completion("me", ModelUsage(11, 2), "length"))
    result = rlm(model).run("?")
    usage = {"input_tokens": 11, "output_tokens": 2}
    assert result.answer_value == ["me", True, None, True, usage, "ME"]
    assert (result.usage.calls, result.usage.output_tokens >= 2) == (2, True)


def test_a_batch_keeps_its_length_and_order_despite_failures(rlm):
    def query(request):
        number = int(prompt_of(request))
        if number % 3 == 0:
            raise ModelError("server", "no")
        return str(number * 10)

    asked = "b = llm_query_batched([str(n) for n in range(7)])\nFINAL([(t, t.ok) for t in b])"
    result = rlm(tree([code(asked)], query=query)).run("?")
    assert result.answer_value == [
        ["Error: server: no", False] if n % 3 == 0 else [str(n * 10), True] for n in range(7)
    ]
    assert (result.error_kind, result.usage.failed_calls) == (None, 3)  # the endpoint works


def test_ten_thousand_prompts_are_one_batch(rlm):
    asked = "b = llm_batch([str(n) for n in range(10_000)])\nFINAL((len(b), b[9_999]))"
    model = tree([code(asked)], query=prompt_of)
    result = rlm(model, budget=Budget(calls=None)).run("?")
    assert result.answer_value == [10_000, "9999"]


def test_a_batch_beyond_the_budget_is_answered_in_part(rlm):
    asked = "b = llm_batch([str(n) for n in range(6)])\nFINAL([t.ok for t in b])"
    result = rlm(tree([code(asked)]), budget=Budget(calls=4)).run("?")
    assert result.answer_value == [True] * 3 + [False] * 3
    assert (result.usage.calls, result.error_kind) == (4, None)


def test_a_single_question_beyond_the_budget_raises_in_the_cell(rlm):
    first = code(
        "llm_query('1')\ntry:\n    llm_query('2')\nexcept BudgetExceeded as e:\n    kind = e.type\n"
        "answer['content'] = kind"
    )
    result = rlm(tree([first, code("1")]), budget=Budget(calls=2)).run("?")
    assert (result.final_answer, result.stop_reason) == ("BudgetExceeded", "budget")


@pytest.mark.parametrize("call", ["llm_query(5)", "llm_batch('text')", "rlm_query_batched([None])"])
def test_prompts_that_are_no_str_raise_in_the_cell(rlm, call):
    model = tree([code(call), code("FINAL('ok')")])
    result = rlm(model).run("?")
    assert "must be a" in model.requests[1].messages[-1]["content"]
    assert (result.error_kind, result.usage.calls) == (None, 2)


def test_another_model_may_be_named_and_a_sub_model_set(rlm):
    sub = ScriptedModel(lambda request: f"by {request.model}")
    main = ScriptedModel([code("FINAL((llm_query('a'), llm_query('b', model='big')))")])
    assert rlm(main, sub_model=sub).run("?").answer_value == ["by None", "by big"]


def test_a_schema_is_enforced_with_one_repair_request(rlm):
    replies = iter(["not json", '```json\n{"n": 3}\n```', "no", "still no"])
    asked = (
        "s = {'type': 'object', 'required': ['n']}\n"
        "good, bad = llm_query('a', schema=s), llm_query('b', schema=s)\n"
        "FINAL((good.value, bad.ok, bad.error))"
    )
    model = tree([code(asked)], query=lambda request: next(replies))
    value, ok, error = rlm(model).run("?").answer_value
    assert (value, ok) == ({"n": 3}, False)
    assert error.startswith("schema: twice, the answer is not JSON")
    repair = next(each for each in model.requests if each.origin.purpose == "repair")
    assert [message["role"] for message in repair.messages] == ["user", "assistant", "user"]


def test_context_goes_with_the_question(rlm):
    asked = "FINAL([llm_query('Look:', context=c) for c in ('text', b'bytes', {'k': 1})])"
    answers = rlm(tree([code(asked)], query=prompt_of)).run("?").answer_value
    assert answers == ["Look:\n\ntext", "Look:\n\nbytes", 'Look:\n\n{\n "k": 1\n}']


def test_a_call_may_have_a_timeout(rlm, monkeypatch):
    monkeypatch.setattr(answerers, "PROBE_SECONDS", 0.5)  # whether the endpoint answers at all

    async def slow(request):
        await asyncio.Event().wait()

    asked = "t = llm_query('a', timeout=0.1)\nFINAL((t.ok, t))"
    ok, text = rlm(tree([code(asked)], query=slow)).run("?").answer_value
    assert (ok, text) == (False, "Error: TimeoutError: no answer within 0.1 seconds")


# ── children ─────────────────────────────────────────────────────────────────────────────────────


def test_a_recursive_call_is_answered_by_a_run_of_its_own(rlm):
    root = [code("part = context[6:]\nr = rlm_query('How long?', context=part)\nFINAL((r, r.ok))")]
    child = [code("n = len(context)"), code("FINAL(n)")]
    events = []
    model = tree(root, child)
    result = rlm(model, on_event=events.append).run("?", "0123456789")
    assert result.answer_value == ["4", True]
    assert (result.usage.calls, result.own.calls, result.usage.children) == (3, 1, 1)
    started = [event for event in events if isinstance(event, RunStarted)]
    assert [(each.run, each.depth) for each in started] == [("0", 0), ("0.1", 1)]
    call = next(event for event in events if isinstance(event, CallEnded))
    assert (call.call, call.kind, call.child, call.text) == ("0.1", "rlm", True, "4")
    (trace,) = result.child_traces
    assert (trace.depth, trace.duration_s, trace.error) == (1, call.seconds, None)
    assert (trace.prompt_preview, trace.result_preview) == ("How long?", "4")
    ended = [event for event in events if isinstance(event, RunEnded)]
    assert [(each.run, each.total.calls) for each in ended] == [("0.1", 2), ("0", 3)]
    first = next(each for each in model.requests if each.origin.run == "0.1")
    assert "How long?" in first.messages[-1]["content"]


def test_a_child_has_a_session_of_its_own(rlm):
    root = [code("secret = 1\nFINAL(rlm_query('Is it there?'))")]
    child = [code("FINAL('secret' in globals())")]
    assert rlm(tree(root, child)).run("?").final_answer == "False"


def test_below_the_maximum_depth_recursive_calls_are_plain_ones(rlm):
    root = [code("FINAL(rlm_query('a'))")]
    child = [code("FINAL(rlm_query('b') + '!')")]
    result = rlm(tree(root, child, "plain"), max_depth=2).run("?")
    assert (result.final_answer, result.usage.children) == ("plain!", 1)
    result = rlm(tree(root, child, "plain"), max_depth=1).run("?")
    assert (result.final_answer, result.usage.children) == ("plain", 0)


def test_children_of_children_and_exact_totals_at_every_level(rlm):
    def reply(request):
        depth = request.origin.run.count(".")
        ask = "rlm_query_batched(['x', 'y'])" if depth < 2 else "llm_batch(['x', 'y'])"
        return code(f"FINAL(len({ask}))")

    events = []
    model = tree(reply, reply)
    result = rlm(model, max_depth=3, on_event=events.append, budget=Budget(calls=None)).run("?")
    assert result.usage.children == 2 + 4
    assert result.usage.calls == 1 + 2 + 4 + 8 == len(model.requests)
    ends = {event.run: event for event in events if isinstance(event, RunEnded)}
    assert {run: end.total.calls for run, end in ends.items()} == {
        "0": 15, "0.1": 7, "0.2": 7, "0.1.1": 3, "0.1.2": 3, "0.2.1": 3, "0.2.2": 3,
    }  # fmt: skip


def test_the_number_of_children_is_a_budget(rlm):
    asked = "b = rlm_query_batched(['a', 'b', 'c'])\nFINAL([t.ok for t in b])"
    result = rlm(tree([code(asked)], [code("FINAL(1)")]), budget=Budget(children=2)).run("?")
    assert sorted(result.answer_value) == [False, True, True]
    assert result.usage.children == 2


def test_a_child_that_gives_no_answer_is_a_failed_call(rlm):
    root = [code("r = rlm_query('a')\nFINAL((r.ok, r))")]
    result = rlm(tree(root, lambda request: ""), max_iterations=2).run("?")
    ok, text = result.answer_value
    assert (ok, text) == (False, "Error: no answer: the sub-model stopped by max_iterations")


def test_a_child_whose_model_fails_is_an_infrastructure_error_and_masks_the_run(rlm):
    def broken(request):
        raise ModelError("connection", "down")

    root = [code("r = rlm_query('a')\nFINAL(r)")]
    result = rlm(tree(root, broken)).run("?", expected_answer="x")
    assert (result.final_answer, result.error_kind) == ("Error: connection: down", "llm")


def test_a_schema_is_enforced_for_the_answer_of_a_child(rlm):
    root = [code("r = rlm_query('a', schema={'type': 'integer'})\nFINAL((r, r.value))")]
    child = [code("FINAL('seven')"), code("FINAL(7)")]
    assert rlm(tree(root, child)).run("?").answer_value == ["7", 7]


def test_a_long_task_is_the_context_of_the_child(rlm):
    root = [code("FINAL(rlm_query('word ' * 5_000))")]
    child = [code("FINAL(len(context))")]
    model = tree(root, child)
    assert rlm(model).run("?").final_answer == "25000"
    told = next(each for each in model.requests if "." in each.origin.run).messages[-1]["content"]
    assert len(told) < 6_000


# ── calls that go on beside the code ─────────────────────────────────────────────────────────────


def test_spawned_runs_work_while_the_code_goes_on(rlm):
    root = [
        code(
            "hs = [rlm_spawn('How long?', context='x' * n) for n in (3, 5)]\n"
            "done = [h.result(timeout=120) for h in rlm_spawn.as_completed(hs)]\n"
            "FINAL((sorted(done), hs[0].done()))"
        )
    ]
    result = rlm(tree(root, [code("FINAL(len(context))")])).run("?")
    assert result.answer_value == [["3", "5"], True]


def test_a_spawned_run_may_be_waited_for_in_a_later_turn_and_cancelled(rlm):
    root = [
        code("h = rlm_spawn('a')\nslow = rlm_spawn('b')"),
        code(
            "slow.cancel()\ngone = slow.result()\n"
            "try:\n    rlm_spawn('c').result(timeout=0)\nexcept TimeoutError:\n    late = True\n"
            "FINAL((h.result(), gone.ok, late))"
        ),
    ]

    async def child(request):
        if "a" not in request.messages[-1]["content"].split('"')[1]:
            await asyncio.Event().wait()
        return code("FINAL('first')")

    result = rlm(tree(root, child)).run("?")
    assert result.answer_value == ["first", False, True]


def test_spawned_runs_end_with_their_parent(rlm, sandbox):
    begun, ended = asyncio.Event(), threading.Event()

    async def child(request):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    before = sandbox.statistics().open
    root = [code("h = rlm_spawn('a')\nbegun()\nFINAL(1)")]
    made = rlm(tree(root, child), tools={"begun": begun.wait})
    assert made.run("?").final_answer == "1"
    assert ended.is_set()
    assert sandbox.statistics().open == before


def spent_by_each(trajectory):
    """The calls of all runs of a tree, each by its own account: all, and those that failed."""
    spent = [run.ended.own for run in trajectory.runs()]
    return sum(each.calls for each in spent), sum(each.failed_calls for each in spent)


def test_spawned_runs_count_in_the_usage_of_their_parent(rlm):
    begun = asyncio.Event()

    async def child(request):
        begun.set()
        await asyncio.Event().wait()

    root = [code("hs = [rlm_spawn('a'), rlm_spawn('b')]\nbegun()\nFINAL(1)")]
    result = rlm(tree(root, child), tools={"begun": begun.wait}).run("?")
    assert result.trajectory.complete
    assert (result.usage.calls, result.usage.failed_calls) == spent_by_each(result.trajectory)
    assert result.usage.failed_calls >= 1


def test_a_run_out_of_time_ends_after_its_descendants(rlm):
    async def child(request):
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.3)  # a model that ends slowly after a cancellation

    result = rlm(tree([code("rlm_query('a')")], child)).run("?", timeout_s=1.0)
    assert (result.stop_reason, result.trajectory.complete) == ("timeout", True)
    assert (result.usage.calls, result.usage.failed_calls) == spent_by_each(result.trajectory)


def test_a_spawned_run_is_reported_with_the_cell_that_spawned_it(rlm):
    root = [code("h = rlm_spawn('a')"), code("let_go()\nFINAL(h.result())")]
    child = [code("go_on()\nFINAL(7)")]
    go_on = threading.Event()
    tools = {"go_on": go_on.wait, "let_go": go_on.set}
    result = rlm(tree(root, child), tools=tools).run("?")
    assert result.final_answer == "7"
    assert [call.cell for call in result.trajectory.root.calls] == [1]


async def test_a_spawned_run_is_no_call_of_the_next_question(rlm, tmp_path):
    begun, path = asyncio.Event(), tmp_path / "run.jsonl"

    async def child(request):
        begun.set()
        await asyncio.Event().wait()

    def root(request):
        first = code("h = rlm_spawn('a')\nbegun()\nFINAL(1)")
        return first if request.origin.run == "0" else code("FINAL(h.done())")

    made = rlm(tree(root, child), tools={"begun": begun.wait}, trajectory=path)
    async with made.conversation() as talk:
        await talk.ask("?")
        assert (await talk.ask("?")).answer_value is True
    roots = Trajectory.load(path).roots
    assert [[call.id for call in run.calls] for run in roots] == [["0.1"], []]


def test_a_call_is_cancelled_with_its_cell(rlm):
    begun, ended = asyncio.Event(), threading.Event()
    events = []

    async def query(request):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    leave = (
        "import threading\n"
        "threading.Thread(target=llm_query, args=('a',), daemon=True).start()\nbegun()"
    )
    model = tree([code(leave), code("FINAL(1)")], query=query)
    made = rlm(model, on_event=events.append, tools={"begun": begun.wait})
    assert made.run("?").final_answer == "1"
    assert ended.is_set()
    told = [event.error for event in events if isinstance(event, CallEnded)]
    assert told == ["the call was cancelled"]


async def test_an_exception_of_a_subscriber_ends_a_batch(rlm):
    async def query(request):
        if request.origin.number == 1:
            return "an answer"
        await asyncio.Event().wait()

    told = []

    def full(event):
        told.append(event)
        if any(isinstance(each, CallEnded) for each in told):
            raise OSError("the disk is full")

    made = rlm(tree([code("llm_batch(['a', 'b', 'c'])")], query=query), on_event=full)
    with pytest.raises(OSError, match="the disk is full"):
        await made.arun("?")
    assert asyncio.all_tasks() == {asyncio.current_task()}


# ── budgets as the code sees them ────────────────────────────────────────────────────────────────


def test_the_code_can_look_at_the_budget(rlm):
    asked = (
        "llm_query('a')\nb = budget()\n"
        "FINAL((b['limit']['calls'], b['left']['calls'], b['spent']['calls']))"
    )
    result = rlm(tree([code(asked)]), budget=Budget(calls=9)).run("?")
    assert result.answer_value == [9, 7, 2]


def test_the_beginning_and_end_of_calls_are_reported(rlm):
    events = []
    asked = code("llm_query('one')\nllm_batch(['two', 'three'])\nFINAL(1)")
    rlm(tree([asked]), on_event=events.append).run("?")
    begun = [each for each in events if isinstance(each, CallStarted)]
    assert [(each.call, each.prompt, each.cell) for each in begun] == [
        ("0.1", "one", 1), ("0.2", "two", 1), ("0.3", "three", 1),
    ]  # fmt: skip
    ended = {each.call for each in events if isinstance(each, CallEnded)}
    assert ended == {"0.1", "0.2", "0.3"}


def test_a_token_budget_is_shared_by_concurrent_calls(rlm):
    together = asyncio.Event()
    inside = 0

    async def query(request):
        nonlocal inside
        inside += 1
        if inside == 3:
            together.set()
        await together.wait()
        return "a"

    asked = "FINAL(len(llm_batch(['a', 'b', 'c'])))"
    model = tree([code(asked)], query=query)
    result = rlm(model, budget=Budget(output_tokens=100_000)).run("?", timeout_s=120)
    assert result.final_answer == "3"
    assert {request.max_output_tokens for request in model.requests} == {8192}


def test_a_token_budget_is_exact(rlm):
    model = tree([code("b = llm_batch(['a'] * 9)\nFINAL(len(b))")], query="w " * 50)
    result = rlm(
        model, budget=Budget(output_tokens=120), run_config=RunConfig(max_output_tokens=40)
    )
    assert result.run("?").usage.output_tokens <= 120


async def test_many_trees_at_once_under_one_gate(rlm):
    from repl_env.rlm import RequestGate

    gate = RequestGate(4)
    most = 0

    async def query(request):
        nonlocal most
        most = max(most, gate.in_flight)
        await asyncio.sleep(0)
        return "x"

    root = [code("FINAL(len(rlm_query_batched(['a', 'b'])))")]
    child = [code("FINAL(len(llm_batch(['c', 'd', 'e'])))")]
    made = rlm(tree(root, child, query), gate=gate, budget=Budget(calls=9))
    results = await asyncio.gather(*(made.arun("?") for _ in range(12)))
    assert [result.final_answer for result in results] == ["2"] * 12
    assert {result.usage.calls for result in results} == {9}
    assert most <= 4


@pytest.mark.parametrize(("budget", "children"), [(Budget(calls=3), 2), (Budget(calls=None), 100)])
def test_no_child_begins_once_the_budget_is_used_up(rlm, budget, children):
    spawn = "def one():\n    try: return rlm_spawn('a').result()\n    except BudgetExceeded: pass\n"
    root = [code(f"{spawn}FINAL(sum(one() is not None for _ in range(110)))")]
    result = rlm(tree(root, [code("FINAL(1)")]), budget=budget).run("?")
    assert (result.answer_value, result.usage.children) == (children, children)
    assert result.error_kind is None
