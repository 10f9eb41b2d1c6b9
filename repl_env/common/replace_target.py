"""The path that a completely written file replaces."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def replace_target(path: str | os.PathLike[str]) -> Path:
    """Return the path that renaming a file to `path` replaces: for a link, its target.

    As root, a rename would replace even a device such as /dev/null for the whole system.

    Raises:
        OSError: a device, a pipe or a socket is there.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path))
    return target
