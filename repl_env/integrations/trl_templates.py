"""Chat templates for TRL: the text between two replies, and fenced cells as tool calls."""

from __future__ import annotations

import re
from typing import Any

from repl_env.common.display import set_module

# The text of a chat template between a reply and the next one.

# Stands for a reply while the text behind it is looked for: no template changes or splits it.
_REPLY = "7dbd6c2e9f5b4a60"


class BetweenReplies:
    """Token ids from the end of a reply to the begin of the next, with a message in between.

    Args:
        tokenizer: with a chat template.
        role: of the message; None: "tool", where the template renders that, else "user".
        options: of the chat template.

    Attributes:
        role: of the message, as it is rendered.

    Raises:
        ValueError: the template renders no reply, or not the role.
    """

    def __init__(self, tokenizer: Any, role: str | None, options: dict[str, Any]) -> None:
        self._tokenizer, self._options = tokenizer, options
        self.role = self._role_of(role)

    def ids(self, reply: list[int], message: str) -> list[int]:
        """Return the tokens that follow `reply`, which may already end with its end token."""
        text = self._behind(self.role, message)
        eos = self._tokenizer.eos_token
        if eos and reply and reply[-1] == self._tokenizer.eos_token_id:
            text = text.removeprefix(eos)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _role_of(self, given: str | None) -> str:
        roles = ("tool", "user") if given is None else (given,)
        for role in roles:
            try:
                if "-told-" in self._behind(role, "-told-"):
                    return role
            except Exception as error:  # a template is a program, and may refuse a role by any
                if role == roles[-1]:
                    raise ValueError(f"the chat template refuses the role {role!r}") from error
        raise ValueError(f"the chat template does not render messages of the role {roles[-1]!r}")

    def _behind(self, role: str, message: str) -> str:
        conversation = [
            {"role": "user", "content": "-"},
            {"role": "assistant", "content": _REPLY},
            {"role": role, "content": message},
        ]
        whole = self._tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True, **self._options
        )
        _, found, behind = whole.partition(_REPLY)
        if not found:
            raise ValueError("the chat template does not render replies of the assistant")
        return str(behind)


# Fenced cells as tool calls, for models whose chat template knows no tools.
#
# TRL finds tool calls by the `response_template` of the tokenizer and renders them by its chat
# template. `use_fences` sets both, so that the model writes and reads plain fences.

# Before the model's own template: calls become fences in the reply's text, and what they came to
# becomes a message of the user's. TRL asks a template to show a call of any name whole.
_AS_FENCES = """\
{%- set fenced = namespace(messages=[]) -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- set last = fenced.messages[-1] if fenced.messages else {} -%}
{%- if last.tool -%}
{%- set told = last.content + '\\n\\n' + message.content -%}
{%- set fenced.messages = fenced.messages[:-1] -%}
{%- else -%}{%- set told = message.content -%}{%- endif -%}
{%- set told = {'role': 'user', 'content': told, 'tool': true} -%}
{%- set fenced.messages = fenced.messages + [told] -%}
{%- elif message.tool_calls -%}
{%- set reply = namespace(content=message.content or '') -%}
{%- for call in message.tool_calls -%}
{%- set call = call.function or call -%}
{%- set fence = 'FENCE' if call.name == 'TOOL' else call.name -%}
{%- set code = call.arguments.code if call.name == 'TOOL' else call.arguments | tojson -%}
{%- set before = reply.content + '\\n' if reply.content else '' -%}
{%- set reply.content = before + '```' + fence + '\\n' + (code or '') + '\\n```' -%}
{%- endfor -%}
{%- set fenced.messages = fenced.messages + [{'role': message.role, 'content': reply.content}] -%}
{%- else -%}{%- set fenced.messages = fenced.messages + [message] -%}{%- endif -%}
{%- endfor -%}
{%- set messages = fenced.messages -%}
{%- set tools = none -%}
"""
_LANGUAGES = ("repl", "python", "py")


@set_module("repl_env.integrations.trl")
def use_fences(tokenizer: Any, *, tool: str = "python", fence: str = "repl") -> Any:
    """Make TRL read fenced cells of this tokenizer's model as calls of `tool`; returns it.

    ```python
    trainer = GRPOTrainer(model, processing_class=use_fences(tokenizer), ...)
    ```
    A cell is a block fenced by three backticks at the beginning of a line and marked "repl",
    "python", "py" or not at all; each is a call, in order. The template shows a call as a block
    marked `fence`, what it printed as a message of the user, and no tools: the prompt must say
    how to write a cell. The tokenizer's own template renders all else.

    Args:
        tokenizer: of transformers 5.13 or later, with a chat template. It is changed.
        tool: the name of the environment's method.
        fence: how the template marks a cell.

    Raises:
        ValueError: the tokenizer has no chat template, or one that does not end a prompt with the
            beginning of a reply.
    """
    template = tokenizer.chat_template
    if not isinstance(template, str) or not template:
        raise ValueError("use_fences needs a tokenizer with one chat template")
    languages = sorted({*_LANGUAGES, fence}, key=len, reverse=True)
    tokenizer.response_template = _response_template(tokenizer, tool, languages)
    before = _AS_FENCES.replace("FENCE", fence).replace("TOOL", tool)
    tokenizer.chat_template = before + template
    return tokenizer


def _response_template(tokenizer: Any, tool: str, languages: list[str]) -> dict[str, Any]:
    """The rules by which transformers takes a reply apart."""
    marks = "|".join(map(re.escape, languages))
    ends = re.escape(tokenizer.eos_token)
    call = {"type": "function", "function": {"name": tool, "arguments": {"code": "{content}"}}}
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": _reply_begins(tokenizer),
        "fields": {
            "tool_calls": {
                "open_pattern": rf"(?mi:^)```(?i:{marks})?[ \t]*\r?\n",
                # A block that the reply ends in is a cell too.
                "close_pattern": rf"(?m:\r?\n?^```)[ \t]*(?:\r?\n)?|\s*{ends}",
                "repeats": True,
                "content": "text",
                "content_args": {"strip": False},
                "transform": call,
            },
            # A block in another language is no cell, and its end is not the begin of one.
            "quoted": {
                "open_pattern": rf"(?m:^)```(?!(?i:{marks})?[ \t]*\r?\n)[^`\n]*\n",
                "close_pattern": r"(?m:^```)[ \t]*(?:\r?\n)?",
                "repeats": True,
                "content": "text",
            },
            "content": {"close_pattern": rf"{ends}\s*", "content": "text"},
        },
    }


def _reply_begins(tokenizer: Any) -> str:
    """The text that a prompt ends with, behind which the reply begins."""
    probe = [{"role": "user", "content": "-"}]
    without = tokenizer.apply_chat_template(probe, tokenize=False)
    whole = tokenizer.apply_chat_template(probe, tokenize=False, add_generation_prompt=True)
    begin: str = whole.removeprefix(without)
    if not begin or begin == whole:
        raise ValueError("the chat template does not end a prompt with the begin of a reply")
    return begin
