"""Lines that are appended to a file: whole, or not at all."""

from __future__ import annotations

import os


def append_line(file: int, line: bytes) -> None:
    """All of `line`, or nothing of it and an OSError. `file` was opened with O_APPEND."""
    done = os.write(file, line)
    if done == len(line):
        return
    # A disk that runs full takes a part, and says why only when it is asked again.
    start = os.lseek(file, 0, os.SEEK_END) - done
    try:
        while done < len(line):
            done += os.write(file, line[done:])
    except OSError:
        os.ftruncate(file, start)
        raise
