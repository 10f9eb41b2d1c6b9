"""Events, tools, further questions in one session, and arguments of runs."""

import asyncio
import threading

import pytest

from repl_env.errors import ModelError, REPLError
from repl_env.llm.spec import LLM
from repl_env.rlm import RLM, Completion, ModelUsage, ScriptedModel, Trajectory
from repl_env.rlm.model_call import CallEnded, ModelReplied, RunStarted
from tests.repl_env.rlm.replies import code


def test_all_events_are_reported_in_order(rlm):
    events = []
    model = ScriptedModel([code("x = 1", "x"), Completion(code("FINAL(x)"), ModelUsage(7, 3))])
    rlm(model, on_event=events.append).run("What?", "about")
    kinds = [type(event).__name__ for event in events]
    assert kinds == [
        "RunStarted", "ModelReplied", "CellStarted", "CellRan", "CellStarted", "CellRan",
        "ModelReplied", "CellStarted", "CellRan", "RunEnded",
    ]  # fmt: skip
    assert {event.run for event in events} == {"0"}
    started = next(event for event in events if isinstance(event, RunStarted))
    assert (started.question, started.depth, started.contexts[0].length) == ("What?", 0, 5)
    replies = [event for event in events if isinstance(event, ModelReplied)]
    assert [(each.turn, each.kept, len(each.added)) for each in replies] == [(1, 0, 2), (2, 3, 1)]
    assert events[-1].own.input_tokens >= 7


def test_tools_are_called_on_the_host_and_shown_with_their_docstrings(rlm):
    where = []

    def lookup(key: str) -> int:
        """The number of `key` in the register."""
        where.append(threading.current_thread())
        return {"a": 7}[key]

    async def later(key: str) -> str:
        """Says it again."""
        return key * 2

    model = ScriptedModel([code("FINAL((lookup('a'), later('x')))")])
    result = rlm(model, tools={"lookup": lookup, "later": later}).run("?")
    assert result.answer_value == [7, "xx"]
    assert where
    system = model.requests[0].messages[0]["content"]
    assert "`lookup(key: str) -> int`: The number of `key` in the register." in system
    assert "Says it again." in system


async def test_a_conversation_goes_on_in_one_session(rlm):
    model = ScriptedModel(
        [code("words = context.split()\nFINAL(len(words))"), code("FINAL((words[0], history))")]
    )
    async with rlm(model).conversation("alpha beta") as talk:
        first = await talk.ask("How many?", expected_answer="2")
        second = await talk.ask("Which is first?")
    assert (first.final_answer, first.reward) == ("2", 1.0)
    assert second.answer_value == ["alpha", [{"question": "How many?", "answer": "2"}]]
    assert [each.usage.calls for each in (first, second)] == [1, 1]
    assert [each.own.calls for each in (first, second)] == [1, 1]
    said = [(m["role"], m["content"]) for m in model.requests[1].messages]
    assert ("user", "How many?") in said
    assert ("assistant", "2") in said


async def test_the_calls_of_a_further_question_are_its_own(rlm):
    events = []
    ask = "FINAL(llm_query('a'))"
    model = ScriptedModel(lambda request: code(ask) if request.origin.purpose == "turn" else "x")
    async with rlm(model, on_event=events.append).conversation() as talk:
        await talk.ask("one?")
        result = await talk.ask("two?")
    calls = [(e.run, e.call, e.cell) for e in events if isinstance(e, CallEnded)]
    assert calls == [("0", "0.1", 1), ("1", "1.1", 1)]
    assert [call.id for call in result.trajectory.root.calls] == ["1.1"]


def test_a_trajectory_has_no_key_even_if_a_text_repeats_it(rlm, tmp_path, monkeypatch):
    said = code("FINAL('the key is sk-secret-12345')")
    monkeypatch.setattr("repl_env.llm.factory.model_of", lambda llm: ScriptedModel([said]))
    llm = LLM("m", "http://127.0.0.1:9", "sk-secret-12345")
    result = rlm(llm, trajectory=tmp_path / "run.jsonl").run("?")
    assert "sk-secret" in result.final_answer
    assert "sk-secret" not in (tmp_path / "run.jsonl").read_text()


async def test_the_same_answer_to_a_further_question_counts_again(rlm):
    say = code("answer['content'] = 'yes'\nanswer['ready'] = True")
    async with rlm(ScriptedModel([say, say])).conversation() as talk:
        assert (await talk.ask("one?")).final_answer == "yes"
        assert (await talk.ask("two?")).stop_reason == "answer"


