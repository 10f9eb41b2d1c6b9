"""A recorded run answers again, by who asks and what is asked; what was not recorded is named."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from repl_env.errors import ModelError
from repl_env.llm.base import ModelUsage, Origin
from repl_env.rlm import RLM, ModelRequest, ReplayModel, ScriptedModel, Trajectory, TrajectoryWriter
from repl_env.rlm.budget import Spent
from repl_env.rlm.model_call import CallEnded, CellRan, RunEnded
from repl_env.rlm.replay import differences, given_contexts
from tests.repl_env.environment_internals import set_replay_timeout
from tests.repl_env.rlm.trajectory.account import (
    DEEP,
    FIRST,
    QUESTION,
    REPORT,
    SECOND,
    SYSTEM,
    account,
    call_ended,
    cell_ran,
    ended,
    observed,
    replied,
    started,
)

REPLY = {"role": "assistant", "content": FIRST}


def ask(model, messages, run="0", purpose="turn", number=1):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    request = ModelRequest(messages=messages, origin=Origin(run, purpose, number))
    return asyncio.run(model.complete(request))


@pytest.fixture
def model():
    return ReplayModel(Trajectory.of(account()))


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


def test_turns_and_calls_get_their_recorded_answers(model):
    first = ask(model, [SYSTEM, QUESTION])
    second = ask(model, [SYSTEM, QUESTION, REPLY, REPORT], number=2)

    assert first == account()[1].completion
    assert second.text == SECOND
    assert ask(model, [SYSTEM, DEEP], run="0.3").text == "```repl\nFINAL(3)\n```"
    assert ask(model, "b?", purpose="query", number=2).text == "B"
    assert ask(model, "a?", purpose="query").usage == ModelUsage(1, 2)
    assert model.name == "m"


def test_a_scripted_model_can_be_made_of_a_trajectory():
    assert ask(ScriptedModel.of(Trajectory.of(account())), [SYSTEM, QUESTION]).text == FIRST


def test_the_last_turn_is_answered_too():
    model = ReplayModel(Trajectory.of([started(), replied(last=True, text="three")]))

    assert ask(model, [SYSTEM, QUESTION], purpose="last").text == "three"


def test_an_answer_may_be_asked_for_many_times(model):
    assert {ask(model, [SYSTEM, QUESTION]).text for _ in range(5)} == {FIRST}


def test_a_failure_is_raised_again_with_its_kind():
    failed = call_ended("0.1", text="Error: timeout: too late", error="timeout: too late")
    model = ReplayModel(Trajectory.of([failed]))
    with pytest.raises(ModelError) as caught:
        ask(model, "a?", purpose="query")

    assert (caught.value.kind, str(caught.value)) == ("timeout", "timeout: too late")


def test_a_truncated_answer_is_truncated_again():
    model = ReplayModel(Trajectory.of([call_ended("0.1", truncated=True)]))

    assert ask(model, "a?", purpose="query").truncated


def test_a_question_in_two_rounds_has_its_last_answer_in_both(model):
    again = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "x"}, REPORT]

    assert ask(model, "a?", purpose="query").text == "A"
    assert ask(model, again, purpose="repair").text == "A"


# ── other numbers ────────────────────────────────────────────────────────────────────────────────


def test_concurrent_calls_are_matched_by_their_prompts(model):
    assert ask(model, "b?", purpose="query", number=1).text == "B"
    assert ask(model, "a?", purpose="query", number=2).text == "A"
    assert ask(model, "a?", purpose="query", number=77).text == "A"


def test_a_child_with_another_call_number_is_matched_by_its_messages(model):
    assert ask(model, [SYSTEM, DEEP], run="0.2").text == "```repl\nFINAL(3)\n```"


def test_answers_of_equal_questions_are_each_given_once_before_any_repeats():
    calls = [call_ended(f"0.{number}", text=f"A{number}") for number in (1, 2, 3)]
    model = ReplayModel(Trajectory.of([started(), *calls]))

    assert [ask(model, "a?", purpose="query", number=n).text for n in (2, 1, 3)] == [
        "A2", "A1", "A3",
    ]  # fmt: skip
    others = [ask(model, "a?", purpose="query", number=n).text for n in (11, 12, 13)]
    assert sorted(others) == ["A1", "A2", "A3"]


def test_a_call_of_the_same_run_goes_before_one_of_another():
    calls = [call_ended("0.3.1", text="child's"), call_ended("0.2", text="root's")]
    model = ReplayModel(Trajectory.of([started(), started("0.3"), *calls]))

    assert ask(model, "a?", purpose="query", number=9).text == "root's"
    assert ask(model, "a?", run="0.3", purpose="query", number=9).text == "child's"


def test_a_context_and_a_schema_behind_the_prompt_are_not_recorded_and_do_not_matter():
    calls = [
        call_ended("0.1", prompt="Item 1", text="one"),
        call_ended("0.2", prompt="Item 10", text="ten"),
        call_ended("0.3", prompt="Item 1\n\nwith more", text="more"),
    ]
    model = ReplayModel(Trajectory.of([started(), *calls]))

    assert ask(model, "Item 1\n\nthe context", purpose="query").text == "one"
    assert ask(model, "Item 10\n\nthe context", purpose="query", number=1).text == "ten"
    assert ask(model, "Item 1\n\nwith more\n\n{}", purpose="query", number=9).text == "more"


def test_addresses_of_objects_are_no_difference():
    shown = {"role": "user", "content": "<object object at 0x7f1234567890>"}
    now = {"role": "user", "content": "<object object at 0x7fabcdefabcd>"}
    model = ReplayModel(Trajectory.of([started(), replied(added=[shown])]))

    assert ask(model, [now]).text == FIRST


# ── what was not recorded ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (([SYSTEM], "0", "turn", 3), "script: turn 3 of run '0' was not recorded"),
        (("c?", "0.3", "query", 1), "script: call 1 of run '0.3' was not recorded"),
    ],
)
def test_a_request_that_was_not_recorded_is_named(model, request_, text):
    with pytest.raises(ModelError) as caught:
        ask(model, *request_)

    assert caught.value.kind == "script"
    assert str(caught.value) == text


def test_a_request_that_differs_is_an_error_with_the_place(model):
    other = {"role": "user", "content": "It printed: 4"}
    with pytest.raises(ModelError, match=r"turn 2 of run '0' .* message 4 was '.*3' and not '.*4'"):
        ask(model, [SYSTEM, QUESTION, REPLY, other], number=2)
    with pytest.raises(ModelError, match="2 messages and not 1"):
        ask(model, [SYSTEM])
    with pytest.raises(ModelError, match=r"call 1 of run '0' .*'a\?' and not 'zzz'"):
        ask(model, "zzz", purpose="query")


def test_a_loose_replay_answers_by_run_and_turn():
    model = ReplayModel(Trajectory.of(account()), allow_changed_prompts=True)

    assert ask(model, [SYSTEM], number=2).text == SECOND
    assert ask(model, "zzz", purpose="query").text == "A"
    with pytest.raises(ModelError, match="not recorded"):
        ask(model, [SYSTEM], number=3)


# ── running it again ─────────────────────────────────────────────────────────────────────────────


def changed(change):
    return Trajectory.of([change(event) for event in account()])


def test_the_same_tree_has_no_differences():
    def otherwise(event):
        event = replace(event, time=event.time + 100)
        if isinstance(event, RunEnded):
            event = replace(event, seconds=77.0, total=Spent(), own=Spent(), reward=None)
        return event

    assert differences(Trajectory.of(account()), changed(otherwise)) == ()


def test_different_outputs_and_ends_are_reported():
    def otherwise(event):
        if isinstance(event, CellRan) and event.run == "0.3":
            return replace(event, observation=observed("other", done=True))
        return replace(event, final_answer="4") if isinstance(event, RunEnded) else event

    found = differences(Trajectory.of(account()), changed(otherwise))

    assert [(each.run, each.cell, each.field, each.replayed) for each in found] == [
        ("0", 0, "final_answer", "4"),
        ("0.3", 1, "result.stdout", "other"),
        ("0.3", 0, "final_answer", "4"),
    ]


def test_missing_and_new_cells_and_runs_are_reported():
    whole = Trajectory.of(account())
    short = Trajectory.of([started(), replied(), cell_ran(), ended()])

    assert [(each.run, each.cell, each.field) for each in differences(whole, short)] == [
        ("0", 2, "cell"), ("0.3", 0, "run"),
    ]  # fmt: skip
    cell, run = differences(short, whole)
    assert (cell.cell, cell.field, cell.recorded, cell.replayed) == (2, "cell", None, "code")
    assert (run.run, run.field, run.recorded, run.replayed) == ("0.3", "run", None, "deep?")


def test_the_missing_end_of_a_truncated_trajectory_is_no_difference():
    cut = Trajectory.of(account()[:12])

    assert differences(cut, Trajectory.of(account())) == ()


def test_children_are_matched_by_their_questions():
    def renamed(event):
        if event.run == "0.3":
            event = replace(event, run="0.7")
        return replace(event, call="0.7") if getattr(event, "call", "") == "0.3" else event

    assert differences(Trajectory.of(account()), changed(renamed)) == ()


# ── contexts ─────────────────────────────────────────────────────────────────────────────────────


def test_contexts_come_from_the_file_or_must_be_given(tmp_path):
    with TrajectoryWriter(tmp_path / "run", contexts={"context": "twelve chars"}) as writer:
        for event in account():
            writer(event)
    known, unknown = Trajectory.load(tmp_path / "run"), Trajectory.of(account())

    assert given_contexts(known, {}) == {"context": "twelve chars"}
    assert given_contexts(unknown, {"context": "twelve chars"}) == {"context": "twelve chars"}
    with pytest.raises(ValueError, match="'context' is needed, a str of length 12"):
        given_contexts(unknown, {})
    with pytest.raises(ValueError, match="was a str of length 12, and is a str of length 5"):
        given_contexts(unknown, {"context": "other"})
    with pytest.raises(ValueError, match="was a str of length 12, and is a list of length 2"):
        given_contexts(unknown, {"context": []})
    with pytest.raises(ValueError, match="no 'book'"):
        given_contexts(unknown, {"book": "x"})
    with pytest.raises(ValueError, match="another content"):
        given_contexts(known, {"context": "twelve_chars"})


SCRIPT = [
    "```repl\nparts = llm_query_batched(['a?', 'b?'])\nprint(parts, len(context), object())\n```",
    "```repl\nprint(rlm_query_batched(['deep one', 'deep two'], context=['x', 'yy']))\n```",
    "```repl\nfrom concurrent.futures import ThreadPoolExecutor\n"
    "with ThreadPoolExecutor(4) as pool:\n"
    "    print(list(pool.map(lambda n: llm_query(f'thread {n}', context=context), range(8))))\n```",
    "```repl\nvalue = llm_query('json?', schema={'type': 'object'}).value\n"
    "print(llm_query('fails?').error)\nFINAL(f'{parts} {value}')\n```",
]


def answer(request):
    """A model that answers late and in any order, fails once, and is asked twice for JSON."""
    origin, text = request.origin, str(request.messages[0]["content"])
    if text == "fails?":
        raise ModelError("server", "it failed")
    if origin.purpose == "query":
        return text.upper()
    if origin.purpose == "repair":
        return '{"a": 1}'
    if origin.run == "0":
        return SCRIPT[origin.number - 1]
    return "```repl\nFINAL(llm_query('inner', context=context) * len(context))\n```"


@pytest.fixture
def recorded(tmp_path):
    """A run in real sessions, and its file."""
    path = tmp_path / "run.jsonl"
    with TrajectoryWriter(path, contexts={"context": "some text"}) as writer:
        rlm = RLM(ScriptedModel(answer), trajectory=writer)
        result = rlm.run("Which?", "some text")
    assert result.final_answer == "['A?', 'B?'] {'a': 1}"
    return Trajectory.load(path)


def test_a_real_run_replays_with_the_same_result(recorded):
    from repl_env.rlm.replay import rerun

    assert recorded.complete
    assert len(list(recorded.runs())) == 3
    again = rerun(recorded)
    assert differences(recorded, again) == ()
    assert again.root.final_answer == recorded.root.final_answer


def test_the_prompts_of_a_replayed_run_are_identical(recorded):
    """The prompts of its turns are identical too, so nothing is answered by number alone."""
    from repl_env.rlm.runner import RLM

    result = RLM(ReplayModel(recorded)).run("Which?", "some text")

    assert result.final_answer == recorded.root.final_answer
    with pytest.raises(ModelError, match="script"):
        RLM(ReplayModel(recorded)).run("Which?", "another text")


def test_a_conversation_replays_with_the_same_result():
    runner = pytest.importorskip("repl_env.rlm.runner", reason="needs repl_env.rlm.runner")
    from repl_env.rlm.replay import rerun

    events = []
    script = ["```repl\nn = 1\nFINAL(n)\n```", "```repl\nFINAL(n + 1)\n```"]
    rlm = runner.RLM(ScriptedModel(script), on_event=events.append)
    with rlm.conversation() as talk:
        assert [talk.ask_plain(each).final_answer for each in ("one?", "two?")] == ["1", "2"]
    recorded = Trajectory.of(events)

    assert differences(recorded, rerun(recorded)) == ()


def test_a_conversation_is_run_again_past_a_question_that_failed():
    runner = pytest.importorskip("repl_env.rlm.runner", reason="needs repl_env.rlm.runner")
    from repl_env.rlm.replay import rerun

    def reply(request):
        if request.origin.run == "0":
            raise ModelError("server", "no")
        return "```repl\nFINAL(2)\n```"

    events = []
    with runner.RLM(ScriptedModel(reply), on_event=events.append).conversation() as talk:
        with pytest.raises(ModelError):
            talk.ask_plain("one?")
        assert talk.ask_plain("two?").final_answer == "2"
    recorded = Trajectory.of(events)
    again = rerun(recorded)

    assert [run.final_answer for run in again.roots] == [None, "2"]
    assert differences(recorded, again) == ()


def test_an_expected_answer_is_not_in_the_file(tmp_path):
    runner = pytest.importorskip("repl_env.rlm.runner", reason="needs repl_env.rlm.runner")
    script = ["```repl\nFINAL('guess')\n```"]
    rlm = runner.RLM(ScriptedModel(script), trajectory=tmp_path / "run.jsonl")
    result = rlm.run("Which?", expected_answer="the right one")

    assert Trajectory.load(tmp_path / "run.jsonl").root.reward == result.reward == 0.0
    assert "the right one" not in (tmp_path / "run.jsonl").read_text()


def code(block: str) -> str:
    return f"```repl\n{block}\n```"


ASKED = "while budget()['left']['calls'] > 198: pass"
GIVEN_UP = {
    "a run that code gives up": f"""
