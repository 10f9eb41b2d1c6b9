"""Runs of one level: from a question to an answer, by the turns of a scripted model."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from repl_env.errors import ModelError
from repl_env.rlm import Budget, RunConfig, ScriptedModel
from repl_env.rlm.model_call import CellRan, RunEnded
from repl_env.rubrics import OutcomeRubric, REPLRubric
from tests.repl_env.rlm.replies import code, last_message
from tests.waiting import PATIENCE


def test_a_question_is_answered_by_code_on_its_context(rlm):
    model = ScriptedModel([code("n = len(context.split())\nn"), code("FINAL(n)")])
    result = rlm(model).run("How many words?", "one two three", expected_answer="3")
    assert (result.final_answer, result.answer_value, result.reward) == ("3", 3, 1.0)
    assert (result.stop_reason, result.error_kind, result.iterations) == ("answer", None, 2)
    assert (result.usage.calls, result.own.calls, result.depth) == (2, 2, 0)


def test_the_model_is_shown_the_question_the_size_and_what_its_code_did(rlm):
    model = ScriptedModel([code("print('so far', len(context))"), code("FINAL(1)")])
    rlm(model).run("What is asked?", "x" * 1234)
    first, second = model.requests
    assert [message["role"] for message in first.messages] == ["system", "user"]
    assert "1234" in first.messages[0]["content"]
    assert "What is asked?" in last_message(first)
    assert "so far 1234" in last_message(second)
    assert "print('so far', len(context))" in last_message(second)
    assert [message["role"] for message in second.messages][2:] == ["assistant", "user"]


async def test_a_question_is_answered_in_an_event_loop(rlm):
    result = await rlm(ScriptedModel([code("FINAL(context)")])).arun("What?", "this")
    assert result.final_answer == "this"


async def test_a_plain_run_works_where_a_loop_runs_already(rlm):
    assert rlm(ScriptedModel([code("FINAL(1)")])).run("What?").final_answer == "1"


@pytest.mark.parametrize(
    ("context", "expression", "answer"),
    [
        (b"\x00\xff", "len(context)", "2"),
        (["a", "b"], "context[1]", "b"),
        ({"k": [1]}, "context['k']", "[1]"),
        (None, "repr(context)", "''"),
    ],
)
def test_contexts_of_every_kind(rlm, context, expression, answer):
    model = ScriptedModel([code(f"FINAL({expression})")])
    assert rlm(model).run("?", context).final_answer == answer


def test_several_contexts_and_a_file(rlm, tmp_path):
    (tmp_path / "b.txt").write_text("beta")
    model = ScriptedModel([code("FINAL(first + second)")])
    contexts = {"first": "alpha ", "second": Path(tmp_path / "b.txt")}
    assert rlm(model).run("?", contexts=contexts).final_answer == "alpha beta"
    told = model.requests[0].messages[-1]["content"]
    assert "`first`: str, length 6" in told
    assert "`second`: str, length 4" in told


def test_a_model_may_be_a_function_plain_or_not_with_a_model_name_or_without(rlm):
    async def answer(messages, model):
        return code(f"FINAL({model!r})")

    assert rlm(lambda messages: code("FINAL('plain')")).run("?").final_answer == "plain"
    assert rlm(answer).run("?").final_answer == "None"


def test_an_answer_must_fit_its_schema(rlm):
    model = ScriptedModel([code("FINAL('many')"), code("FINAL(12)")])
    result = rlm(model).run("?", answer_schema={"type": "integer"})
    assert result.answer_value == 12
    assert "does not fit" in last_message(model.requests[1])


# ── blocks ───────────────────────────────────────────────────────────────────────────────────────


BLOCKS = ["a = 1", "1/0", "b = 2", "FINAL(str((a, b)))", "c = 3"]


@pytest.mark.parametrize(
    ("policy", "cells"), [("all", 4), ("until_done", 4), ("until_error", 2), ("first", 1)]
)
def test_a_policy_selects_the_blocks_that_run(rlm, policy, cells):
    events = []
    model = ScriptedModel([code(*BLOCKS), code("FINAL('late')")])
    rlm(model, blocks=policy, on_event=events.append).run("?")
    ran = [event for event in events if isinstance(event, CellRan) and event.turn == 1]
    assert [event.code for event in ran] == BLOCKS[:cells]


async def test_blocks_behind_an_answer_leave_their_variables_for_the_next_question(rlm):
    model = ScriptedModel([code("FINAL(1)", "kept = 5"), code("FINAL(kept)")])
    async with rlm(model).conversation() as talk:
        await talk.ask("first?")
        assert (await talk.ask("second?")).final_answer == "5"


def test_a_thousand_blocks_are_truncated_and_the_model_is_notified(rlm):
    model = ScriptedModel([code(*(f"x{n} = {n}" for n in range(1000))), code("FINAL(len(dir()))")])
    rlm(model).run("?")
    assert "Only the first 32 of the 1000 code blocks were run." in last_message(model.requests[1])


# ── models that do not do as they should ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("reply", ["", "I think the answer is in the text.", "```\n```"])
def test_a_reply_without_code_gets_a_message(rlm, reply):
    model = ScriptedModel([reply, code("FINAL(1)")])
    assert rlm(model).run("?").final_answer == "1"
    assert "Your reply had no code block" in last_message(model.requests[1])


def test_an_answer_in_prose_counts(rlm):
    model = ScriptedModel([code("total = 40 + 2"), "That is all.\nFINAL_VAR(total)"])
    assert rlm(model).run("?").answer_value == 42
    model = ScriptedModel(["FINAL(the red door)"])
    result = rlm(model).run("?", expected_answer="The red door")
    assert (result.final_answer, result.reward, result.iterations) == ("the red door", 1.0, 1)


@pytest.mark.parametrize(
    ("beside", "answer", "value"),
    [
        ("The work is done.\nFINAL_VAR(ans)", "v", "v"),
        ("The work is done.\nFINAL(ans)", "v", "v"),
        ("FINAL(ans * 2)", "vv", "vv"),
        ("FINAL(the red door)", "the red door", "the red door"),
        ("**FINAL_VAR(ans)**", "v", "v"),
    ],
)
def test_an_answer_beside_code_counts_in_the_last_reply_only(rlm, beside, answer, value):
    for reply in (f"{code('ans = chr(118)')}\n{beside}", f"{beside}\n{code('ans = chr(118)')}"):
        model = ScriptedModel(lambda request, reply=reply: reply)
        result = rlm(model, max_iterations=3).run("?")
        assert (result.final_answer, result.answer_value) == (answer, value)
        assert (result.stop_reason, result.iterations) == ("max_iterations", 4)
        told = [last_message(request) for request in model.requests]
        noted = ["The answer beside your code did not count" in text for text in told]
        assert noted == [False, True, True, True]


def test_an_answer_in_code_leaves_no_word_about_the_prose(rlm):
    model = ScriptedModel([f"FINAL(1)\n{code('x = 2')}", f"FINAL(1)\n{code('FINAL(x)')}"])
    assert rlm(model).run("?").final_answer == "2"
    model = ScriptedModel([f"I call FINAL(x) next.\n{code('x = 2')}", code("FINAL(x)")])
    assert rlm(model).run("?").final_answer == "2"
    assert "did not count" not in last_message(model.requests[1])


def test_printed_text_of_a_context_does_not_end_a_run(rlm):
    model = ScriptedModel([code("print(context)"), code("FINAL('mine')")])
    assert rlm(model).run("?", "FINAL(theirs)").final_answer == "mine"


def test_repeated_failing_code_gets_a_message_and_ends_with_the_turns(rlm):
    model = ScriptedModel(lambda request: code("1/0"))
    result = rlm(model, max_iterations=5).run("?")
    assert (result.final_answer, result.stop_reason, result.iterations) == (
        None, "max_iterations", 6,
    )  # fmt: skip
    told = [last_message(request) for request in model.requests]
    assert ["The same code has failed" in text for text in told] == [False] * 3 + [True] * 3


def test_ten_megabytes_of_text_are_run_but_not_kept_in_the_conversation(rlm):
    model = ScriptedModel(["x" * 10_000_000 + "\n" + code("FINAL('end')")])
    assert rlm(model).run("?").final_answer == "end"
    model = ScriptedModel(["y" * 10_000_000, code("FINAL('end')")])
    assert rlm(model).run("?").final_answer == "end"
    assert sum(len(message["content"]) for message in model.requests[1].messages) < 200_000


def test_text_that_is_no_unicode_is_cleaned(rlm):
    model = ScriptedModel([lambda_surrogates(), code("FINAL('fine')")])
    assert rlm(model).run("\ud800?").final_answer == "fine"
    for request in model.requests:
        for message in request.messages:
            message["content"].encode()


def lambda_surrogates():
    return "\udcff" + code("x = '\ud800'\nprint(x)")


def test_a_long_conversation_is_cut_and_the_session_keeps_its_variables(rlm):
    replies = [code(f"v{n} = {n}\nprint('o' * 3000)") for n in range(20)]
    model = ScriptedModel([*replies, code("FINAL(sum([v0, v7, v19]))")])
    result = rlm(model, run_config=RunConfig(max_prompt=20_000)).run("?")
    assert result.answer_value == 26
    sizes = [sum(len(m["content"]) for m in request.messages) for request in model.requests]
    assert max(sizes) <= 20_000


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


def test_after_the_last_iteration_the_model_has_one_more_turn(rlm):
    model = ScriptedModel([code("x = 1"), code("x = 2"), "the answer is blue"])
    result = rlm(model, max_iterations=2).run("?", expected_answer="the answer is blue")
    assert (result.final_answer, result.stop_reason) == ("the answer is blue", "max_iterations")
    assert (result.reward, result.iterations) == (1.0, 3)
    assert "no turns left" in last_message(model.requests[2])


def failing_subcall(request):
    if request.origin.purpose == "query":
        raise ModelError("server", "no")
    if request.origin.number == 1:
        return code("answer['content'] = llm_query('a') + 'b'")
    return code("wait()")


def test_a_run_with_an_infrastructure_error_has_no_reward_however_it_ended(rlm):
    never = threading.Event()
    made = rlm(ScriptedModel(failing_subcall), tools={"wait": lambda: never.wait(60)})
    late = made.run("?", expected_answer="Error: server: nob", timeout_s=2)
    spent = rlm(ScriptedModel(failing_subcall), budget=Budget(calls=2)).run(
        "?", expected_answer="Error: server: nob"
    )
    never.set()
    assert [each.final_answer for each in (late, spent)] == ["Error: server: nob"] * 2
    assert [(each.stop_reason, each.error_kind, each.reward) for each in (late, spent)] == [
        ("timeout", "llm", None), ("budget", "llm", None),
    ]  # fmt: skip
    assert [each["masked"] for each in spent.trajectory.samples()] == [True]


def test_a_run_without_an_answer_has_the_reward_for_that(rlm):
    never = threading.Event()
    wait = ScriptedModel([code("wait()")])
    works = ScriptedModel(lambda request: code("x = 1"))
    given = rlm(works, max_iterations=2, rubric=REPLRubric(failure_reward=-0.75)).run("?")
    turns = rlm(works, max_iterations=2).run("?", expected_answer="1")
    spent = rlm(works, budget=Budget(calls=1)).run("?", expected_answer="1")
    late = rlm(wait, tools={"wait": lambda: never.wait(60)}).run(
        "?", expected_answer="1", timeout_s=1
    )
    never.set()
    results = (given, turns, spent, late)
    assert [(each.final_answer, each.reward) for each in results] == [
        (None, -0.75), (None, -0.1), (None, -0.1), (None, -0.1),
    ]  # fmt: skip
    stops = ["max_iterations", "max_iterations", "budget", "timeout"]
    assert [each.stop_reason for each in results] == stops
    assert [each["reward"] for each in turns.trajectory.samples()] == [-0.1] * 3
    assert rlm(works, max_iterations=1).run("?").reward is None


def test_a_turn_without_a_reply_is_no_iteration(rlm):
    def reply(request):
        if request.origin.number == 3:
            raise ModelError("server", "no")
        return code("x = 1")

    spent = rlm(ScriptedModel(reply), budget=Budget(calls=2)).run("?")
    with pytest.raises(ModelError) as caught:
        rlm(ScriptedModel(reply)).run("?")
    for result in (spent, caught.value.result):  # type: ignore[attr-defined]
        assert (result.iterations, len(result.trajectory.root.turns)) == (2, 2)


async def test_a_call_lost_with_a_killed_cell_masks_the_run_and_the_kill_does_not(rlm):
    def in_one_cell(asked):
        return ScriptedModel([code(f"answer['content'] = '1'\n{asked}\nwait()")])

    def query(request):
        raise ModelError("server", "no")

    never = threading.Event()
    tools = {"wait": lambda: never.wait(60)}
    lost = rlm(in_one_cell("llm_query('a')"), sub_model=ScriptedModel(query), tools=tools)
    cut = rlm(in_one_cell("pass"), tools=tools)
    runs = (made.arun("?", expected_answer="1", timeout_s=2) for made in (lost, cut))
    results = await asyncio.gather(*runs)
    never.set()
    assert [(each.error_kind, each.reward) for each in results] == [("llm", None), ("timeout", 1.0)]


def test_a_timeout_in_a_rubric_is_an_error_of_the_rubric(rlm):
    class Judge(OutcomeRubric):
        async def forward(self, action, observation):
            raise TimeoutError("the judge did not answer")

    made = rlm(ScriptedModel([code("FINAL(1)")]), rubric=REPLRubric(outcome=Judge()))
    with pytest.raises(TimeoutError, match="the judge did not answer"):
        made.run("?", expected_answer="1", timeout_s=120)


def test_the_answer_dict_counts_when_the_last_reply_has_no_answer(rlm):
    model = ScriptedModel([code("answer['content'] = 'draft'"), ""])
    result = rlm(model, max_iterations=1).run("?")
    assert (result.final_answer, result.stop_reason) == ("draft", "max_iterations")


def test_the_budget_ends_a_run_with_its_draft(rlm):
    model = ScriptedModel(lambda request: code("answer['content'] = len(context)"))
    result = rlm(model, budget=Budget(calls=3)).run("?", "abc")
    assert (result.final_answer, result.answer_value) == ("3", 3)
    assert (result.stop_reason, result.error_kind, result.usage.calls) == ("budget", "budget", 3)
    assert result.reason == "budget: 3 of 3 calls are used"


def test_the_model_is_warned_before_the_budget_ends(rlm):
    model = ScriptedModel(lambda request: code("1"))
    rlm(model, budget=Budget(calls=10)).run("?")
    warned = [number for number, each in enumerate(model.requests) if "calls" in last_message(each)]
    assert any("Budget" in last_message(model.requests[number]) for number in warned)


def test_a_time_limit_ends_a_run_during_a_model_call(rlm):
    async def never(messages):
        await asyncio.Event().wait()

    result = rlm(never).run("?", timeout_s=0.2)
    assert (result.final_answer, result.stop_reason, result.error_kind) == (
        None, "timeout", "timeout",
    )  # fmt: skip


def test_a_time_limit_ends_a_run_during_a_cell_and_the_draft_counts(rlm):
    for seconds in (1.0, 10.0, 60.0):  # until there was time enough to get there
        model = ScriptedModel([code("answer['content'] = 'early'"), code("while True: pass")])
        result = rlm(model).run("?", timeout_s=seconds)
        if result.final_answer is not None:
            break
    assert (result.final_answer, result.stop_reason) == ("early", "timeout")


def test_a_time_budget_limits_cells_too(rlm):
    for seconds in (1.0, 10.0, 60.0):
        model = ScriptedModel([code("answer['content'] = 'early'"), code("while True: pass")])
        result = rlm(model, budget=Budget(seconds=seconds)).run("?")
        if result.final_answer is not None:
            break
    assert (result.final_answer, result.stop_reason) == ("early", "budget")


def test_a_model_that_fails_is_an_error_and_never_a_score(rlm):
    def broken(messages):
        raise ConnectionError("no route")

    with pytest.raises(ModelError, match="ConnectionError: no route") as caught:
        rlm(broken).run("?", expected_answer="x")
    assert (caught.value.result.final_answer, caught.value.result.reward) == (None, None)  # type: ignore[attr-defined]
    assert (caught.value.result.stop_reason, caught.value.result.error_kind) == ("error", "llm")  # type: ignore[attr-defined]


def test_a_model_that_raises_system_exit_ends_its_run_alone(rlm):
    """The loop of all blocking runs ended with it, and later runs waited forever."""

    def leave(request):
        sys.exit(3)

    for _ in range(2):
        with pytest.raises(SystemExit):
            rlm(ScriptedModel(leave)).run("?")
        with pytest.raises(ModelError, match="SystemExit: 3"):
            rlm(leave).run("?")
    assert rlm(ScriptedModel([code("FINAL(1)")])).run("?").final_answer == "1"


STUCK = """
import threading
from repl_env.rlm import RLM

