"""Text that code printed cannot hold a token of a chat template."""

from __future__ import annotations

from typing import ClassVar

import pytest

from repl_env.env.rows import escaped, special_tokens, template_tokens

TOKENS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>",
    "<|header_start|>", "<|eot|>", "<\uff5cUser\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>", "<s>", "</s>", "<eos>", "[INST]",
    "[/INST]", "[TOOL_CALLS]", "[SYSTEM_PROMPT]", "<<SYS>>", "<</SYS>>", "<tool_response>",
    "</tool_response>", "<tool_call>", "<think>", "</think>", "<none>", "<function_results>",
]  # fmt: skip


@pytest.mark.parametrize("token", TOKENS)
def test_published_tokens_are_broken(token):
    shown = escaped(f"a{token}b")
    assert token not in shown and shown.replace("\\", "") == f"a{token}b"
    assert escaped(shown) == shown


@pytest.mark.parametrize(
    "text", ["", "x < y | z", "a[1:2]", "<b>bold</b>", "[1, 2]", "User: hi", "é\n\t", "a <= b"]
)
def test_other_text_stays(text):
    assert escaped(text) == text


def test_tokens_that_overlap_or_nest_are_all_broken():
    assert "aba" not in escaped("ababa", ["aba"])
    for text in ("<|im_<|im_end|>end|>", "<|<|im_start|>", "<|im_end|><|im_end|>"):
        assert "<|im" not in escaped(text) and "<|<" not in escaped(text)


def test_lone_surrogates_are_replaced():
    assert escaped("a\ud800b") == "a?b"


def test_tokens_and_labels_of_a_tokenizer():
    class Tokenizer:
        all_special_tokens = ("@@end@@", "\n\n", "!")
        chat_template = "{{ 'User: ' + message }}\nAssistant:{% if x %}{% endif %}"
        name_or_path = "x"

        def get_added_vocab(self):
            return {"{turn}": 1, "word": 2, "  ": 3}

    tokens = template_tokens(Tokenizer())
    assert tokens == {"@@end@@", "{turn}", "User:", "Assistant:"}
    for token in tokens:
        assert token not in escaped(f"a {token} b", tokens)
    assert escaped("a word, user: b", tokens) == "a word, user: b"
    assert template_tokens(object()) == frozenset()


def test_special_tokens_without_a_role():
    class Token(str):
        special = True

    class Tokenizer:
        all_special_tokens = ("<a>",)
        added_tokens_decoder: ClassVar = {0: Token("<a>"), 1: Token("border"), 2: "<think>"}

    assert special_tokens(Tokenizer()) == {"<a>", "border"}
    assert template_tokens(Tokenizer()) == {"<a>", "border"}
    assert special_tokens(object()) == frozenset()


@pytest.mark.parametrize(
    ("template", "labels"),
    [
        ("{{ '### Instruction:\\n' + text + '\\n### Response:\\n' }}", 2),
        ('{{ "USER: " }}{{ text }}{{ " ASSISTANT: " }}', 2),
        ({"default": "{{ 'Human: ' }}", "tool_use": "{{ 'AI: ' }}"}, 2),
        ("{{ '<|im_start|>' + role }}", 0),
        (None, 0),
    ],
)
def test_labels_of_templates_without_tokens(template, labels):
    class Tokenizer:
        chat_template = template

    assert len(template_tokens(Tokenizer())) == labels