h = rlm_spawn('slow')
{ASKED}
print(h.cancel(), h.result())
FINAL(1)
""",
    "a run that is at work when the answer is there": f"""
h = rlm_spawn('slow')
{ASKED}
FINAL(h.done())
""",
    "a question of a cell that ends before": f"""
import threading
threading.Thread(target=llm_query, args=('slow',), daemon=True).start()
{ASKED}
FINAL(1)
""",
    "timeout": "print('before')\nllm_query('slow')\nFINAL(1)",
    "cancelled": "print('before')\nllm_query('slow')\nFINAL(1)",
}


@pytest.mark.parametrize("kind", GIVEN_UP)
def test_a_recorded_cancellation_is_replayed(kind, tmp_path):
    """The answer is unknown, because the caller did not wait for it."""
    from repl_env.rlm.replay import rerun

    path, limit = tmp_path / "run.jsonl", 2.0 if kind == "timeout" else None

    async def play():
        asked = asyncio.Event()

        async def model(messages):
            if "slow" not in str(messages[1:] or messages):
                return f"```repl\n{GIVEN_UP[kind]}\n```"
            asked.set()
            return await asyncio.Event().wait()

        run = asyncio.create_task(RLM(model, trajectory=path).arun("What?", timeout_s=limit))
        await asked.wait()
        if kind == "cancelled":
            run.cancel()
        await asyncio.wait([run])

    asyncio.run(play())
    recorded = Trajectory.load(path)
    assert [each.ended.error for each in recorded.root.calls] == ["the call was cancelled"]
    assert differences(recorded, rerun(recorded)) == ()


async def test_a_recorded_cancellation_that_does_not_recur_is_an_error(monkeypatch):
    set_replay_timeout(monkeypatch, 0.0)
    events = [
        replace(each, error="the call was cancelled", seconds=0.0)
        if isinstance(each, CallEnded)
        else each
        for each in account()
    ]
    model = ReplayModel(Trajectory.of(events))
    origin = Origin("0", "query", 1)
    request = ModelRequest(messages=[{"role": "user", "content": "a?"}], origin=origin)
    with pytest.raises(ModelError, match=r"given up .* then, and not now"):
        await model.complete(request)