def reply(messages):
    print("asked", flush=True)
    threading.Event().wait()

RLM(reply).run("?")
"""


def test_one_ctrl_c_ends_a_program_whose_model_blocks():
    with subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout.readline() == "asked\n"
        program.send_signal(signal.SIGINT)
        try:
            _, told = program.communicate(timeout=PATIENCE)
        finally:
            program.kill()

    assert program.returncode == -signal.SIGINT
    assert told.endswith("KeyboardInterrupt\n")


async def test_a_script_without_replies_left_is_an_error(rlm):
    replies = iter([code("x = 1")])
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ModelError, match="StopIteration"):
            await rlm(lambda messages: next(replies)).arun("What?")


async def test_a_cancelled_run_ends_its_model_call_and_its_session(rlm, sandbox):
    asked, ended = asyncio.Event(), asyncio.Event()

    async def wait(messages):
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    before = sandbox.statistics().open
    events = []
    running = asyncio.create_task(rlm(wait, on_event=events.append).arun("?"))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()
    assert sandbox.statistics().open == before
    assert [event.stop_reason for event in events if isinstance(event, RunEnded)] == ["cancelled"]


SPAWNING = """
FINAL('done')
try:
    rlm_spawn('x').result(0.5)
except TimeoutError:
    pass
"""


class Stubborn:
    """A model that ignores its cancellation until it is released."""

    def __init__(self, *first):
        self.first, self.let_go, self.asked = list(first), asyncio.Event(), 0

    async def __call__(self, messages):
        self.asked += 1
        if self.asked <= len(self.first):
            return self.first[self.asked - 1]
        while not self.let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.let_go.wait()
        return "no code"


@pytest.mark.parametrize(
    ("first", "timeout_s", "answer"),
    [
        ((), 0.2, None),
        ((code("answer['content'] = 'so far'\nllm_query('x')"),), 1.0, "so far"),
        ((code(SPAWNING),), None, "done"),
    ],
    ids=["its turn", "a call", "a spawned call"],
)
async def test_a_model_that_ignores_its_cancellation_does_not_block_its_run(
    rlm, first, timeout_s, answer
):
    model = Stubborn(*first)
    run = asyncio.create_task(rlm(model).arun("What?", timeout_s=timeout_s))
    done, _ = await asyncio.wait([run], timeout=PATIENCE)
    model.let_go.set()
    assert done, "the run waits for its model"
    assert run.result().final_answer == answer
    assert model.asked > len(first)


def test_code_that_breaks_the_session_costs_one_step(rlm):
    model = ScriptedModel([code("x = 5"), code("import os\nos._exit(1)"), code("FINAL(x)")])
    assert rlm(model).run("?").final_answer == "5"
    assert "ended the interpreter" in last_message(model.requests[2])
