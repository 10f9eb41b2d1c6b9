"""`make_space`, `read_space`: the folder of a Space."""

from __future__ import annotations

from pathlib import Path

from .space_config import SpaceConfig
from .space_contents import COPIED, FILLED, WHEELS, Files, space_files


def make_space(folder: Path, plan: SpaceConfig, *, replace: bool = False) -> list[Path]:
    """Write a Space into `folder`, which is made if it is not there; the files.

    `replace`: write the files of a Space anew that are there; other files stay.

    Raises:
        FileExistsError: `folder` is not empty, and `replace` is False.
        PackingError: no wheel can be made here; nothing was written.
        OSError: a file cannot be read or written; of what was, nothing is left.
    """
    if folder.exists() and any(folder.iterdir()) and not replace:
        raise FileExistsError(f"{folder} is not empty")
    files = space_files(plan)
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    try:
        for name, data in files.items():
            written.append(folder / name)
            _write(folder / name, data)
    except OSError:
        for file in written:
            file.unlink(missing_ok=True)
        raise
    for old in set(folder.glob(WHEELS)) - set(written):
        old.unlink()
    return written


def read_space(folder: Path) -> Files:
    """The files that make a Space, and no others of `folder`.

    Raises:
        FileNotFoundError: naming one that is missing.
        ValueError: there is more than one wheel.
        OSError: one cannot be read.
    """
    wheels = [file.name for file in folder.glob(WHEELS)]
    if len(wheels) > 1:
        raise ValueError(f"{folder} carries {len(wheels)} wheels: make it anew")
    files: Files = {}
    for name in (*FILLED, *COPIED, *(wheels or [WHEELS])):
        file = folder / name
        if file.is_symlink() or not file.is_file():  # a link may lead to a secret
            raise FileNotFoundError(f"{folder} is no Space: {name} is missing")
        files[name] = file.read_bytes()
    return files


def _write(file: Path, data: bytes) -> None:
    file.unlink(missing_ok=True)  # not through a link to somewhere else
    file.write_bytes(data)
