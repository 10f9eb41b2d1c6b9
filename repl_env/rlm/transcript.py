"""`Transcript`: the conversation of one run, kept within a length.

The session keeps the variables of old turns; the conversation needs only the messages that the
model must still read. A conversation that grows too long shows its oldest turns in short: the code
stays, the output goes, and later whole turns go. A cut leaves enough room that the prompt then only
grows for many turns, because endpoints cache the beginnings of prompts.

A turn costs as much as it adds: its length is added to that of the conversation, its messages to
the visible ones, and only new messages are compared with the previous prompt. The whole
conversation is traversed only for a cut, and for a measure other than characters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from repl_env.interfaces import Message
from repl_env.parsing.code_blocks import find_code

# The length of a cut conversation, as a fraction of the limit.
_CUT_TO = 0.5
# Turns at the end that are never cut: the model's present work.
_WHOLE_TURNS = 2

Measure = Callable[[Sequence[Message]], int]


@dataclass(frozen=True, slots=True)
class TranscriptWindow:
    """A prompt: `messages`, of which the first `kept` were in the previous one."""

    messages: tuple[Message, ...]
    kept: int

    @property
    def added(self) -> tuple[Message, ...]:
        """The messages that are new."""
        return self.messages[self.kept :]


@dataclass
class _Turn:
    reply: str
    report: str
    short: str  # replaces the feedback of an old turn
    level: int = 0  # 0: whole, 1: in short, 2: left out

    def messages(self, level: int) -> Sequence[Message]:
        if level == 0:
            return _turn_messages(self.reply, self.report)
        return self._in_short if level == 1 else ()

    @cached_property
    def _in_short(self) -> tuple[Message, ...]:
        code = "\n".join(f"```repl\n{block}\n```" for block in find_code(self.reply).codes)
        return _turn_messages(code or "(no code)", self.short)


class Transcript:
    """The conversation of one run.

    Args:
        initial_messages: the messages before the first turn; the last one is the user's.
        limit: the limit of a prompt, in units of `measure`.
        measure: by default characters. Another one is called with the whole prompt in each turn.
    """

    def __init__(
        self, initial_messages: Sequence[Message], limit: int, measure: Measure | None = None
    ) -> None:
        self._initial_messages = list(initial_messages)
        self._turns: list[_Turn] = []
        self._limit = limit
        self._measure = measure
        self._visible = list(initial_messages)  # the next prompt, unless it is too long
        self._characters = characters(initial_messages)
        self._seen: list[Message] = []
        self._known_count = 0  # messages of `_visible` that are known to begin `_seen`

    def add(self, reply: str, report: str, short: str) -> None:
        """Add a turn: the model's reply, the feedback, and its short form."""
        self._turns.append(_Turn(reply, report, short))
        self._visible += _turn_messages(reply, report)
        self._characters += len(reply) + len(report)

    def append_text(self, text: str) -> None:
        """Append text to the user's last message."""
        addition = f"\n\n{text}"
        if self._turns:
            self._turns[-1].report += addition
        else:
            self._initial_messages[-1] = _with_text(self._initial_messages[-1], addition)
        self._visible[-1] = _with_text(self._visible[-1], addition)
        self._characters += len(addition)
        self._known_count = min(self._known_count, len(self._visible) - 1)

    def prompt(self) -> TranscriptWindow:
        """Return the next prompt of the model."""
        length = self._characters if self._measure is None else self._measure(self._visible)
        if length > self._limit:
            self._cut()
        for before, now in zip(
            self._seen[self._known_count :], self._visible[self._known_count :], strict=False
        ):
            if before != now:
                break
            self._known_count += 1
        return TranscriptWindow(tuple(self._visible), self._known_count)

    def add_reply(self, prompt: TranscriptWindow, reply: str) -> None:
        """Record the reply to the last prompt: from here on, both are known messages."""
        self._seen = [*prompt.messages, {"role": "assistant", "content": reply}]
        self._known_count = len(prompt.messages)

    @property
    def seen(self) -> list[Message]:
        """The last prompt, with the reply to it."""
        return list(self._seen)

    def _cut(self) -> None:
        """Shorten turns, the oldest first, until the conversation has the length of a cut one."""
        target = int(self._limit * _CUT_TO)
        measure = self._measure or characters
        old = max(0, len(self._turns) - _WHOLE_TURNS)
        # Step k has the first k old turns in short; after that, step old + k leaves k of them out.
        steps = range(2 * old)
        step = bisect_left(steps, True, key=lambda step: measure(self._after(step)) <= target)
        self._visible = self._after(step)
        for turn, level in zip(self._turns, self._levels(step), strict=True):
            turn.level = level
        self._characters = characters(self._visible)
        self._known_count = 0

    def _levels(self, step: int) -> list[int]:
        """Return the level of each turn after this number of steps."""
        old = max(0, len(self._turns) - _WHOLE_TURNS)
        return [
            max(turn.level, (index < min(step, old)) + (index < step - old))
            for index, turn in enumerate(self._turns)
        ]

    def _after(self, step: int) -> list[Message]:
        """Return the messages after this number of steps."""
        levels = self._levels(step)
        messages = list(self._initial_messages)
        if left_out := levels.count(2):
            note = (
                f"(The first {left_out} turns are not shown any more. Variables that they made "
                "are still there; SHOW_VARS() lists them.)"
            )
            messages[-1] = _with_text(messages[-1], f"\n\n{note}")
        for turn, level in zip(self._turns, levels, strict=True):
            messages += turn.messages(level)
        return messages


def characters(messages: Sequence[Message]) -> int:
    """Return the characters of all messages."""
    return sum(len(str(message["content"])) for message in messages)


def _turn_messages(reply: str, report: str) -> tuple[Message, ...]:
    return {"role": "assistant", "content": reply}, {"role": "user", "content": report}


def _with_text(message: Message, addition: str) -> Message:
    return {**message, "content": f"{message['content']}{addition}"}
