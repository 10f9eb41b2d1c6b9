"""The files of one folder of a task."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from repl_env.tasks.task_errors import TaskError

EVALUATOR_FILE = "evaluate.py"  # in the folder of the evaluator: the code of the evaluation
MAX_FOLDER_BYTES = 64 << 20  # of all files of a folder: they are held in memory


def read_folder(
    task_name: str, directory: Path, folder: str, without: Collection[str] = ()
) -> dict[str, bytes]:
    """Return the files of `directory / folder` by their paths in it, except the paths `without`.

    Raises:
        TaskError: naming the task; a file is a link, or the folder exceeds `MAX_FOLDER_BYTES`.
    """
    root = directory / folder
    bytes_left = MAX_FOLDER_BYTES
    files: dict[str, bytes] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            raise TaskError(f"{task_name}: {folder}/{name} is a link; put the file there")
        if not path.is_file() or "__pycache__" in path.parts or name in without:
            continue
        bytes_left -= path.stat().st_size
        if bytes_left < 0:
            raise TaskError(f"{task_name}: {folder}/ has more than {MAX_FOLDER_BYTES >> 20} MiB")
        files[name] = path.read_bytes()
    return files
