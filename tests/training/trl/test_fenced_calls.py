"""Fences as tool calls: how replies are parsed, and how calls are rendered."""

from __future__ import annotations

import pytest
from trl.chat_template_utils import (
    is_chat_template_prefix_preserving,
    parse_response,
    supports_tool_calling,
)

from repl_env.integrations.trl import use_fences

ASKED = [{"role": "user", "content": "How many words?"}]


def codes(tokenizer, reply, end="<|im_end|>"):
    """The code of each call in a reply, and the text around the calls."""
    prompt = tokenizer.apply_chat_template(ASKED, add_generation_prompt=True)["input_ids"]
    ids = tokenizer(reply + end)["input_ids"]
    message = parse_response(tokenizer, ids, prefix=prompt)
    calls = [call["function"] for call in message.get("tool_calls", [])]
    assert all(call["name"] == "python" for call in calls)
    return [call["arguments"]["code"] for call in calls], message["content"]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("```repl\nprint(1)\n```", ["print(1)"]),
        ("```python\nprint(1)\n```", ["print(1)"]),
        ("```Python\nprint(1)\n```\n", ["print(1)"]),
        ("```py\nprint(1)\n```", ["print(1)"]),
        ("```\nprint(1)\n```", ["print(1)"]),
        ("```repl \nprint(1)\n``` ", ["print(1)"]),
        ("```repl\r\nprint(1)\r\n```", ["print(1)"]),
        ("```repl\n    x = 1\n    y = 2\n```", ["    x = 1\n    y = 2"]),
        ("```repl\n\n```", [""]),
        ("```repl\n```", [""]),
        ("First.\n```repl\na = 1\n```\nThen.\n```repl\nb = 2\n```\nDone.", ["a = 1", "b = 2"]),
        ("```repl\nx = '```'\nprint(x)\n```", ["x = '```'\nprint(x)"]),
        ("```repl\nprint(1)", ["print(1)"]),
        ("```json\n{}\n```", []),
        ("```json\n{}\n```\n```repl\nprint(1)\n```", ["print(1)"]),
        ("Say ```repl and go on", []),
        ("No code at all", []),
    ],
)
@pytest.mark.parametrize("end", ["<|im_end|>", ""])
def test_cells_of_a_reply(tokenizer, reply, expected, end):
    found, _ = codes(use_fences(tokenizer), reply, end)
    assert found == expected


def test_the_text_around_a_call_is_content(tokenizer):
    _, content = codes(use_fences(tokenizer), "First a look.\n```repl\nprint(1)\n```")
    assert content == "First a look."


def test_a_template_without_tools_passes_the_checks_of_trl(tokenizer):
    assert not supports_tool_calling(tokenizer)
    use_fences(tokenizer)
    assert supports_tool_calling(tokenizer) and is_chat_template_prefix_preserving(tokenizer)


def test_calls_are_rendered_as_the_fences_that_were_written(tokenizer):
    plain = [
        *ASKED,
        {"role": "assistant", "content": "Look.\n```repl\nprint(context)\n```"},
        {"role": "user", "content": "a b\n\nc"},
    ]
    expected = tokenizer.apply_chat_template(plain, tokenize=False)
    call = {"type": "function", "function": {"name": "python", "arguments": {}}}
    call["function"]["arguments"]["code"] = "print(context)"
    messages = [
        *ASKED,
        {"role": "assistant", "content": "Look.", "tool_calls": [call]},
        {"role": "tool", "name": "python", "content": "a b"},
        {"role": "tool", "name": "python", "content": "c"},
    ]
    use_fences(tokenizer)
    assert tokenizer.apply_chat_template(messages, tokenize=False) == expected
    # And what was no call is as before.
    assert tokenizer.apply_chat_template(plain, tokenize=False) == expected


@pytest.mark.parametrize("template", [None, {"default": "x"}, "{{ messages[0].content }}"])
def test_a_tokenizer_without_a_fit_template_is_refused(tokenizer, template):
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match="chat template"):
        use_fences(tokenizer)
