"""`Transcript`: the conversation of one run, kept within a length.

The session keeps what old turns made; the conversation needs only what the model must still read.
So when it grows too long, the oldest turns are shown in short: the code stays, what it printed
goes, and then the turns go altogether. What is left is cut far enough that the prompt only grows
for many turns, because endpoints cache what prompts begin with.

A turn costs what it adds: its length is added to that of the conversation, its messages to the list
of those that are shown, and only what is new is compared with what was there before. The whole is
gone through when it is cut, and when it is measured in another way than by characters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from repl_env.interfaces import Message
from repl_env.parsing.code_blocks import find_code

# The length that a cut conversation has, as a part of the most that it may have.
_CUT_TO = 0.5
# Turns at the end that are never cut: what the model is at work on.
_WHOLE_TURNS = 2

Measure = Callable[[Sequence[Message]], int]


@dataclass(frozen=True, slots=True)
class TranscriptWindow:
    """What the model is shown: `messages`, of which the first `kept` were there before."""

    messages: tuple[Message, ...]
    kept: int

    @property
    def added(self) -> tuple[Message, ...]:
        """The messages that were not there before."""
        return self.messages[self.kept :]


@dataclass
class _Turn:
    reply: str
    report: str
    short: str  # what stands for the report when the turn is old
    level: int = 0  # 0: whole, 1: in short, 2: left out

    def messages(self, level: int) -> Sequence[Message]:
        if level == 0:
            return _said(self.reply, self.report)
        return self._in_short if level == 1 else ()

    @cached_property
    def _in_short(self) -> tuple[Message, ...]:
        code = "\n".join(f"```repl\n{block}\n```" for block in find_code(self.reply).codes)
        return _said(code or "(no code)", self.short)


class Transcript:
    """The conversation of one run.

    Args:
        opening: the messages before the first turn; the last one is the user's.
        limit: the most that a prompt may have, as `measure` counts it.
        measure: by default characters. Another one is asked about the whole prompt in each turn.
    """

    def __init__(
        self, opening: Sequence[Message], limit: int, measure: Measure | None = None
    ) -> None:
        self._opening = list(opening)
        self._turns: list[_Turn] = []
        self._limit = limit
        self._measure = measure
        self._shown = list(opening)  # what the next prompt has, unless it is too long
        self._characters = characters(opening)
        self._seen: list[Message] = []
        self._same = 0  # messages of `_shown` that are known to begin `_seen`

    def add(self, reply: str, report: str, short: str) -> None:
        """A turn is over: what the model wrote, what it is told of it, and that in short."""
        self._turns.append(_Turn(reply, report, short))
        self._shown += _said(reply, report)
        self._characters += len(reply) + len(report)

    def follow(self, text: str) -> None:
        """The user speaks on, after the last report or the opening."""
        more = f"\n\n{text}"
        if self._turns:
            self._turns[-1].report += more
        else:
            self._opening[-1] = _with(self._opening[-1], more)
        self._shown[-1] = _with(self._shown[-1], more)
        self._characters += len(more)
        self._same = min(self._same, len(self._shown) - 1)

    def prompt(self) -> TranscriptWindow:
        """What the model is to be shown now."""
        length = self._characters if self._measure is None else self._measure(self._shown)
        if length > self._limit:
            self._cut()
        for before, now in zip(self._seen[self._same :], self._shown[self._same :], strict=False):
            if before != now:
                break
            self._same += 1
        return TranscriptWindow(tuple(self._shown), self._same)

    def replied(self, prompt: TranscriptWindow, reply: str) -> None:
        """The model answered the last prompt: from here on, both were there before."""
        self._seen = [*prompt.messages, {"role": "assistant", "content": reply}]
        self._same = len(prompt.messages)

    @property
    def seen(self) -> list[Message]:
        """The last prompt, with the reply to it."""
        return list(self._seen)

    def _cut(self) -> None:
        """Shorten turns, the oldest first, until the conversation has the length of a cut one."""
        goal = int(self._limit * _CUT_TO)
        measure = self._measure or characters
        old = max(0, len(self._turns) - _WHOLE_TURNS)
        # Step k has the first k old turns in short; behind them, step old + k leaves k of them out.
        steps = range(2 * old)
        step = bisect_left(steps, True, key=lambda step: measure(self._after(step)) <= goal)
        self._shown = self._after(step)
        for turn, level in zip(self._turns, self._levels(step), strict=True):
            turn.level = level
        self._characters = characters(self._shown)
        self._same = 0

    def _levels(self, step: int) -> list[int]:
        """The level of each turn after so many steps of a cut."""
        old = max(0, len(self._turns) - _WHOLE_TURNS)
        return [
            max(turn.level, (index < min(step, old)) + (index < step - old))
            for index, turn in enumerate(self._turns)
        ]

    def _after(self, step: int) -> list[Message]:
        """The messages after so many steps of a cut."""
        levels = self._levels(step)
        messages = list(self._opening)
        if left_out := levels.count(2):
            note = (
                f"(The first {left_out} turns are not shown any more. Variables that they made "
                "are still there; SHOW_VARS() lists them.)"
            )
            messages[-1] = _with(messages[-1], f"\n\n{note}")
        for turn, level in zip(self._turns, levels, strict=True):
            messages += turn.messages(level)
        return messages


def characters(messages: Sequence[Message]) -> int:
    """The characters of all messages."""
    return sum(len(str(message["content"])) for message in messages)


def _said(reply: str, report: str) -> tuple[Message, ...]:
    return {"role": "assistant", "content": reply}, {"role": "user", "content": report}


def _with(message: Message, more: str) -> Message:
    return {**message, "content": f"{message['content']}{more}"}
