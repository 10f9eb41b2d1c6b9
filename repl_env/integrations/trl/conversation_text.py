"""The text of a chat template between a reply and the next one."""

from __future__ import annotations

from typing import Any

# Stands for a reply while the text behind it is looked for: no template changes or splits it.
_REPLY = "7dbd6c2e9f5b4a60"


class BetweenReplies:
    """Token ids from the end of a reply to the begin of the next, with a message in between.

    Args:
        tokenizer: with a chat template.
        role: of the message; None: "tool", where the template renders that, else "user".
        options: of the chat template.

    Raises:
        ValueError: the template renders no reply, or not the role.
    """

    def __init__(self, tokenizer: Any, role: str | None, options: dict[str, Any]) -> None:
        self._tokenizer, self._options = tokenizer, options
        self._role = self._role_of(role)

    def ids(self, reply: list[int], message: str) -> list[int]:
        """Return the tokens that follow `reply`, which may already end with its end token."""
        text = self._behind(self._role, message)
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
