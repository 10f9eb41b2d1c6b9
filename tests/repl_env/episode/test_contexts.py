"""A context becomes variables, a length and a preview, or a clear error."""

import pytest

from repl_env import LocalREPLEnv
from repl_env.episode.contexts import resolve


def resolved(context=None, contexts=None, default=None, mode="head", preview_length=500):
    return resolve(context, contexts, default, mode=mode, preview_length=preview_length)


def values(context):
    return {part.name: part.value for part in context.parts}


@pytest.mark.parametrize(
    ("given", "length"),
    [("häy", 3), (b"h\xc3\xa4y", 4), (["a", 1], 8), ({"a": "ä"}, 10), ("", 0)],
)
def test_length_counts_characters_bytes_or_json(given, length):
    context = resolved(given)
    assert context.length == length
    assert values(context) == {"context": given}


def test_no_context_is_the_default_and_no_default_is_an_empty_text():
    assert values(resolved(None, default="d")) == {"context": "d"}
    assert values(resolved(None)) == {"context": ""}


def test_an_empty_text_is_not_replaced_by_the_default():
    assert values(resolved("", default="d")) == {"context": ""}


def test_several_contexts_are_variables_of_their_names():
    context = resolved(contexts={"doc": "abc", "rows": [1, 2]})
    assert values(context) == {"doc": "abc", "rows": [1, 2]}
    assert context.length == 3 + 6
    assert context.preview == "doc: abc\nrows: [1, 2]"
    assert context.text is None
    assert "doc (3 chars), rows (6 chars of JSON)" in context.announcement()


def test_a_context_and_named_contexts_combine():
    assert values(resolved("a", {"doc": "b"})) == {"context": "a", "doc": "b"}
    assert values(resolved(None, {"context": "b"}, default="d")) == {"context": "b"}
    with pytest.raises(ValueError, match="context"):
        resolved("a", {"context": "b"})


def test_a_path_is_read_as_text_or_else_as_bytes(tmp_path):
    text, binary = tmp_path / "a.txt", tmp_path / "b.bin"
    text.write_bytes("zeile\r\nä".encode())
    binary.write_bytes(b"\xff\x00")

    assert values(resolved(text)) == {"context": "zeile\r\nä"}
    assert values(resolved(binary)) == {"context": b"\xff\x00"}


def test_a_str_is_never_a_path(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("inside")
    assert values(resolved(str(file))) == {"context": str(file)}


def test_a_path_that_cannot_be_read_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        resolved(tmp_path / "missing")


@pytest.mark.parametrize("given", [5, {1, 2}, (1, 2), object()])
def test_an_invalid_context_is_a_type_error_that_names_it(given):
    with pytest.raises(TypeError, match="context must be"):
        resolved(given)


def test_a_context_that_json_cannot_carry_is_an_error_that_names_it():
    endless: list[object] = []
    endless.append(endless)
    for given, error in ((["a", object()], TypeError), (endless, ValueError)):
        with pytest.raises(error, match="context must hold JSON"):
            resolved(given)


def test_the_announcement_is_openenvs():
    expected = "Context loaded (3 chars). Use 'context' variable to access it."
    assert resolved("abc").announcement() == expected
    assert resolved("").announcement() is None


def test_an_episode_without_a_context_has_that_of_its_sandbox(sandbox):
    with sandbox.with_shared(context=["a", "b"]) as made, LocalREPLEnv(sandbox=made) as env:
        result = env.reset()
        assert result.observation.context_length == len('["a", "b"]')
        assert env.execute("print(context)").observation.result.stdout == "['a', 'b']\n"
        env.execute("import os\nos._exit(1)")
        assert env.execute("print(context)").observation.result.stdout == "['a', 'b']\n"
        assert env.reset(context="").observation.context_length == 0
        assert env.execute("print([context])").observation.result.stdout == "['']\n"
        env.reset(contexts={"other": "x"})
        assert env.execute("print(context, other)").observation.result.stdout == "['a', 'b'] x\n"