def test_a_conversation_of_plain_calls(rlm):
    with rlm(ScriptedModel([code("a = 1\nFINAL(a)"), code("FINAL(a + 1)")])).conversation() as talk:
        assert talk.ask_plain("first?").final_answer == "1"
        assert talk.ask_plain("second?").final_answer == "2"


def test_the_endpoint_is_a_choice_of_each_run(rlm):
    with pytest.raises(ValueError, match="llm: the LLM says neither"):
        rlm(ScriptedModel([])).run("?", llm=LLM())


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ({"model": 5}, TypeError, "model"),
        ({"model": str, "blocks": "some"}, ValueError, "blocks"),
        ({"model": str, "max_depth": 0}, ValueError, "max_depth"),
        ({"model": str, "max_iterations": 0}, ValueError, "max_iterations"),
        ({"model": str, "budget": 5}, TypeError, "budget"),
        ({"model": str, "colour": "red"}, TypeError, "colour"),
        ({"model": str, "sub_model": "gpt"}, TypeError, "sub_model"),
        ({"model": "gpt-5"}, TypeError, r"not str; OpenAIModel\(name\) is the model of that name$"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, name):
    with pytest.raises(error, match=name):
        RLM(**arguments)


def test_an_unknown_argument_is_an_error_that_names_rlm():
    with pytest.raises(TypeError, match=r"^RLM has no argument 'foo'$"):
        RLM(str, foo=1)


def test_the_repr_of_a_result_is_short_and_has_its_answer(rlm):
    model = ScriptedModel([code("print(context)"), code("FINAL('ab' * 1000)")])
    result = rlm(model).run("What is asked?", "a secret")
    assert "final_answer='ababab" in repr(result) and "(2,000 characters)" in repr(result)
    assert "iterations=2" in repr(result)
    assert "secret" not in repr(result) and len(repr(result)) < 1000


def test_the_repr_of_an_rlm_has_the_model_by_name_and_no_key():
    llm = LLM(model="m", base_url="http://127.0.0.1:1/v1", api_key="a secret")
    assert repr(RLM(llm)) == "<RLM model 'm', max_depth 2, max_iterations 30>"


def test_a_question_is_text(rlm):
    with pytest.raises(TypeError, match="question must be a str"):
        rlm(ScriptedModel([])).run(5)


async def test_a_conversation_goes_on_after_a_question_that_failed(rlm, tmp_path):
    def reply(request):
        if request.origin.run == "0":
            raise ModelError("server", "no")
        return code("FINAL(len(context))")

    path = tmp_path / "run.jsonl"
    async with rlm(ScriptedModel(reply), trajectory=path).conversation("abc") as talk:
        with pytest.raises(ModelError) as caught:
            await talk.ask("How many?")
        assert (await talk.ask("How many?")).final_answer == "3"
    assert [run.id for run in caught.value.result.trajectory.roots] == ["0"]  # type: ignore[attr-defined]
    told = [(run.id, run.error_kind) for run in Trajectory.load(path).roots]
    assert told == [("0", "llm"), ("1", None)]


async def test_a_conversation_refuses_concurrent_questions(rlm, sandbox):
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def reply(request):
        asked.set()
        await go_on.wait()
        return code("FINAL(1)")

    before = sandbox.statistics().open
    async with rlm(ScriptedModel(reply)).conversation() as talk:
        first = asyncio.create_task(talk.ask("?"))
        await asked.wait()
        with pytest.raises(REPLError, match="at another question"):
            await asyncio.wait_for(talk.ask("?"), 60)
        go_on.set()
        assert (await first).final_answer == "1"
        assert (await talk.ask("?")).final_answer == "1"
    assert sandbox.statistics().open == before


@pytest.mark.parametrize("depth", [1, 2])
def test_a_conversation_that_is_not_closed_is_released_and_warned_of(rlm, depth):
    """The session referred to the conversation for sub-calls, and so kept it alive."""
    talk = rlm(ScriptedModel([code("FINAL(len(context))")]), max_depth=depth).conversation("abc")
    assert talk.ask_plain("How long?").final_answer == "3"
    with pytest.warns(ResourceWarning, match="unclosed <AsyncSession"):
        del talk
