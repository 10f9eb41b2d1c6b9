"""A preview shows a context within the length it was given."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_env.episode.contexts import MODES
from repl_env.episode.contexts import preview as optional_preview

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=30,
)


def preview(value, mode, length) -> Any:
    return optional_preview(value, mode, length)


def test_head_is_the_beginning():
    assert preview("abcdef", "head", 3) == "abc"
    assert preview("abc", "head", 500) == "abc"


def test_head_and_tail_say_how_long_the_whole_is():
    shown = preview("a" * 500 + "z" * 500, "head+tail", 100)
    assert shown.startswith("aaa")
    assert shown.endswith("zzz")
    assert "1,000 in all" in shown


def test_a_structure_shows_types_and_sizes():
    value = {"rows": [{"id": 1, "text": "abc"}] * 300, "name": "x"}
    shown = preview(value, "structure", 500)
    assert "'rows': list (300) of dict (2) {'id': int, 'text': str (3)}" in shown
    assert "'name': str (1)" in shown


def test_a_structure_of_text_counts_lines():
    assert preview("a\nb\nc", "structure", 500).startswith("str, 5 characters, 3 lines\na\nb\nc")


def test_a_mixed_list_is_called_mixed():
    assert preview([1, "a"], "structure", 500) == "list (2) of int | str"


def test_bytes_that_are_not_text_are_escaped():
    assert preview(b"ab\xff", "head", 10) == "ab\\xff"


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_shown_of_an_empty_context(mode):
    assert preview("", mode, 500) is None


def test_none_shows_nothing():
    assert preview("abc", "none", 500) is None


@given(JSON | st.text() | st.binary(), st.sampled_from(sorted(MODES)), st.integers(0, 200))
def test_no_preview_is_longer_than_asked(value, mode, length):
    assert len(preview(value, mode, length) or "") <= length


def test_a_preview_of_a_large_context_does_not_encode_all_of_it():
    class Counted(list):
        reads = 0

        def __iter__(self):
            for item in super().__iter__():
                Counted.reads += 1
                yield item

    preview(Counted(range(100_000)), "head", 50)
    assert Counted.reads < 100
