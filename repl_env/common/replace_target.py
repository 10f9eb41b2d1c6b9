"""Which file a file that was written whole takes the place of."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def replace_target(path: str | os.PathLike[str]) -> Path:
    """The file that is replaced by renaming another to `path`: of a link, what it leads to.

    As root a device would be replaced as any file, /dev/null for all of the system.

    Raises:
        OSError: there is a device, a pipe or a socket.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path))
    return target
