"""`Transcript`: the conversation of one run, kept within a length.

The session keeps what old turns made; the conversation needs only what the model must still read.
So when it grows too long, the oldest turns are shown in short: the code stays, what it printed
goes, and then the turns go altogether. What is left is cut far enough that the prompt only grows
for many turns, because endpoints cache what prompts begin with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from repl_env.interfaces import Message
from repl_env.parsing import extract_code_blocks

# The length that a cut conversation has, as a part of the most that it may have.
_CUT_TO = 0.5
# Turns at the end that are never cut: what the model is at work on.
_WHOLE_TURNS = 2

Measure = Callable[[Sequence[Message]], int]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is shown: `messages`, of which the first `kept` were there before."""

    messages: tuple[Message, ...]
    kept: int

    @property
    def added(self) -> tuple[Message, ...]:
        """The messages that were not there before."""
        return self.messages[self.kept :]


@dataclass(slots=True)
class _Turn:
    reply: str
    report: str
    short: str  # what stands for the report when the turn is old
    level: int = 0  # 0: whole, 1: in short, 2: left out

    def messages(self) -> list[Message]:
        if self.level == 2:
            return []
        reply, report = self.reply, self.report
        if self.level == 1:
            code = "\n".join(f"```repl\n{block}\n```" for block in extract_code_blocks(reply))
            reply, report = code or "(no code)", self.short
        return [{"role": "assistant", "content": reply}, {"role": "user", "content": report}]


class Transcript:
    """The conversation of one run.

    Args:
        opening: the messages before the first turn; the last one is the user's.
        limit: the most that a prompt may have, as `measure` counts it.
        measure: by default characters.
    """

    def __init__(
        self, opening: Sequence[Message], limit: int, measure: Measure | None = None
    ) -> None:
        self._opening = list(opening)
        self._turns: list[_Turn] = []
        self._limit = limit
        self._measure = measure or characters
        self._seen: list[Message] = []

    def add(self, reply: str, report: str, short: str) -> None:
        """A turn is over: what the model wrote, what it is told of it, and that in short."""
        self._turns.append(_Turn(reply, report, short))

    def follow(self, text: str) -> None:
        """The user speaks on, after the last report or the opening."""
        if self._turns:
            self._turns[-1].report += f"\n\n{text}"
        else:
            last = self._opening[-1]
            self._opening[-1] = {**last, "content": f"{last['content']}\n\n{text}"}

    def prompt(self) -> Prompt:
        """What the model is to be shown now."""
        messages = self._messages()
        if self._measure(messages) > self._limit:
            messages = self._cut()
        kept = 0
        for before, now in zip(self._seen, messages, strict=False):
            if before != now:
                break
            kept += 1
        return Prompt(tuple(messages), kept)

    def replied(self, prompt: Prompt, reply: str) -> None:
        """The model answered `prompt`: from here on, that and its answer were there before."""
        self._seen = [*prompt.messages, {"role": "assistant", "content": reply}]

    @property
    def seen(self) -> list[Message]:
        """The last prompt, with the reply to it."""
        return list(self._seen)

    def _cut(self) -> list[Message]:
        goal = int(self._limit * _CUT_TO)
        messages = self._messages()
        for level in (1, 2):
            for turn in self._turns[:-_WHOLE_TURNS]:
                if self._measure(messages) <= goal:
                    return messages
                turn.level = max(turn.level, level)
                messages = self._messages()
        return messages

    def _messages(self) -> list[Message]:
        messages = list(self._opening)
        if left_out := sum(turn.level == 2 for turn in self._turns):
            note = (
                f"(The first {left_out} turns are not shown any more. Variables that they made "
                "are still there; SHOW_VARS() lists them.)"
            )
            messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']}\n\n{note}"}
        for turn in self._turns:
            messages += turn.messages()
        return messages


def characters(messages: Sequence[Message]) -> int:
    """The characters of all messages."""
    return sum(len(str(message["content"])) for message in messages)
