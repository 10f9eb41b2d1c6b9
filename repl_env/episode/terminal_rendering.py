"""Text as a terminal finally shows it: the last state of a progress bar, all else as written.

The cursor movements of progress bars are rendered: carriage return, backspace, and of the escape
sequences of ECMA-48 movements within and between lines and erasures to the end of a line or of the
text. A line without movements stays as it was written, with a carriage return before its line feed
and with colours. Absolute positioning and clearing of the screen are not rendered: they would hide
output that nothing has replaced.

There is no width: lines do not wrap, and each character takes one column. The cursor moves neither
beyond the end of a line nor below the last line, so that the text does not grow. The work is linear
in the text and bounded; beyond the bounds the text stays as it was written.
"""

from __future__ import annotations

import re

# A carriage return with text behind it, and no line feed.
_RETURN = re.compile(r"\r[^\r\n]")
# Control sequences, and titles and links, which take no room on the screen.
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]{0,32}[ -/]{0,8}[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[()][0-9A-Z]|[78=>])"
)
_MOVE = re.compile(r"\x08|\x1b\[[0-9]{0,9}[A-GJK]")
# Each alternative begins with a literal character, which speeds up the search.
_TOKEN = re.compile(rf"(\r\r*|\x08\x08*|{_ESCAPE.pattern})")

# More than any text has lines or columns.
_DIGITS = 9

# A state of a line matters only if no later one is as long, so older states do not.
_STATES = 1_000
# Bounds of the host's work on one stream: states of lines that only carriage returns redraw, with
# their escapes, and cursor movements of any kind, each some 50 ms; characters that are copied as
# lines change, 10 ms.
_MAX_STATES = 1 << 18
_STATES_OF_LINE = 6  # states that take as long as a line does in addition to its own cost
_MAX_MOVES = 1 << 16
_MAX_COPIED = 1 << 26


def as_shown(text: str) -> str:
    """Return `text` as a terminal shows it once all of it is written."""
    if not ("\r" in text or "\x08" in text or "\x1b" in text):
        return text
    begin = _last_moves(text)
    if _MOVE.search(text, begin):
        return _screened(text, begin)
    return _overlaid(text) if _RETURN.search(text) else _ended(text)


def _last_moves(text: str) -> int:
    """Return the position from which on there are at most `_MAX_MOVES` movements."""
    moves = text.count("\r") + text.count("\x08") + text.count("\x1b") + text.count("\n")
    if moves <= _MAX_MOVES or len(text) <= _MAX_MOVES:
        return 0
    begin = len(text) - _MAX_MOVES
    return text.find("\n", begin) + 1 or begin


def _ended(text: str) -> str:
    """Return `text` without carriage returns at its very end."""
    return text.rstrip("\r")


def _overlaid(text: str) -> str:
    """Return `text` with each line's states merged; the last lines first, up to a bound."""
    text = _ended(text)
    pieces: list[str] = []
    end, states_left = len(text), _MAX_STATES
    while states_left > 0 and (at := text.rfind("\r", 0, end)) >= 0:
        begin = text.rfind("\n", 0, at) + 1
        stop = text.find("\n", at, end)
        stop = end if stop < 0 else stop
        line = text[begin:stop]
        states = line.rsplit("\r", _STATES)[-_STATES:]
        states_left -= _STATES_OF_LINE + len(states) + sum(state.count("\x1b") for state in states)
        if states_left < 0:
            break
        pieces += [text[stop:end], _overlay(line, states)]
        end = begin
    return "".join(reversed([*pieces, text[:end]]))


def _overlay(line: str, states: list[str]) -> str:
    """Return the visible rest of `states`, each written over the last.

    `line` if only one is text.
    """
    if not any(states[1:]):
        return line
    if "\x1b" in line:
        states = [_ESCAPE.sub("", state) for state in states]
    shown = ""
    for state in reversed(states):
        if len(state) > len(shown):
            shown += state[len(shown) :]
    return shown.rstrip(" ")


def _screened(text: str, begin: int) -> str:
    """Return `text` with all movements from `begin` on made, or none if that copies too much."""
    screen = _Screen()
    try:
        for number, line in enumerate(_ended(text[begin:]).split("\n")):
            if number:
                screen.feed_line()
            screen.write_line(line)
    except _TooMuch:
        return text
    return text[:begin] + screen.text()


class _TooMuch(Exception):
    """The bound on copied characters is exceeded."""


class _Screen:
    """Lines and a cursor. A redrawn line holds no escapes; other lines stay as they came."""

    def __init__(self) -> None:
        self._lines = [""]
        self._redrawn: set[int] = set()
        self._row = self._column = 0
        self._copied = 0

    def text(self) -> str:
        """All lines; redrawn ones without the blanks that bars erase with."""
        for row in self._redrawn:
            if row < len(self._lines):
                self._lines[row] = self._lines[row].rstrip(" ")
        return "\n".join(self._lines)

    def feed_line(self) -> None:
        """Go to the next line, and make it if there is none."""
        self._row, self._column = self._row + 1, 0
        if self._row == len(self._lines):
            self._lines.append("")
            self._redrawn.discard(self._row)  # of an erased line

    def write_line(self, text: str) -> None:
        """Write `text`, which has no line feed, with its movements."""
        if not self._lines[self._row] and not _MOVE.search(text) and not _RETURN.search(text):
            self._lines[self._row] = text
            self._column = len(text)
            return
        for index, token in enumerate(_TOKEN.split(text.rstrip("\r"))):
            if index % 2:
                self._obey(token)
            elif token:
                self._write(token)

    def _obey(self, control: str) -> None:
        if control[0] == "\r":
            self._column = 0
        elif control[0] == "\x08":
            self._column = max(0, self._column - len(control))
        elif control[1] == "[":
            number = control[2:-1][:_DIGITS]
            self._move(control[-1], int(number) if number.isdecimal() else None)

    def _line(self) -> str:
        """Return the line of the cursor, redrawn from here on."""
        row = self._row
        if row not in self._redrawn:
            self._redrawn.add(row)
            line = self._lines[row] = _ESCAPE.sub("", self._lines[row]).rstrip("\r")
            self._column = min(self._column, len(line))
        self._copied += len(self._lines[row])
        if self._copied > _MAX_COPIED:
            raise _TooMuch
        return self._lines[row]

    def _write(self, text: str) -> None:
        line, column = self._line(), min(self._column, len(self._lines[self._row]))
        self._lines[self._row] = line[:column] + text + line[column + len(text) :]
        self._column = column + len(text)

    def _move(self, final: str, number: int | None) -> None:
        count = max(1, number or 1)
        if final in "AF":
            self._row = max(0, self._row - count)
        elif final in "BE":
            self._row = min(len(self._lines) - 1, self._row + count)
        elif final == "C":
            self._column += min(count, len(self._line()))
        elif final == "D":
            self._column = max(0, self._column - count)
        elif final == "G":
            self._column = count - 1
        elif final in "KJ":
            self._erase(final, number or 0)
        if final in "EF":
            self._column = 0

    def _erase(self, final: str, number: int) -> None:
        """Erase to the end of the line, or all of it (K 2); or to the end of the text (J)."""
        if number == 0:
            self._lines[self._row] = self._line()[: self._column]
            if final == "J":
                del self._lines[self._row + 1 :]
        elif number == 2 and final == "K":
            self._line()
            self._lines[self._row] = ""
            self._column = 0
