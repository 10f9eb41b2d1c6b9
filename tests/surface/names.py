"""Read and write docs/public_names.toml, the list of every public name and its signature.

A table is a public module. Its keys are the module's names and the public attributes of its
classes; a value is the kind and the signature. A class that two modules export is described in the
first of them, and the second says "same as". The order of the modules is kept.
"""

from __future__ import annotations

import json
import tomllib
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = ROOT / "docs" / "public_names.toml"
HEAD = """\
# Every public name of repl-env, by module, with its signature. Whatever is not here is internal.
# Written by `python -m tests.surface --write` from the `__all__` of these modules, as is
# docs/reference.md. A table without names makes a module public.
"""
# Modules that need an extra, and a library that only this extra installs. An integration needs the
# library of its name.
NEEDS = {"repl_env.openenv": "openenv", "repl_server": "prometheus_client"}
INTEGRATIONS = "repl_env.integrations."
# Begins the description of a name that an earlier module has.
SAME = "same as "

Surface = dict[str, dict[str, str]]


def listed() -> Surface:
    """Return the list as it is written."""
    return tomllib.loads(LIST.read_text(encoding="utf-8"))


def importable(module: str) -> bool:
    """Whether this interpreter has the extra that `module` needs."""
    needed = [library for prefix, library in NEEDS.items() if module.startswith(prefix)]
    if module.startswith(INTEGRATIONS):
        needed.append(module.removeprefix(INTEGRATIONS).partition(".")[0])
    return all(find_spec(library) is not None for library in needed)


def written(surface: Surface) -> str:
    """Return the text of the list."""
    lines = [HEAD]
    for module, names in surface.items():
        lines.append(f"[{json.dumps(module)}]")
        lines += [f"{_key(name)} = {json.dumps(text)}" for name, text in names.items()]
        lines.append("")
    return "\n".join(lines)


def _key(name: str) -> str:
    return json.dumps(name) if "." in name else name
