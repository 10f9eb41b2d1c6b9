"""Stand-ins for policies: replies that are written down, in history mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensordict import TensorDict, lazy_stack
from torchrl.data.llm import History


def block(code: str) -> str:
    return f"```python\n{code}\n```"


def replied(td: Any, *replies: str) -> Any:
    """`td` with a reply of the assistant at the end of each row's conversation."""
    rows = td["history"].prompt.unbind(0)
    td["history"].full = lazy_stack(
        [
            lazy_stack([*row.unbind(0), History(role="assistant", content=reply)])
            for row, reply in zip(rows, replies, strict=True)
        ]
    )
    return td


class Scripted:
    """A policy that gives each row the reply that `write` gives for its conversation."""

    def __init__(self, write: Callable[[Sequence[str]], str]) -> None:
        self.write = write

    def __call__(self, td: Any) -> Any:
        rows = td["history"].prompt.unbind(0)
        return replied(td, *(self.write(list(row.content)) for row in rows))


def asked(*queries: str, **columns: Sequence[Any]) -> TensorDict:
    """Resets an environment."""
    return TensorDict({"query": list(queries), **columns}, batch_size=(len(queries),))


def texts(td: Any) -> list[list[str]]:
    """The contents of each row's conversation."""
    return [list(row.content) for row in td["history"].prompt.unbind(0)]


def roles(td: Any) -> list[list[str]]:
    """The roles of each row's conversation."""
    return [list(row.role) for row in td["history"].prompt.unbind(0)]
