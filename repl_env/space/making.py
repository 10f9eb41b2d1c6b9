"""`make_space`: the folder of a Space, from the files in `files/`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from string import Template

from .plan import Plan
from .wheel import pack_wheel

_FILES = Path(__file__).parent / "files"
_MANIFEST = Path(__file__).parents[1] / "openenv.yaml"
WHEELS = "openenv_repl_env-*.whl"

# Files of a Space that are made of a file `NAME.in` with values, and those that are copied.
FILLED = ("README.md", "Dockerfile", "pyproject.toml")
COPIED = ("__init__.py", "client.py", "models.py", "wheel_backend.py")


class SpaceFile(Template):
    """A file with values in it, as `@{name}`: `$` belongs to shells."""

    delimiter = "@"


def make_space(folder: Path, plan: Plan, *, replace: bool = False) -> None:
    """Write a Space into `folder`, which is made if it is not there.

    `replace`: write the files of a Space anew that are there; other files stay.

    Raises:
        FileExistsError: `folder` is not empty, and `replace` is False.
        PackingError: no wheel can be made here.
        OSError: a file cannot be read or written.
    """
    if folder.exists() and any(folder.iterdir()) and not replace:
        raise FileExistsError(f"{folder} is not empty")
    for old in carried(folder):
        old.unlink()
    wheel = pack_wheel(folder)
    values = _values(plan, wheel)
    for name in FILLED:
        _write(folder / name, _filled(name, values | _access(name, plan, values)))
    for name in COPIED:
        _write(folder / name, (_FILES / name).read_text(encoding="utf-8"))
    _write(folder / _MANIFEST.name, _MANIFEST.read_text(encoding="utf-8"))


def carried(folder: Path) -> list[Path]:
    """The wheels in the folder of a Space: one, if it is whole."""
    return sorted(folder.glob(WHEELS))


def files_of(folder: Path) -> Iterator[Path]:
    """The files that make a Space.

    Raises:
        FileNotFoundError: naming one that is missing.
        ValueError: there is more than one wheel.
    """
    for name in (*FILLED, *COPIED, _MANIFEST.name):
        file = folder / name
        if not _is_plain(file):
            raise FileNotFoundError(f"{folder} is no Space: {name} is missing")
        yield file
    wheels = list(filter(_is_plain, carried(folder)))
    if not wheels:
        raise FileNotFoundError(f"{folder} is no Space: it carries no wheel")
    if len(wheels) > 1:
        raise ValueError(f"{folder} carries {len(wheels)} wheels: make it anew")
    yield wheels[0]


def _is_plain(file: Path) -> bool:
    """Whether it is a file, and no link to one elsewhere."""
    return file.is_file() and not file.is_symlink()


def _values(plan: Plan, wheel: Path) -> dict[str, str]:
    return {
        "title": json.dumps(plan.title, ensure_ascii=False),  # which YAML reads likewise
        "title_text": plan.title,
        "base": plan.base,
        "repo": plan.repo or "OWNER/NAME",
        "host": plan.host,
        "wheel": wheel.name,
        "version": wheel.name.split("-")[1],
        # A page that a visitor of the Space's page can see: without a key there is one only.
        "base_path": "/health" if plan.keyed else "/docs",
    }


def _access(name: str, plan: Plan, values: dict[str, str]) -> dict[str, str]:
    """The part of a file that says who may use the Space, if it has one."""
    part = f"{'keyed' if plan.keyed else 'public'}.{name}"
    return {"access": _filled(part, values)} if (_FILES / f"{part}.in").exists() else {}


def _filled(name: str, values: dict[str, str]) -> str:
    text = (_FILES / f"{name}.in").read_text(encoding="utf-8")
    return SpaceFile(text).substitute(values)


def _write(file: Path, text: str) -> None:
    file.unlink(missing_ok=True)  # not through a link to somewhere else
    file.write_text(text, encoding="utf-8")
