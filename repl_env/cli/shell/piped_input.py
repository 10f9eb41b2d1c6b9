"""The lines of a pipe or a file as Python reads source: their encoding, a BOM, how they end."""

from __future__ import annotations

import codecs
import io
import os
import re
import select
import tokenize
from collections.abc import Iterator
from typing import BinaryIO

_READ = 1 << 16
# Seconds without more input after which the writer is taken to wait for an answer. A writer
# of a whole file makes no such pause, and a program that waits does not mind this one.
_PAUSE = 0.2
# A first line after which the second may name the encoding.
_SAYS_NOTHING = re.compile(rb"[ \t\f]*(?:[#\r\n]|\Z)")


class PipedLines:
    """The lines of `stream` as text that ends in a line feed, each as soon as it is there.

    A BOM is dropped. The encoding is the one that the first two lines name as Python source does,
    else UTF-8; bytes that are no text in it become replacement characters.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._whole: list[bytes] = []  # lines that were read, the last one first
        self._begun: list[bytes] = []  # pieces of the line after them
        try:
            self._fd: int | None = stream.fileno()
        except io.UnsupportedOperation:  # it is in memory, and all of it is there
            self._fd = None

    def __iter__(self) -> Iterator[str]:
        first = self._line()
        marked = first.startswith(codecs.BOM_UTF8)
        ahead = [first.removeprefix(codecs.BOM_UTF8)]
        if _SAYS_NOTHING.match(ahead[0]):
            ahead.append(self._line())
        encoding = "utf-8" if marked else _encoding(ahead)
        for line in ahead:
            yield from _texts(line, encoding)
        while line := self._line():
            yield from _texts(line, encoding)

    def paused(self) -> bool:
        """Return whether the pipe is empty, and stays so for a while."""
        if self._fd is None or self._whole or self._begun:
            return False
        return not select.select([self._fd], [], [], _PAUSE)[0]

    def _line(self) -> bytes:
        """Return the next line, b"" at the end."""
        while not self._whole:
            data = self._stream.read(_READ) if self._fd is None else os.read(self._fd, _READ)
            if not data:
                last, self._begun = b"".join(self._begun), []
                return last
            first, *others = data.split(b"\n")
            self._begun.append(first)
            for line in others:
                self._whole.append(b"".join(self._begun) + b"\n")
                self._begun = [line] if line else []
            self._whole.reverse()
        return self._whole.pop()


def _encoding(first_lines: list[bytes]) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(iter(first_lines).__next__)
        b"\n".decode(encoding)
    except (SyntaxError, LookupError, UnicodeError):  # unknown, or none of text
        return "utf-8"
    return encoding


def _texts(line: bytes, encoding: str) -> list[str]:
    """The lines in a line: a carriage return ends one as well."""
    text = line.decode(encoding, "replace").replace("\r\n", "\n").replace("\r", "\n")
    return io.StringIO(text, newline="\n").readlines()
