"""The names that models give to code blocks and tags, and the kinds of these blocks.

A name stands in the info string of a fence (```` ```repl ````) or in a tag (`<code>`). Case,
version
numbers and punctuation are ignored: `Python3.11` is `python`, `repl:` is `repl`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

# "python": always run. "code": run if it is plainly Python. "text": never run; may hold an answer
# if nothing else does. "other": never run, and no answer. "unnamed": run unless there is a named
# block.
Kind: TypeAlias = Literal["python", "code", "text", "other", "unnamed"]

# Names with one of these parts are Python: `python-repl`, `run_python`. So are names that contain
# "python", and file names: `cpython`, `main.py`.
PYTHON_NAMES = frozenset(
    {
        "repl", "python", "py", "ipython", "ipy", "jupyter", "pycon", "pyrepl", "doctest", "ipynb",
        "pycode", "pypy", "pyi", "tool_code", "code_interpreter",
    }
)  # fmt: skip

CODE_NAMES = frozenset(
    {
        "code", "code_cell", "code_block", "cell", "exec", "execute", "run", "run_code", "action",
        "execute_code", "interpreter", "notebook", "program", "rlm", "source",
        "snippet", "tool", "script", "in", "input", "sandbox", "code_exec", "code_execution",
        "code_run", "code_runner", "colab", "interactive", "jupyterlab",
    }
)  # fmt: skip

TEXT_NAMES = frozenset(
    {
        "text", "txt", "plain", "plaintext", "output", "out", "stdout", "result", "results",
        "answer", "final", "final_answer", "none", "markdown", "md",
    }
)  # fmt: skip

# Languages and formats that may follow a space (```` ``` json ````). Any other word after a space
# is text behind a closing fence.
OTHER_NAMES = frozenset(
    {
        "bash", "sh", "shell", "zsh", "console", "terminal", "powershell", "json", "jsonl", "yaml",
        "yml", "toml", "xml", "html", "css", "csv", "tsv", "sql", "javascript", "js", "typescript",
        "ts", "java", "c", "cpp", "c++", "go", "rust", "ruby", "r", "lua", "diff", "latex", "tex",
        "stderr", "error", "traceback", "log", "logs", "ini", "dockerfile", "make", "math",
        "execute_bash", "cmd", "command", "observation", "function", "function_calls",
        "function_results", "invoke", "tool_call", "tool_calls", "tool_output", "tool_response",
        "tool_result",
    }
)  # fmt: skip

# Names of text whose tags enclose printed output. The other names enclose prose.
_PRINTED_TAGS = frozenset({"output", "out", "stdout"})

# Parts of a name that mean printed output: `python_output`.
_RESULTS = frozenset(
    {"output", "out", "result", "results", "stdout", "stderr", "error", "traceback", "response"}
)

_KINDS: dict[str, Kind] = {
    "": "unnamed",
    **dict.fromkeys(OTHER_NAMES, "other"),
    **dict.fromkeys(TEXT_NAMES, "text"),
    **dict.fromkeys(CODE_NAMES, "code"),
    **dict.fromkeys(PYTHON_NAMES, "python"),
}


def plain_name(word: str) -> str:
    """Return `word` in the form of the tables; an unknown name is only lowercased."""
    name = word.lower().strip("{}.:")
    short = name.partition(":")[0].rstrip("0123456789.:-_").replace("-", "_")
    if short in _KINDS and short:
        return short
    parts = {part.rstrip("0123456789.") for part in short.split("_")}
    if not (parts & PYTHON_NAMES or "python" in short or name.endswith(".py")):
        return name
    return "output" if parts & _RESULTS or short.endswith(tuple(_RESULTS)) else "python"


def kind_of(name: str, language: str = "python") -> Kind:
    """Return the kind of a block of this name; `language` counts as Python."""
    return "python" if name and name == language.lower() else _KINDS.get(name, "other")


def is_tag(name: str, language: str = "python") -> bool:
    """Return whether a tag of this name encloses a block rather than prose."""
    if name in _PRINTED_TAGS or name in OTHER_NAMES:
        return True
    return kind_of(name, language) in ("python", "code")


def is_known(name: str, language: str = "python") -> bool:
    """Return whether the tables contain `name`."""
    return name in _KINDS or name == language.lower()
