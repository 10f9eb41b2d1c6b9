"""Untrusted text on a terminal: control sequences are shown, not obeyed.

Output of a session can hold any byte, among them sequences that set the clipboard, the title or the
keys of a terminal, or have it type something. Colours pass, as do tabs, line ends, carriage returns
and backspaces (bars of progress are made of them); other control characters become visible.
"""

from __future__ import annotations

import re

RESET = "\x1b[0m"

# A colour or a weight: Select Graphic Rendition of ECMA-48, 8.3.117.
_COLOUR = r"\x1b\[[0-9;:]{0,32}m"
_STEERS = re.compile(rf"({_COLOUR})|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_BEGUN = re.compile(r"\x1b(\[[0-9;:]{0,32})?\Z")
# Letters that turn the reading direction make a line read as what it is not.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]+")


class TerminalText:
    """One stream's text made harmless, in whatever pieces it comes."""

    def __init__(self) -> None:
        self._begun = ""
        self._coloured = False

    def feed(self, text: str) -> str:
        """Return `text` as it may be written, without a possible beginning of a colour sequence."""
        text = self._begun + text
        begun = _BEGUN.search(text)
        self._begun = begun[0] if begun else ""
        return _STEERS.sub(self._shown, text[: len(text) - len(self._begun)])

    def finish(self) -> str:
        """Return the rest at the end of a stream or a cell, and the end of its colours."""
        rest = _STEERS.sub(self._shown, self._begun)
        reset = RESET if self._coloured else ""
        self._begun, self._coloured = "", False
        return rest + reset

    def _shown(self, match: re.Match[str]) -> str:
        if match[1]:
            self._coloured = True
            return match[1]
        return visible(match[0])


def visible(control: str) -> str:
    """Return a control character as `^[` or `\\x9b`."""
    code = ord(control)
    if code < 0x20 or code == 0x7F:
        return f"^{chr(code ^ 0x40)}"
    return f"\\x{code:02x}"


def harmless(text: str) -> str:
    """Return a whole text as it may be written to a terminal."""
    made = TerminalText()
    return made.feed(text) + made.finish()


def one_line(text: str, length: int = 200) -> str:
    """Return the beginning of `text` as one line without control characters."""
    line = " ".join(_CONTROLS.sub(" ", text[: 4 * length]).split())
    return line if len(line) <= length else f"{line[: length - 1]}…"
