"""`link`: ES modules as one script without imports, because browsers load no module from disk.

Each module becomes a function that returns its exports, after the modules that it imports. The
forms are those of our modules and of the vendored ones; another form is refused.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from typing import Final

_IMPORT: Final = re.compile(
    r'^import \{(?P<names>[^}]*)\} from "(?P<path>\.[^"]+)";$', re.MULTILINE
)
_EXPORT: Final = re.compile(
    r"^export (?=(?:async function|function\*?|class|const|let) (?P<name>\w+))", re.MULTILINE
)
# At the end of a vendored module, perhaps before the address of its source map.
_LIST: Final = re.compile(r"export\{(?P<names>[^}]*)\};?\s*(?://# sourceMappingURL=\S+)?\s*\Z")
_OTHER: Final = re.compile(r"^\s*(?:import|export)\b|\bimport\(", re.MULTILINE)


def link(entry: str, source_of: Callable[[str], str]) -> str:
    """Return the script that does what the module `entry` does.

    Args:
        source_of: returns the text of a module by its path.

    Raises:
        ValueError: modules import each other in a circle, or have a form that is not known.
    """
    functions: dict[str, str] = {}
    _add(entry, source_of, functions, ())
    return '"use strict";\n(() => {\n' + "".join(functions.values()) + "})();\n"


def _add(
    path: str,
    source_of: Callable[[str], str],
    functions: dict[str, str],
    importing: tuple[str, ...],
) -> None:
    if path in importing:
        raise ValueError(f"{path} imports itself by {', '.join(importing)}")
    text, names = source_of(path), []
    for found in _IMPORT.finditer(text):
        other = posixpath.normpath(posixpath.join(posixpath.dirname(path), found["path"]))
        if other not in functions:
            _add(other, source_of, functions, (*importing, path))
        names.append(f"const {{{_renamed(found['names'])}}} = {_identifier(other)};\n")
    body = _IMPORT.sub("", text)
    exported = [found["name"] for found in _EXPORT.finditer(body)]
    body = _EXPORT.sub("", body)
    if (listed := _LIST.search(body)) is not None:
        body = body[: listed.start()]
        # `local as exported` there is `exported: local` in an object.
        pairs = (pair.split(" as ") for pair in listed["names"].split(","))
        exported += [f"{pair[-1].strip()}: {pair[0].strip()}" for pair in pairs]
    if _OTHER.search(body) is not None:
        raise ValueError(f"{path} has an import or an export of another form")
    head = f"const {_identifier(path)} = (() => {{\n{''.join(names)}"
    functions[path] = f"{head}{body.strip()}\nreturn {{ {', '.join(exported)} }};\n}})();\n"


def _renamed(names: str) -> str:
    return names.replace(" as ", ": ").strip()


def _identifier(path: str) -> str:
    return "module_" + re.sub(r"\W", "_", path)
