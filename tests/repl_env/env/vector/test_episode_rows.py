"""Rows of a batch as episodes: replies become actions, one message per row, without effects on
other rows.
"""

from __future__ import annotations

import pickle

import pytest

from repl_env.env.rows import EpisodeRows, action_of_reply
from repl_env.errors import NotReset
from repl_env.local import LocalREPLEnv
from repl_env.models import REPLAction
from repl_env.rlm.loop import MAX_BLOCKS
from repl_env.rubrics import REPLRubric


def block(code: str, name: str = "python") -> str:
    return f"```{name}\n{code}\n```"


@pytest.fixture(scope="module")
def rows():
    with EpisodeRows(3, rubric=REPLRubric()) as made:
        yield made


CODE = {
    "python fence": (block("x = 1"), "x = 1"),
    "repl fence": (block("x = 1", "repl"), "x = 1"),
    "answer in prose": ("FINAL(42)", None),
    "answer in code": ("FINAL(len(context))", "FINAL(len(context))"),
    "variable": ("FINAL_VAR(total)", 'FINAL_VAR("total")'),
    "end token behind": (f"{block('x = 1')}<|im_end|>", "x = 1"),
    "thoughts before": (f"<think>{block('y')}</think>{block('x = 1')}", "x = 1"),
}


@pytest.mark.parametrize(("reply", "code"), CODE.values(), ids=CODE)
def test_a_reply_is_parsed_as_in_a_run(reply, code):
    action = action_of_reply(reply, {"context", "total"})
    if code is None:
        assert action.is_final and action.final_answer == "42"
    else:
        assert action.code == code and action.format_error is None


@pytest.mark.parametrize("reply", ["", "I am lost.", "\ud800", "```python\n```", "<none>", "```"])
def test_reply_without_code_is_a_format_error(reply):
    assert action_of_reply(reply).format_error


def test_action_stands_for_a_reply_that_was_read(rows):
    rows.reset(context="a b c")
    prose, code, _ = rows.step(["1 / 0", REPLAction(code="1 / 0"), None])
    assert prose.observation.error_kind == "format"
    assert code.observation.error_kind == "exception" and "ZeroDivisionError" in code.message


def test_blocks_of_a_reply_are_one_step_with_one_message(rows):
    rows.reset(context="a b c", max_iterations=5)
    reply = f"{block('n = 2')}\nthen\n{block('print(n)')}\n{block('1 / 0')}\n{block('n += 1; n')}"
    first, none, _ = rows.step([reply, None, block("n")])
    assert none is None
    assert first.observation.iteration == 1
    assert first.message.startswith("Code block 1 output:\n(no output)\n\nCode block 2 output:\n2")
    assert first.message.index("ZeroDivisionError") < first.message.index("Code block 4 output:\n3")
    assert first.observation.error_kind == "exception" and not first.observation.result.success
    assert first.reward == -0.05  # one step, scored once
    assert {change["name"] for change in first.observation.result.changes} == {"n"}
    assert rows.environments.environments[0].state().step_count == 1
    usage = rows.environments.environments[0].state().usage
    assert usage["execution_seconds"] == first.observation.metadata["usage"]["execution_seconds"]


def test_blocks_behind_an_answer_are_not_run(rows):
    rows.reset(context="a b c", expected_answer=3)
    reply = f"{block('n = 1')}{block('FINAL(3)')}{block('1 / 0')}"
    first, _, lost = rows.step([reply, block("pass"), "I am lost."])
    assert (first.reward, first.terminated, first.truncated) == (1.0, True, False)
    assert "ZeroDivisionError" not in first.message
    assert not lost.done and lost.observation.error_kind == "format" and "no code" in lost.message
    again, *_ = rows.step(["anything", None, None])
    assert again.reward == 0.0 and again.terminated and again.message == first.message


def test_blocks_beyond_the_maximum_are_reported(rows):
    rows.reset()
    first, *_ = rows.step(
        [block("0") * 1 + "\n" + "\n".join([block("1")] * MAX_BLOCKS)] + [None] * 2
    )
    assert f"Only the first {MAX_BLOCKS} of the {MAX_BLOCKS + 1}" in first.message


def test_limit_of_steps_counts_replies(rows):
    rows.reset(max_iterations=2, expected_answer="x")
    reply = block("1") + "\n" + block("2")
    assert not any(each.done for each in rows.step([reply, "lost", reply]))
    ended = rows.step([reply, "lost", block("FINAL('x')")])
    assert [each.truncated for each in ended] == [True, True, False]
    assert ended[0].message.endswith("Maximum iterations (2) reached.")
    assert "Maximum iterations (2) reached." in ended[1].message
    assert [each.reward for each in ended] == pytest.approx([-0.1, -0.15, 1.0])


def test_only_some_rows_are_reset(rows):
    rows.reset(context="old")
    rows.step([block("kept = 1")] * 3)
    begun = rows.reset([{"context": "new"}], only=[1])
    assert [each is None for each in begun] == [True, False, True]
    texts = [each.message for each in rows.step([block("context, 'kept' in globals()")] * 3)]
    assert texts == ["('old', True)", "('new', False)", "('old', True)"]


def test_session_that_dies_is_masked_and_the_others_go_on(rows):
    rows.reset()
    rows.step([block("x = 1")] * 3)
    rows.environments.environments[1].session.close()
    first, dead, third = rows.step([block("x + 1")] * 3)
    assert (first.message, third.message) == ("2", "2") and not first.mask
    assert (dead.truncated, dead.mask, dead.reward) == (True, True, 0.0) and dead.message
    again = rows.step([None, block("x"), None])[1]
    assert again.mask and again.truncated
    assert not rows.reset(only=[1])[1].mask


def test_pickle_holds_no_session(rows):
    rows.reset(context="a")
    copy = pickle.loads(pickle.dumps(rows))
    assert len(copy) == 3 and copy.last == (None,) * 3
    with pytest.raises(NotReset):
        copy.step([block("1")] * 3)
    with copy:
        copy.reset(context="b")
        assert copy.step([block("context")] * 3)[0].message == "'b'"


def test_wrong_arguments_are_named(rows):
    rows.reset()
    with pytest.raises(TypeError, match=r"replies\[1\]: a reply must be a str, not int"):
        rows.step(["", 3, ""])
    with pytest.raises(ValueError, match="a list of 3"):
        rows.step(["", ""])
    with pytest.raises(TypeError, match="no argument 'isolaton'"):
        EpisodeRows(1, isolaton="strict")
    with pytest.raises(ValueError, match="n must be"):
        EpisodeRows(0)


def test_blocks_are_charged_to_the_budget():
    from repl_env.env.step import blocks_action
    from repl_env.rlm import Budget

    with LocalREPLEnv(budget=Budget(seconds=60), llm_query_fn=str) as env:
        env.reset()
        result = env.step(blocks_action(["x = 1", "x + 1"]))
        assert result.observation.result.stdout.strip() == "2"
        assert result.metadata["spent"]["cpu_seconds"] > 0
