"""`space_files`: the files of a Space, from those in `files/`."""

from __future__ import annotations

import json
from pathlib import Path
from string import Template

from .space_config import SpaceConfig
from .wheel_packer import packed

Files = dict[str, bytes]

_FILES = Path(__file__).parent / "files"
_MANIFEST = Path(__file__).parents[2] / "openenv.yaml"

# Those that are made of a file `NAME.in` with values, those that are copied, and the wheels, of
# which a Space has one.
FILLED = ("README.md", "Dockerfile", "pyproject.toml")
COPIED = (
    "__init__.py",
    "client.py",
    "models.py",
    "wheel_backend.py",
    "requirements.lock",
    _MANIFEST.name,
)
WHEELS = "openenv_repl_env-*.whl"


class SpaceFile(Template):
    """A file with values in it, as `@{name}`: `$` belongs to shells."""

    delimiter = "@"


def space_files(plan: SpaceConfig) -> Files:
    """The files by their names: all that is in the folder of a Space.

    Raises:
        PackingError: no wheel can be made here.
        OSError: a file cannot be read.
    """
    wheel, data = packed()
    values = _values(plan, wheel)
    files = {name: _filled(name, values | _access(name, plan, values)) for name in FILLED}
    copied = {name: _path(name).read_bytes() for name in COPIED}
    return {name: text.encode() for name, text in files.items()} | copied | {wheel: data}


def _values(plan: SpaceConfig, wheel: str) -> dict[str, str]:
    return {
        "title": json.dumps(plan.title, ensure_ascii=False),  # which YAML reads likewise
        "title_text": plan.title,
        "base": plan.base,
        "repo": plan.repo or "OWNER/NAME",
        "host": plan.host,
        "wheel": wheel,
        "version": wheel.split("-")[1],
        "base_path": "/",  # the playground, which asks its visitor for a key if one is needed
    }


def _access(name: str, plan: SpaceConfig, values: dict[str, str]) -> dict[str, str]:
    """The part of a file that says who may use the Space, if it has one."""
    part = f"{'keyed' if plan.keyed else 'public'}.{name}"
    return {"access": _filled(part, values)} if _path(f"{part}.in").exists() else {}


def _filled(name: str, values: dict[str, str]) -> str:
    return SpaceFile(_path(f"{name}.in").read_text(encoding="utf-8")).substitute(values)


def _path(name: str) -> Path:
    return _MANIFEST if name == _MANIFEST.name else _FILES / name
