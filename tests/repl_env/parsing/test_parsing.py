"""Code blocks are found where models put them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_env.models import REPLAction
from repl_env.parsing.blocks import extract_code_blocks, strip_fence


@pytest.mark.parametrize("name", ["repl", "python", "Python", "python3", "py", "{.python}"])
def test_a_block_counts_under_every_name_models_use(name):
    assert extract_code_blocks(f"First:\n```{name}\nx = 1\n```\nThen.") == ["x = 1"]


def test_blocks_come_in_the_order_of_the_text():
    text = "```python\na\n```\n\n```repl\nb\n```\n~~~py\nc\n~~~"
    assert extract_code_blocks(text) == ["a", "b", "c"]


def test_blocks_of_other_languages_are_not_code():
    assert extract_code_blocks("```json\n{}\n```\n```bash\nls\n```") == []


def test_the_language_asked_for_counts_too():
    assert extract_code_blocks("```lua\nx\n```", language="lua") == ["x"]


def test_an_unmarked_block_counts_if_it_is_the_only_one():
    assert extract_code_blocks("```\nx = 1\n```") == ["x = 1"]


def test_an_unmarked_block_beside_marked_code_is_quoted_output():
    assert extract_code_blocks("```repl\nprint(1)\n```\nOutput:\n```\n1\n```") == ["print(1)"]


def test_a_fence_inside_a_string_does_not_cut_the_block():
    code = 'text = """\n```json\n{"a": 1}\n```\n"""\nprint(text)'
    assert extract_code_blocks(f"```python\n{code}\n```\ndone") == [code]


def test_a_nested_python_block_belongs_to_the_outer_one():
    code = 'doc = """\n```python\nx\n```\n"""'
    assert extract_code_blocks(f"```repl\n{code}\n```") == [code]


def test_a_longer_fence_holds_shorter_ones():
    assert extract_code_blocks("````python\nx = '''\n```\n'''\n````") == ["x = '''\n```\n'''"]


def test_a_block_that_is_never_closed_ends_with_the_text():
    assert extract_code_blocks("So:\n```python\nx = 1\ny = 2") == ["x = 1\ny = 2"]


def test_a_block_left_open_ends_where_the_next_block_of_code_begins():
    assert extract_code_blocks("```python\na\n```python\nb\n```") == ["a", "b"]


def test_an_unpaired_fence_in_the_text_of_a_block_does_not_swallow_what_follows():
    text = '```python\nx = "\\\n```json"\n```\nand so on'
    assert extract_code_blocks(text) == ['x = "\\\n```json"']


def test_a_block_on_one_line_counts():
    assert extract_code_blocks("Use ```python print(1)``` now.") == []
    assert extract_code_blocks("```python print(1)```") == ["print(1)"]


def test_the_indentation_of_the_fence_is_taken_off_the_code():
    text = "1. Do:\n   ```python\n   if x:\n       y = 1\n   ```"
    assert extract_code_blocks(text) == ["if x:\n    y = 1"]


def test_empty_blocks_are_left_out():
    assert extract_code_blocks("```python\n\n```\n```repl\nx\n```") == ["x"]


def test_odd_line_separators_inside_code_stay_as_they_are():
    assert extract_code_blocks("```python\nx = 'a\x0cb\u2028c'\n```") == ["x = 'a\x0cb\u2028c'"]


def test_one_fence_around_everything_is_stripped():
    assert strip_fence("```python\nx = 1\n```") == "x = 1"
    assert strip_fence("  \n```\nx = 1\n```  \n") == "x = 1"


@pytest.mark.parametrize(
    "text",
    [
        "<code>\nx = 1\n</code>",
        "<code>x = 1</code>",
        "```py\nx = 1\n```<end_code>",
        "```py\nx = 1```",
        "```py\n>>> x = 1\n1\n```",
        "```\n    x = 1\n```",
        "    x = 1",
        ">>> x = 1\n1",
        "<|python_tag|>x = 1<|eom_id|>",
    ],
)
def test_other_marks_of_code_are_stripped_from_an_action(text):
    assert REPLAction(code=text).code == "x = 1"


def test_a_fence_in_the_string_of_an_action_stays():
    code = 's = """\n```\n"""\nprint(s)'
    assert REPLAction(code=f"```py\n{code}\n```").code == code
    assert REPLAction(code=code).code == code


@pytest.mark.parametrize(
    "text", ["x = 1", "", "Look:\n```python\nx\n```", "```python\na\n```\n```python\nb\n```"]
)
def test_text_that_is_not_one_fenced_block_stays_as_it_is(text):
    assert strip_fence(text) == text


@given(st.text(alphabet="`~ \nrepl#x", max_size=80))
def test_no_text_breaks_the_parser_and_blocks_are_pieces_of_it(text):
    for block in extract_code_blocks(text):
        assert block.strip()
        assert all(line.strip() in text for line in block.split("\n"))


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("```repl\n" * 50_000, 0),
        ("```repl\nx\n" * 50_000, 50_000),
        ("```repl\nx\n```text\n" * 50_000, 50_000),
        ("~~~\n" * 50_001, 0),
        ("```repl" + " " * 500_000, 0),
        ("".join(f"a <python{number}>\n" for number in range(50_000)), 0),
        ("a <code>\n</code>\n" * 50_000, 0),
        ((">    " * 3_000 + "```repl\n>x\n") * 50, 50),
    ],
)
def test_fences_without_end_take_linear_time(text, blocks):
    assert len(extract_code_blocks(text)) == blocks
    assert strip_fence(f"inline\n{text}") == f"inline\n{text}"
    strip_fence(f"```repl\n{text}")  # whatever it says, it says it soon


@pytest.mark.parametrize("lines", [3, 20_000])
def test_a_fence_around_long_code_is_stripped(lines):
    code = "\n".join(["if x:", *["  x = 1"] * lines])
    assert strip_fence(f"```python\n{code}\n```\n") == code
    assert strip_fence(f"~~~\n\n{code}\n~~~~") == code


def test_a_text_of_very_many_fences_is_not_scanned():
    # A client may send megabytes of them, and all sessions of a server would wait for that.
    text = "```\n" + "```py\n```\n" * 1_000 + "```"
    assert strip_fence(text) == text


@pytest.mark.parametrize("text", ["```a`b\n{}\n```", "```\n{}\n``` py", "```\n{}\nx ```"])
def test_long_code_without_a_fence_at_both_ends_stays_as_it_is(text):
    text = text.format("x = 1\n" * 20_000)
    assert strip_fence(text) == text
