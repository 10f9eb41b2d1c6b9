"""Atomic appends of lines to a file."""

from __future__ import annotations

import os


def append_line(file: int, line: bytes) -> None:
    """Append `line` completely, or append nothing and raise OSError; `file` was opened with
    O_APPEND.
    """
    done = os.write(file, line)
    if done == len(line):
        return
    # A disk that fills up accepts a part of the line and reports the reason on the next write.
    start = os.lseek(file, 0, os.SEEK_END) - done
    try:
        while done < len(line):
            done += os.write(file, line[done:])
    except OSError:
        os.ftruncate(file, start)
        raise
