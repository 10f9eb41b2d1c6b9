"""Whether the files of a workspace have changed since they were last looked at."""

from __future__ import annotations

import os
import stat

# As many as are kept (zygote/keeper.py); of more it is enough to know that they are.
_MOST_LOOKED_AT = 10_000

_Key = tuple[int, int, int, int, int]


class Files:
    """Of the directory `path`: what tells one content of it from another."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: dict[str, _Key] = {}

    def changed(self) -> bool:
        """Whether something is there that was not, or is not as it was, since the last call."""
        try:
            if not self._seen and not os.listdir(self._path):
                return False
        except OSError:  # out of descriptors, or the directory is not to be read
            return True
        seen, self._seen = self._seen, _look(self._path)
        return seen != self._seen


def _look(path: str) -> dict[str, _Key]:
    found: dict[str, _Key] = {}
    left = [path]
    while left and len(found) < _MOST_LOOKED_AT:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    found[entry.path] = (
                        status.st_mode,
                        status.st_ino,
                        status.st_size,
                        status.st_mtime_ns,
                        status.st_ctime_ns,
                    )
                    if stat.S_ISDIR(status.st_mode):
                        left.append(entry.path)
        except OSError:
            continue  # gone by now, or closed by its owner
    return found
