"""Models whose text holds their thoughts: only the reply counts, and all of the text is kept."""

import pytest

from repl_env import LocalREPLEnv
from repl_env.recursive_backends import BackendLimits, DirectLMBackend
from repl_env.rlm import Completion, ReplayModel, ScriptedModel, Trajectory
from repl_env.rlm.config import Transcript
from repl_env.rlm.model_call import CallEnded, CellRan
from tests.repl_env.rlm.replies import code


def thinking(thought, reply):
    return f"<think>\n{thought}\n</think>\n\n{reply}"


WRONG = code("FINAL('a thought')")


@pytest.mark.parametrize("opener", ["<think>\n", ""])
def test_code_in_reasoning_is_not_run_and_the_whole_text_is_kept(rlm, opener):
    events = []
    said = f"{opener}{WRONG}\n</think>\n\n{code('x = 1')}"
    model = ScriptedModel([said, f"{opener}FINAL(no)\n</think>\nFINAL(yes)"])
    result = rlm(model, on_event=events.append).run("?")
    assert result.final_answer == "yes"
    assert [event.code for event in events if isinstance(event, CellRan)] == ["x = 1"]
    assert {"role": "assistant", "content": said} in model.requests[1].messages
    assert result.trajectory.root.turns[0].completion.text == said


def test_a_reply_cut_within_its_reasoning_is_a_turn_without_code(rlm):
    cut = Completion(f"<think>\n{WRONG}\nFINAL(no)", finish_reason="length")
    model = ScriptedModel([cut, code("FINAL(1)")])
    assert rlm(model).run("?").final_answer == "1"
    assert "no code block" in model.requests[1].messages[-1]["content"]


@pytest.mark.parametrize(
    ("last", "answer"),
    [
        (thinking("Hm.", "blue"), "blue"),
        (thinking(WRONG, "FINAL(blue)"), "blue"),
        ("<think>\nIt may be", None),
    ],
)
def test_the_last_answer_has_no_reasoning(rlm, last, answer):
    model = ScriptedModel([code("x = 1"), last])
    assert rlm(model, max_iterations=1).run("?").final_answer == answer


@pytest.mark.parametrize("asked", ["llm_query('Who?')", "llm_query_batched(['Who?'])[0]"])
def test_code_gets_the_answer_of_a_sub_call_and_the_ledger_its_whole_usage(rlm, asked, tmp_path):
    events = []
    path = tmp_path / "run.jsonl"
    replies = [code(f"t = {asked}\nFINAL((t, len(t), t.ok))"), thinking("Hm.", "me")]
    result = rlm(ScriptedModel(replies), on_event=events.append, trajectory=path).run("?")
    assert result.answer_value == ["me", 2, True]
    assert [e.text for e in events if isinstance(e, CallEnded)] == [replies[1]]
    recorded = Trajectory.load(path)
    assert recorded.root.calls[0].text == replies[1]
    assert rlm(ReplayModel(recorded)).run("?").answer_value == ["me", 2, True]


def test_the_json_of_a_sub_call_may_follow_reasoning(rlm):
    asked = "t = llm_query('?', schema={'type': 'integer'})\nFINAL([t, t.value])"
    repaired = ScriptedModel([code(asked), thinking("3?", "three"), thinking("Oh.", "```\n3\n```")])
    result = rlm(repaired).run("?")
    assert result.answer_value == ["```\n3\n```", 3]
    assert repaired.requests[2].messages[1]["content"] == thinking("3?", "three")


def test_the_answer_of_a_child_has_no_reasoning_and_may_mention_the_tags(rlm):
    def answer(request):
        if request.origin.run == "0":
            return code("FINAL(rlm_query('Write a prompt.'))")
        return thinking(WRONG, code("FINAL('<think> is a tag')"))

    assert rlm(ScriptedModel(answer)).run("?").final_answer == "<think> is a tag"


def test_reasoning_of_user_functions_is_removed_too(sandbox):
    def one(prompt):
        return thinking(prompt, prompt.upper())

    def many(prompts):
        return [one(prompt) for prompt in prompts]

    asked = "FINAL([llm_query('a'), *llm_query_batched(['b', 'c'])])"
    with LocalREPLEnv(sandbox=sandbox, llm_query_fn=one, llm_batch_fn=many) as env:
        env.reset()
        assert env.execute(asked).metadata["answer_value"] == ["A", "B", "C"]


def test_a_backend_truncates_the_reply_and_not_the_reasoning():
    limits = BackendLimits(result_truncation_limit=3)
    backend = DirectLMBackend(lambda messages: thinking("Hm.", "answer"), limits=limits)
    assert backend.query("?") == "ans"


def test_of_a_reply_that_is_too_long_the_reasoning_is_dropped_first(rlm):
    reply = code("kept = 'to the end'")
    model = ScriptedModel([thinking("long " * 30_000, reply), code("FINAL(kept)")])
    assert rlm(model).run("?").final_answer == "to the end"
    assert model.requests[1].messages[2] == {"role": "assistant", "content": reply}


def test_old_turns_in_short_have_the_code_that_was_run():
    said = [thinking(WRONG * 5, code(f"x{number}")) for number in range(6)]
    transcript = Transcript([{"role": "user", "content": "?"}], limit=6 * len(said[0]))
    for reply in said:
        transcript.add_reply(transcript.prompt(), reply)
        transcript.add(reply, "o", "short")
    shown = [message["content"] for message in transcript.prompt().messages]
    assert shown[1:3] == [code("x0"), "short"]
    assert said[5] in shown
