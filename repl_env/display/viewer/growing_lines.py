"""`GrowingLines`: the whole lines of a file that may still grow, each once, with their places."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Final

from repl_env.display.viewer.named_files import NamedFile

# A longer line is told to be too long: an event has no more than outputs and prompts of a turn.
LONGEST_LINE: Final = 64 * 2**20


class GrowingLines:
    """Lines of `file` from where the last call ended.

    Attributes:
        generation: counts how often the file was found shorter, or another one, and begun anew.
        size: of the file at the last call, in bytes.
        more: whether the last call ended before the last whole line.
    """

    def __init__(self, file: NamedFile) -> None:
        self.file = file
        self.generation = 0
        self.size = 0
        self.more = True
        self._offset = 0
        self._inode: int | None = None

    def read(self, seconds: float) -> Iterator[tuple[int, bytes]]:
        """Yield the place in bytes and the content of each further line, for about `seconds`.

        The content has no newline. It is empty for a line that is longer than `LONGEST_LINE`.

        Raises:
            OSError: the file cannot be read.
        """
        until = time.monotonic() + seconds
        with self.file.open() as file:
            self._restart_if_replaced(os.fstat(file.fileno()))
            file.seek(self._offset)
            while True:
                line = file.readline(LONGEST_LINE)
                while len(line) >= LONGEST_LINE and not line.endswith(b"\n"):
                    skipped = file.readline(LONGEST_LINE)
                    line = b"\n" if skipped.endswith(b"\n") else b"" if not skipped else line
                if not line.endswith(b"\n"):
                    self.more = False
                    return
                at, self._offset = self._offset, file.tell()
                yield at, line[:-1]
                if time.monotonic() > until:
                    self.more = True
                    return

    def _restart_if_replaced(self, now: os.stat_result) -> None:
        if now.st_size < self._offset or self._inode not in {None, now.st_ino}:
            self.generation += 1
            self._offset = 0
        self._inode, self.size = now.st_ino, now.st_size
