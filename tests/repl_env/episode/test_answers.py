"""The first valid answer counts, in the form it was given."""

import time
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from repl_env.episode.answers import MAX_OFFERED
from repl_env.episode.answers import AnswerSheet as TypedSheet
from repl_env.episode.answers import validator as validator_or_none
from repl_sandbox.types import Answer

AnswerSheet: Any = TypedSheet
validator: Any = validator_or_none


def settled(*answers, stdout="", schema=None):
    sheet = AnswerSheet(validator(schema))
    for answer in answers:
        sheet.offer(answer)
    final = sheet.verdict(stdout).final
    return None if final is None else (final.text, final.value)


def test_a_call_counts_with_text_and_value():
    assert settled(Answer("FINAL", "(1, 2)", [1, 2])) == ("(1, 2)", [1, 2])


def test_a_cell_without_an_answer_has_none():
    assert settled() is None


def test_the_first_answer_wins():
    assert settled(Answer("FINAL", "a", "a"), Answer("SUBMIT", "b", "b")) == ("a", "a")


def test_the_dict_counts_with_its_last_value_in_its_first_position():
    early, late = Answer("answer", "", ""), Answer("answer", "x", "x")
    assert settled(early, Answer("FINAL", "f", "f"), late) == ("x", "x")
    assert settled(Answer("FINAL", "f", "f"), late) == ("f", "f")


@pytest.mark.parametrize(
    ("stdout", "counts"),
    [
        ("FINAL(42)\n", True),
        ("before\nFINAL(42)", True),
        ("say FINAL(42)\n", False),
        ("", False),
        (" FINAL(42)", False),
    ],
)
def test_a_printed_answer_counts_if_it_begins_a_line_of_the_output(stdout, counts):
    answer = Answer("printed", "42", "42", printed="FINAL(42)")
    assert (settled(answer, stdout=stdout) is not None) is counts


def test_a_last_expression_needs_no_output():
    assert settled(Answer("printed", "42", "42", printed=None)) == ("42", "42")


def test_a_cleared_answer_record_is_empty():
    sheet = AnswerSheet()
    sheet.offer(Answer("answer", "a", "a"))
    assert sheet.verdict("").final is not None
    sheet.clear()
    assert sheet.verdict("").final is None


def test_answers_in_a_loop_are_bounded():
    sheet = AnswerSheet()
    for number in range(10 * MAX_OFFERED):
        sheet.offer(Answer("printed", str(number), None, printed="not shown"))
    sheet.offer(Answer("FINAL", "late", "late"))
    assert sheet.verdict("").final is None


def test_a_call_that_breaks_the_schema_is_refused_at_once():
    sheet = AnswerSheet(validator({"type": "integer"}))
    with pytest.raises(ValueError, match="'x' is not of type 'integer'"):
        sheet.offer(Answer("FINAL", "x", "x"))
    assert "integer" in sheet.verdict("").refusal
    sheet.offer(Answer("FINAL", "3", 3))
    assert sheet.verdict("").final.value == 3


def test_the_dict_is_judged_when_the_cell_ends():
    sheet = AnswerSheet(validator({"type": "integer"}))
    sheet.offer(Answer("answer", "", ""))
    sheet.offer(Answer("answer", "5", 5))
    assert sheet.verdict("").final.value == 5
    sheet.clear()
    sheet.offer(Answer("answer", "", ""))
    assert sheet.verdict("").final is None
    assert "integer" in sheet.verdict("").refusal


def test_a_schema_names_where_the_answer_is_wrong():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    with pytest.raises(ValueError, match=r"\['n'\] does not fit: 'a' is not of type 'integer'"):
        validator(schema)({"n": "a"})
    assert validator(schema)({"n": 1}) == {"n": 1}


def test_a_schema_never_fetches_anything():
    check = validator({"$ref": "http://127.0.0.1:9/schema.json"})
    with pytest.raises(Exception, match="Unresolvable"):
        check(1)


def test_a_type_converts_as_pydantic_does():
    assert validator(int)("42") == 42
    assert validator(list[int])([1, "2"]) == [1, 2]
    with pytest.raises(ValueError, match="valid integer"):
        validator(int)("x")


def test_a_model_is_a_schema():
    class Verdict(BaseModel):
        label: Literal["yes", "no"]
        score: float = 0.5

    assert validator(Verdict)({"label": "yes"}) == {"label": "yes", "score": 0.5}
    with pytest.raises(ValueError, match="label: "):
        validator(Verdict)({"label": "maybe"})


def test_an_invalid_schema_is_an_error_that_names_the_argument():
    with pytest.raises(ValueError, match="answer_schema"):
        validator({"type": "whole number"})
    with pytest.raises(TypeError, match="answer_schema"):
        validator(5)
    assert validator(None) is None


def test_a_text_is_no_type_and_is_never_evaluated(tmp_path):
    proof = tmp_path / "evaluated"
    with pytest.raises(TypeError, match=r"answer_schema must be .*, not str"):
        validator(f"__import__('pathlib').Path({str(proof)!r}).touch() or int")
    assert not proof.exists()


def test_values_and_texts_are_valid_json_and_unicode():
    assert settled(Answer("FINAL", "a\ud800b", float("nan"))) == ("a?b", None)
    assert settled(Answer("FINAL", "x", ["\ud800"])) == ("x", None)


def test_the_answers_of_a_cell_share_one_time_limit(monkeypatch):
    # A loop of refused answers would otherwise hold up a server for as long as the cell may take.
    monkeypatch.setattr("repl_env.episode.answers.CHECKS_S", 0.01)
    checked = []

    def refuse(value):
        checked.append(value)
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        raise ValueError("never")

    sheet = AnswerSheet(refuse)
    for cell in range(2):
        with pytest.raises(ValueError, match="never"):
            sheet.offer(Answer("FINAL", "a", cell))
        with pytest.raises(ValueError, match=r"too long to check: more than 0\.01 s in a cell"):
            sheet.offer(Answer("SUBMIT", "b", "b"))
        sheet.offer(Answer("answer", "c", "c"))
        assert sheet.verdict("").final is None
        sheet.clear()
    assert checked == [0, 1]
    with pytest.raises(ValueError, match="never"):
        sheet.judge("d", "d")  # what a caller submits has nothing to do with cells
