"""Prompts say what the session has, and observations read well."""

import pytest

from repl_env.models import CodeBlockResult, REPLObservation
from repl_env.parsing.blocks import extract_code_blocks
from repl_env.prompts import (
    RLM_SYSTEM_PROMPT,
    RLM_SYSTEM_PROMPT_QWEN,
    QueryMetadata,
    build_rlm_system_prompt,
    build_user_prompt,
    format_observations,
)


def observation(**fields):
    return REPLObservation(result=CodeBlockResult(**fields))


@pytest.mark.parametrize(
    "name",
    ["context", "llm_query", "llm_query_batched", "rlm_query", "SHOW_VARS", "FINAL", "FINAL_VAR"],
)
def test_the_system_prompt_names_everything_in_the_session(name):
    assert f"`{name}" in RLM_SYSTEM_PROMPT


def test_the_examples_in_the_prompt_are_code_that_compiles():
    blocks = extract_code_blocks(RLM_SYSTEM_PROMPT)
    assert len(blocks) == 3
    for block in blocks:
        compile(block, "<prompt>", "exec")


def test_the_prompt_for_costly_sub_models_adds_to_the_other():
    assert RLM_SYSTEM_PROMPT_QWEN.startswith(RLM_SYSTEM_PROMPT)
    assert "costs" in RLM_SYSTEM_PROMPT_QWEN[len(RLM_SYSTEM_PROMPT) :]


def test_the_system_message_ends_with_type_and_lengths_of_the_context():
    (message,) = build_rlm_system_prompt("SYSTEM", QueryMetadata([3, 4], 7, "list"))
    assert message == {
        "role": "system",
        "content": "SYSTEM\n\nYour context is a list with 7 total characters, and is broken up "
        "into chunks of char lengths: [3, 4].",
    }


def test_the_list_of_lengths_stops_after_a_hundred():
    (message,) = build_rlm_system_prompt("S", QueryMetadata([1] * 103, 103))
    assert str(message["content"]).endswith("1]... [3 others].")


def test_the_first_turn_asks_to_look_at_the_context_first():
    first, later = build_user_prompt("Who?"), build_user_prompt("Who?", iteration=1)
    assert '"Who?"' in first["content"]
    assert '"Who?"' in later["content"]
    assert first["role"] == "user"
    assert "do not answer" in first["content"]
    assert "do not answer" not in later["content"]


def test_several_contexts_and_histories_are_named():
    content = build_user_prompt(context_count=3, history_count=2)["content"]
    assert "context_2" in content
    assert "history_1" in content
    assert "`history`" in build_user_prompt(history_count=1)["content"]


def test_observations_show_the_code_with_its_output():
    shown = format_observations([observation(stdout="1\n"), observation()], ["print(1)"])
    assert "print(1)" in shown
    assert "REPL output:\n1" in shown
    assert "Code block 2 output:\n(no output)" in shown


def test_a_failed_block_shows_output_and_error():
    shown = format_observations([observation(stdout="a", stderr="E: x", success=False)])
    assert "a" in shown
    assert "ERROR: E: x" in shown


def test_warnings_of_a_block_that_ran_are_shown_as_such():
    shown = format_observations([observation(stderr="careful")])
    assert "STDERR: careful" in shown
    assert "ERROR" not in shown


def test_a_long_output_is_cut_in_the_middle_and_says_how_much():
    shown = format_observations([observation(stdout="a" * 50 + "b" * 50)], None, 20)
    assert "a" * 10 in shown
    assert "b" * 10 in shown
    assert "a" * 11 not in shown
    assert "[80 chars truncated]" in shown
