"""The reasoning of a model before its reply is no part of the reply."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_env.parsing.blocks import extract_code_blocks, without_thoughts

THOUGHT = "Maybe\n```python\nos.remove('all')\n```\nNo.\nFINAL(1)\n"


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("<think>hm</think>yes", "yes"),
        (" \n<think>\nhm\n</think>\n\nyes\n", "yes\n"),
        ("<think>\n\n</think>\n\n", ""),
        ("<think>a</think>\n<think>b</think>\nyes", "yes"),
        ("<think>a </think> b </think> c", "b </think> c"),
        (f"<think>{THOUGHT}</think>\nyes", "yes"),
        ("</think>\nyes", "yes"),
        (f"{THOUGHT}</think>\n\nyes", "yes"),
        (f"What is <think>?\n{THOUGHT}</think>\nyes", "yes"),
        ("hm\r\n</think>\r\n\r\nyes", "yes"),
        ("<think>hm</think>\n  ```python\n  x\n  ```", "  ```python\n  x\n  ```"),
        (f"{THOUGHT}so it is 3.</think>\n\nyes", "yes"),
        (f"{THOUGHT}so it is 3 </think> \nyes", "yes"),
        (f"{THOUGHT}so it is 3.</think>yes", "yes"),
        (f"{THOUGHT}is it 3?</think> yes", "yes"),
        (f"{THOUGHT}  </think>\nyes", "yes"),
        (f"{THOUGHT}so it is 3.</think>", ""),
        (f"The tags are <think> and </think>\n{THOUGHT}it is 3.</think>\nyes", "yes"),
        (f"{THOUGHT}so </think> is a tag\nand it is 3.\r\n  </think>\r\nyes", "yes"),
        (f"<think>a <think>b</think>\n{THOUGHT}c.</think>\nyes", "yes"),
        (f"<think>a\n<think>\nb\n</think>\n{THOUGHT}</think>\nyes", "yes"),
        ("<think>a tag, <think>, </think>yes", "yes"),
    ],
)
def test_a_reply_begins_where_the_reasoning_ends(text, reply):
    assert without_thoughts(text) == reply


@pytest.mark.parametrize("text", ["<think>", f"\n<think>\n{THOUGHT}", "<think>a</think><think>b"])
def test_a_reply_cut_within_its_reasoning_is_empty(text):
    assert without_thoughts(text) == ""
    assert extract_code_blocks(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yes",
        THOUGHT,
        "The tags are <think> and </think>.",
        "Such as\n<think>\na\n</think>\nyes",
        "I mean </think> here",
        " </think> is indented",
        "<thinking>a</thinking>\nyes",
        "```python\nx = '''\n</think>\n'''\n```\nThat was it.",
        "````\n```\n</think>\n```\n````",
        "```python\nx = 'a.</think>\n```\nThat was it.",
        '```python\nx = """a.</think>\nb</think>\n"""\n```\nThat was it.',
        "The tags are <think> and </think>\nyes",
        "It ends with `</think>`\nyes",
        "x = '</think>'\nprint(x)",
    ],
)
def test_a_text_that_only_mentions_the_tags_stays_as_it_is(text):
    assert without_thoughts(text) == text


TAGS = [
    ("<thinking>", "</thinking>"), ("<Thought>", "</Thought>"), ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"), ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"), ("<seed:think>", "</seed:think>"),
]  # fmt: skip


@pytest.mark.parametrize(("opener", "closer"), TAGS)
def test_code_in_reasoning_between_other_tags_is_not_run(opener, closer):
    thought = f"{opener}\n{THOUGHT}{closer}\n"
    assert extract_code_blocks(f"{thought}```repl\ny\n```") == ["y"]
    assert extract_code_blocks(f"\n{thought}\n<think>a</think>{thought}```repl\ny\n```") == ["y"]
    assert without_thoughts(thought) == thought  # those that code asked a model for are its own


@pytest.mark.parametrize(("opener", "closer"), TAGS)
@pytest.mark.parametrize("end", ["\n{}\n", "so it is 3.{}\n", "so it is 3 {} \n", "is it 3?{} "])
def test_code_in_reasoning_whose_tag_was_in_the_prompt_is_not_run(opener, closer, end):
    text = THOUGHT + end.format(closer)
    assert extract_code_blocks(f"{text}\n```repl\ny\n```") == ["y"]
    assert extract_code_blocks(f"{text}So:\n```repl\ny\n```") == ["y"]
    quoted = f"```python\nx = '''\n{closer}\n'''\n```\nThat is it."
    assert extract_code_blocks(quoted) == [f"x = '''\n{closer}\n'''"]


@pytest.mark.parametrize(
    "text", ["{}\n```py\ny\n```", "{}\n```py\ny\n```\n{}", "So: {}a{}\n```py\ny\n```"]
)
@pytest.mark.parametrize("tags", TAGS)
def test_a_reply_of_reasoning_alone_is_read_as_it_is(text, tags):
    assert extract_code_blocks(text.format(*tags)) == ["y"]


def test_reasoning_may_quote_its_own_end_tag_in_code():
    quoted = "So:\n```python\nx = '''\n</think>\n'''\n```\nNo.\n</think>\n"
    assert without_thoughts(f"{quoted}```python\ny\n```") == "```python\ny\n```"


@pytest.mark.parametrize("left_open", ["```python\nx = 1\n", "```\nx = 1\n", "~~~py\nx\n"])
def test_an_unclosed_block_in_reasoning_does_not_hide_its_end_tag(left_open):
    text = f"{left_open}</think>\n```python\ny\n```"
    assert extract_code_blocks(text) == ["y"]


def test_only_the_code_of_the_reply_is_code():
    assert extract_code_blocks(f"<think>{THOUGHT}</think>\n```repl\ny\n```") == ["y"]
    assert extract_code_blocks(f"{THOUGHT}</think>\n```repl\ny\n```") == ["y"]
    marked = "```python\nx = '''\n<think>\n</think>\n'''\n```"
    assert extract_code_blocks(marked) == ["x = '''\n<think>\n</think>\n'''"]


@pytest.mark.parametrize(
    "text",
    [
        "<think></think>" * 200_000,
        "</think>\n" * 200_000,
        "```\n</think>\n```\n" * 50_000,
        "```py\n</think>\n" * 50_000,
        "<think>" * 200_000,
        "\n" * 1_000_000 + "</think>",
        "a</think>b" * 200_000,
        "<think> </think>\n" * 100_000,
        "<think><think></think>" * 100_000,
    ],
)
def test_very_many_tags_take_linear_time(text):
    assert text.endswith(without_thoughts(text))


@given(st.lists(st.sampled_from(["<think>", "</think>", "\n", "```", "py", " ", "x"]), max_size=20))
def test_a_reply_is_an_end_of_its_text(pieces):
    text = "".join(pieces)
    assert text.endswith(without_thoughts(text))
