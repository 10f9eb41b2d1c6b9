# Runs in a session: which of the distributions `_wanted` it lacks, and whether it sees `_folders`.
# `task.toml` is a file that each folder of tasks has, in itself or one level below.
import glob as _glob
import importlib.metadata as _metadata
import os as _os


def _is_absent(name):
    try:
        _metadata.version(name)
    except _metadata.PackageNotFoundError:
        return True
    return False


_absent = [name for name in _wanted if _is_absent(name)]
_seen = any(
    _glob.glob(_os.path.join(_glob.escape(folder), "**", "task.toml"), recursive=True)
    for folder in _folders
)
