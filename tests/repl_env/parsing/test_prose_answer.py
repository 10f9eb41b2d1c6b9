"""Answers that models write beside code instead of in it."""

import pytest

from repl_env.parsing.replies import ProseAnswer, answer_in


@pytest.mark.parametrize(
    ("prose", "answer"),
    [
        ("FINAL(42)", "42"),
        ("So:\n\n  FINAL(the red door)\nThank you.", "the red door"),
        ("FINAL(f(a) + g(b))", "f(a) + g(b)"),
        ("FINAL((1, 2))", "(1, 2)"),
        ('FINAL("a) b)")', "a) b)"),
        ("FINAL(smile :( now)", "smile :( now"),
        ("FINAL(no end", "no end"),
        ("FINAL('x') and FINAL_VAR(y)", "x"),
        ("FINAL()", ""),
        ("FINAL(two\nlines)", "two\nlines"),
    ],
)
def test_a_literal_text_is_the_answer(prose, answer):
    assert answer_in(prose) == ProseAnswer(answer)


@pytest.mark.parametrize(
    "prose", ["FINAL_VAR(result)", "FINAL_VAR('result')", 'done.\nFINAL_VAR( "result" )']
)
def test_a_variable_name_means_its_value(prose):
    assert answer_in(prose) == ProseAnswer("result", is_variable=True)


def test_a_text_that_names_a_variable_of_the_session_means_the_variable():
    assert answer_in("FINAL(total)", {"total"}) == ProseAnswer("total", is_variable=True)
    assert answer_in("FINAL(total)", {"sum"}) == ProseAnswer("total")


@pytest.mark.parametrize(
    "prose", ["", "I would call FINAL(x) now.", "FINALLY(1)", "# FINAL(1)", "final(1)"]
)
def test_prose_without_an_answer_is_none(prose):
    assert answer_in(prose) is None


def test_an_answer_of_megabytes_is_not_parsed_as_a_literal():
    """Once for each parenthesis behind it, that took minutes, and gigabytes."""
    long = "1," * 4_000_000
    assert answer_in(f"FINAL({long}" + ")" * 100) == ProseAnswer(long)
    assert answer_in(f"FINAL('{long}')") == ProseAnswer(f"'{long}'")
