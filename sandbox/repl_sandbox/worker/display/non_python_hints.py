"""Hints for lines of IPython, a shell or a transcript in place of Python."""

from __future__ import annotations

import re
from collections.abc import Callable

# A longer line is text and no command.
_LONGEST = 1_000

_SHELL = "Lines that begin with '!' or '%' are IPython's; subprocess.run() runs programs here."
_COMMAND = "This is a command of a shell; subprocess.run() runs programs here."
_PROMPT = "The prompts of a shell, as '>>>', are no part of the code."
_FENCE = "The fences of Markdown, as '```', are no part of the code."

_MANAGERS = r"(?:pip3?|conda|mamba|micromamba|uv|poetry|pipx|easy_install)"
_SYSTEM_MANAGERS = r"(?:apt|apt-get|yum|dnf|apk|brew|npm)"
_OPTIONS = r"(?>(?:-\S++\s++){0,99})"
_ASSIGNMENT = r"[\w.,\s\[\]'\"]++=\s*+"
# All repetitions are possessive: a line may consist of blanks, and matching takes linear time.
_INSTALLS = re.compile(
    rf"\s*+(?:{_ASSIGNMENT})?[!%$]{{0,2}}\s*+(?:sudo\s++)?"
    r"(?:(?:(?=\S*python)\S++|\{[^}]*+\})\s++-m\s++)?"
    rf"(?:{_MANAGERS}|{_SYSTEM_MANAGERS})\s++{_OPTIONS}(?:pip\s++{_OPTIONS})?"
    r"(?:install|add|update|upgrade|download|sync)\b"
).match
_MANAGES = re.compile(rf"\s*+%{_MANAGERS}\b").match
_ASKS_MANAGER = re.compile(
    rf"\s*+{_MANAGERS}\s++(?:list|show|freeze|uninstall|search|--\w+)\b"
).match

_COMMANDS = re.compile(
    r"\s*+(?:sudo\s++)?(?:awk|bash|cat|cd|chmod|cp|curl|docker|echo|export|find|git|grep|head|ls"
    r"|make|mkdir|mv|node|python3?|rm|rmdir|sed|sh|tail|tar|touch|unzip|wc|wget|which)"
    r"\s++[\w./~'\"$*{-]"
).match

_MAGIC = re.compile(r"\s*+(!|%%?)(?=[\w/.~{%!$])(\w*+)").match
_ASSIGNED = re.compile(rf"\s*+{_ASSIGNMENT}([!%])\s*+(\w++)").match
_HELP = re.compile(r"\s*+(\?\??)?\s*+([^\W\d][\w.]*+)\s*+(\?\??)?\s*+;?\s*+(?:#.*)?$").match

_BY_MAGIC = {
    "matplotlib": "Figures come with the cell's outcome, and the line can be left out.",
    "pylab": "Figures come with the cell's outcome; import numpy and matplotlib.pyplot.",
    "time": "time.perf_counter() measures time.",
    "timeit": "time.perf_counter() and timeit.timeit() measure time.",
    "writefile": "open(path, 'w') writes a file.",
    "file": "open(path, 'w') writes a file.",
    "run": "runpy.run_path(path) runs a file.",
    "cd": "os.chdir(path) changes the directory.",
    "env": "os.environ holds the environment.",
    "set_env": "os.environ holds the environment.",
    "load_ext": "The line can be left out.",
    "reload_ext": "The line can be left out.",
    "autoreload": "importlib.reload(module) imports a module again.",
    "config": "The line can be left out.",
}


def advice(line: str, column: int, *, packages: str, is_known: Callable[[str], bool]) -> str:
    """Return a hint for `line`, which is no Python from `column` on, or "".

    `packages`: the sentence about installing packages; `is_known`: whether a name has a value.
    """
    if len(line) > _LONGEST:
        return ""
    if _INSTALLS(line) or _MANAGES(line):
        return f"Nothing can be installed here: {packages}."
    if _ASKS_MANAGER(line) or _COMMANDS(line):
        return _COMMAND
    stripped = line.lstrip()
    if stripped.startswith((">>> ", "... ", "In [")):
        return _PROMPT
    if stripped.startswith("```"):
        return _FENCE
    return _of_ipython(line, column) or _of_help(line, is_known)


def _of_ipython(line: str, column: int) -> str:
    begins = not line[:column].strip()
    magic = _MAGIC(line)
    # Elsewhere a line may begin with the operator %, and be wrong further on.
    if magic is not None and (begins or magic[1] != "%" or magic[2] in _BY_MAGIC):
        return _of_magic(magic[1], magic[2])
    assigned = _ASSIGNED(line)
    if assigned is not None:
        return _of_magic(assigned[1], assigned[2])
    return _SHELL if begins and line.lstrip()[:1] in ("!", "%") else ""


def _of_magic(sign: str, name: str) -> str:
    found = _BY_MAGIC.get(name) if sign[0] == "%" else None
    return f"'{sign}{name}' is IPython's. {found}" if found else _SHELL


def _of_help(line: str, is_known: Callable[[str], bool]) -> str:
    """Return the hint for `?name`, `name?` and `name??`."""
    match = _HELP(line)
    if match is None or bool(match[1]) is bool(match[3]):
        return ""
    name = match[2]
    if not is_known(name.partition(".")[0]):
        return ""
    if "??" in (match[1], match[3]):
        return f"'??' is IPython's; inspect.getsource({name}) is the source."
    return f"'?' is IPython's; help({name}) shows the documentation."
