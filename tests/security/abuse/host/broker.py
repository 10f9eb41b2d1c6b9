"""The host's side of `llm_query` in the corpus: what an embedder has to do, at its shortest.

The engine carries calls and does not judge them. The size of a prompt and the number of calls are
the function's own to check, before anything is spent.
"""

from __future__ import annotations

import threading

_MOST_CALLS = 200
_MOST_CHARACTERS = 1 << 20


class Broker:
    """Counts the calls it accepted."""

    def __init__(self) -> None:
        self.accepted = 0
        self._lock = threading.Lock()

    def llm_query(self, prompt: str, **options: object) -> str:
        """An answer, for `_MOST_CALLS` prompts of at most `_MOST_CHARACTERS`."""
        if not isinstance(prompt, str) or len(prompt) > _MOST_CHARACTERS:
            raise ValueError(f"a prompt is a text of at most {_MOST_CHARACTERS:,} characters")
        if options:
            raise ValueError(f"unknown options: {', '.join(map(str, options))}")
        with self._lock:
            if self.accepted >= _MOST_CALLS:
                raise ValueError("the budget of calls is used up")
            self.accepted += 1
        return "an answer"
