"""The lines of a Markdown text that begin or end fenced blocks, and names of blocks."""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from bisect import bisect_right
from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple, TypeAlias

# The names that models give to code blocks and tags, and the kinds of these blocks.
#
# A name stands in the info string of a fence (```` ```repl ````) or in a tag (`<code>`). Case,
# version numbers and punctuation are ignored: `Python3.11` is `python`, `repl:` is `repl`.

# "python": always run. "code": run if it is plainly Python. "text": never run; may hold an answer
# if nothing else does. "other": never run, and no answer. "unnamed": run unless there is a named
# block.
NameKind: TypeAlias = Literal["python", "code", "text", "other", "unnamed"]

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

_KINDS: dict[str, NameKind] = {
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


def kind_of(name: str, language: str = "python") -> NameKind:
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


# The lines of a Markdown text that begin or end fenced blocks, as models really write them.
#
# The rules are CommonMark's for fenced code
# (https://spec.commonmark.org/0.31.2/#fenced-code-blocks) with additions: a fence may follow
# other text on its line, for example in a list item, or end the last line of the code; text or a
# chat template token may follow a closing fence; such a token closes a block by itself; and a
# fence that opens inside a block is expected to close inside it.

_SHORTEST_FENCE = 3
# Longer fences count as this long. Each length is scanned separately.
_LONGEST_FENCE = 8

# Tokens that end a message in chat templates, and others that models end code with.
_ENDS_IN_TOKEN = re.compile(
    r"(?:<\|[a-z_]{1,30}\|>|<\uff5c[^\uff5c<>]{1,40}\uff5c>|<end_code>|<end_of_turn>|</s>"
    r"|</(?:code|python|execute|tool_code|repl)>)\s*+$"
)
_LONGEST_TOKEN = 60
# Tokens at the end of a text that are left out.
_MAX_TOKENS = 4

_AT_START = re.compile(
    r"(?P<before>[ \t]*+(?>(?P<marker>(?:[-*+]|\d{1,9}[.)])[ \t]++){0,99}))"
    r"(?P<marks>`{3,}+|~{3,}+)(?P<info>.*+)"
)
_BEHIND_TEXT = re.compile(r"(?>(?P<before>(?s:.*?))(?P<marks>`{3,}+))(?P<info>[^`]*+)")
_WORD = re.compile(
    r"\s*+[\ufeff{.\[(\"'*=#!%@/]*+(?:(?:lang|language|type)[ ]*+[=:][ ]*+)?"
    r"(?P<word>[\w+#.:-]*+)(?P<rest>.*+)"
)


# The character of a fence's marks, and their number.
_Fence: TypeAlias = tuple[str, int]


class Fence(NamedTuple):
    """A fence on a line, of a kind.

    `before` is the text before it on the line, `name` and `rest` its info string, `behind` whether
    `before` is text. A fence without an info string may both open and close a block.
    """

    before: str
    kind: _Fence
    name: str = ""
    rest: str = ""
    opens: bool = True
    closes: bool = True
    behind: bool = False

    def may_end(self, kind: _Fence) -> bool:
        """Return whether a block that a fence of this kind began may end here."""
        return self.kind[0] == kind[0] and self.kind[1] >= kind[1]


class FenceEnd(NamedTuple):
    """A position at which a block may end.

    `line` is the index of the line after its last whole one, `before` the part of that line inside
    the
    block, `after` the first line after the block. `closes`: by a closing fence.
    """

    line: int
    after: int
    before: str | None = None
    closes: bool = False


def fence_at(line: str, language: str = "python") -> Fence | None:
    """Return the fence on `line`, or None."""
    match = _AT_START.fullmatch(line)
    if match is not None:
        return _fence(match, language, behind=False)
    if "```" in line and (match := _BEHIND_TEXT.fullmatch(line)) is not None:
        return _fence(match, language, behind=True)
    return None


def _fence(match: re.Match[str], language: str, *, behind: bool) -> Fence | None:
    before, marks, info = match["before"], match["marks"], match["info"]
    kind = (marks[0], min(len(marks), _LONGEST_FENCE))
    if not info.strip():
        closes = behind or not match["marker"]
        return Fence(before, kind, closes=closes, behind=behind)
    closer = Fence(before, kind, opens=False, behind=behind)
    apart = info[0] not in "{." and not info[0].isalnum()
    if "`" in info:  # inline code, or a closing fence with inline code in the text after it
        return closer if apart else None
    word = _WORD.fullmatch(info)
    name = plain_name(word["word"]) if word else ""
    rest = word["rest"].strip() if word else ""
    if name and is_known(name, language) and not (apart and _is_prose(rest, language)):
        return Fence(before, kind, name, rest, closes=False, behind=behind)
    if apart or not name or (" " in rest and not {"=", "{"} & set(rest)):
        return closer
    return closer if behind else Fence(before, kind, name, rest, closes=False)


def _is_prose(rest: str, language: str) -> bool:
    """Return whether the words after a name continue a sentence, as in "``` python prints it"."""
    if not rest[:1].isalpha() or {"=", "{", "("} & set(rest):
        return False
    return " " in rest or not is_known(plain_name(rest), language)


class Fences:
    """The fences of a text, and the possible ends of blocks that begin at them.

    One pass handles each kind of marks. A model that repeats itself, or a client, may write
    thousands of fences; a search from each fence for its end would take minutes.
    """

    def __init__(self, lines: list[str], language: str) -> None:
        marked = [(n, line) for n, line in enumerate(lines) if "```" in line or "~~~" in line]
        known = {line: fence_at(line, language) for line in {line for _, line in marked}}
        self.at = {n: fence for n, line in marked if (fence := known[line]) is not None}
        self._lines = lines
        self._language = language
        self._tokens = {
            index: line[:token]
            for index, line in enumerate(lines)
            if index not in self.at and (token := _end_token(line)) is not None
        }
        self._stops: dict[_Fence, tuple[list[int], list[FenceEnd]]] = {}
        self._ends: dict[_Fence, dict[int, FenceEnd]] = {}

    def stops(self, index: int) -> Iterator[FenceEnd]:
        """Yield the positions, before the end of the text, at which this line's block may end."""
        return self._stops_behind(index, self.at[index].kind)

    def short_stops(self, index: int) -> Iterator[FenceEnd]:
        """`stops` under the assumption that shorter fences close the block of this line."""
        character, length = self.at[index].kind
        return (
            self._stops_behind(index, (character, _SHORTEST_FENCE))
            if length > _SHORTEST_FENCE
            else iter(())
        )

    def _stops_behind(self, index: int, kind: _Fence) -> Iterator[FenceEnd]:
        if kind not in self._stops:
            stops = list(self._stops_of(kind))
            self._stops[kind] = [stop.line for stop in stops], stops
        lines, stops = self._stops[kind]
        return map(stops.__getitem__, range(bisect_right(lines, index), len(stops)))

    def end(self, index: int) -> FenceEnd:
        """Return the position at which the block of this line's fence ends, whatever it
        contains.
        """
        kind = self.at[index].kind
        if kind not in self._ends:
            self._ends[kind] = self._ends_of(kind)
        end = self._ends[kind].get(index) or FenceEnd(len(self._lines), len(self._lines))
        # Left open, unless it closes on a line that also has text.
        first = None if end.closes else next(self.stops(index), None)
        return first if first is not None and first.closes and first.line < end.line else end

    def _stops_of(self, kind: _Fence) -> Iterator[FenceEnd]:
        for index in sorted((*self.at, *self._tokens)):
            fence = self.at.get(index)
            if fence is None:
                yield _with_text(index, self._tokens[index])
            elif not fence.may_end(kind):
                continue
            elif fence.behind:
                yield _with_text(index, fence.before)
            elif not fence.closes:
                yield FenceEnd(index, index)
            else:
                yield FenceEnd(index, index + 1, closes=True)

    def _ends_of(self, kind: _Fence) -> dict[int, FenceEnd]:
        """Return `end` of each fence that could end a block which a fence of this kind began."""
        found, depth = [], 0
        for index, fence in self.at.items():
            # A fence that could not close such a block is text of the block.
            if not fence.behind and fence.may_end(kind):
                depth += -1 if fence.closes else 1
                found.append((index, fence, depth))
        ends: dict[int, FenceEnd] = {}
        by_depth: dict[int, int] = {}  # of the following ones, the nearest
        closer = opener = last = len(self._lines)
        for index, fence, depth in reversed(found):
            pair = by_depth.get(depth - 1)
            # Otherwise the fences do not pair up: the block was left open before the next code
            # block, or the fence that seemed to open inside it is text.
            if pair is not None:
                ends[index] = FenceEnd(pair, pair + 1, closes=True)
            elif opener < closer:
                ends[index] = FenceEnd(opener, opener)
            else:
                ends[index] = FenceEnd(closer, min(closer + 1, last), closes=closer < last)
            by_depth[depth] = index
            if fence.closes:
                closer = index
            elif kind_of(fence.name, self._language) == "python":
                opener = index
        return ends


def _with_text(index: int, before: str) -> FenceEnd:
    return FenceEnd(index, index + 1, before if before.strip() else None, closes=True)


def _end_token(text: str) -> int | None:
    """Return the position of the token that ends `text`."""
    if ">" not in text[-_LONGEST_TOKEN:]:
        return None
    token = _ENDS_IN_TOKEN.search(text, max(0, len(text) - _LONGEST_TOKEN))
    return None if token is None else token.start()


def without_end_tokens(text: str) -> str:
    """Return `text` without final chat template tokens."""
    for _ in range(_MAX_TOKENS):
        token = _end_token(text)
        if token is None:
            break
        text = text[:token]
    return text


# Texts that may be Python: parsed in bounded time, and cleaned up like a notebook cell.
#
# CPython's parser rejects text in many ways, and takes some microseconds for each character.
# Texts come from models, which may write anything of any length.

# Characters of one parsed text, and of all texts that one `PythonParser` parses: seconds of work.
MAX_CODE = 64 * 1024
MAX_IN_ALL = 8 * MAX_CODE
# The minimum cost of a text: there may be very many short ones.
_LEAST_COST = 64

# The file name of parsed texts, by which the filter below knows their warnings.
_FILE = "<reply>"

# The functions of a session. `FINAL` and `FINAL_VAR` also occur in prose and prove nothing.
_ANSWERS = ("FINAL", "FINAL_VAR")
_FUNCTIONS = frozenset(
    {
        "SUBMIT", "final_answer", "SHOW_VARS", "llm_query", "llm_query_batched", "llm_batch",
        "rlm_query", "rlm_query_batched", "rlm_spawn", "budget",
    }
) | {name for name in vars(builtins) if name.islower() and not name.startswith("_")}  # fmt: skip

_STATEMENTS = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For,
    ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match,
    ast.AugAssign,
)  # fmt: skip

_PROMPT = re.compile(r"[ \t]*+(?:(?:>>>|\.\.\.:?|In ?\[\d*\]:)(?: |$)|>>>(?=\S))")
_FIRST_PROMPT = re.compile(r"[ \t]*+(?:>>>|In ?\[\d*\]:)")
_MARGIN = re.compile(r"[ \t]*+")
# Code without a prompt or an indent does not begin with these, and most code is such.
_UNTIDY = (" ", "\t", "\n", "\r", ">", "#", "In")


class PythonParser:
    """Parses texts up to `in_all` characters; rejects all later texts as unknown."""

    def __init__(self, in_all: int = MAX_IN_ALL) -> None:
        self._left = in_all

    @property
    def used_up(self) -> bool:
        """Whether the limit is reached."""
        return self._left < _LEAST_COST

    def tree(self, code: str) -> ast.Module | None:
        """Return the syntax tree of `code`; None if it is not Python, or too long."""
        cost = max(len(code), _LEAST_COST)
        if len(code) > MAX_CODE:
            return None
        if cost > self._left:
            self._left = 0  # otherwise copying unparsed texts would have no bound
            return None
        self._left -= cost
        _ignore_warnings()
        try:
            return ast.parse(code, _FILE)
        # Boundary: besides SyntaxError and ValueError the parser raises MemoryError and
        # RecursionError for deep nesting, and others depending on the version of CPython.
        except Exception:  # noqa: BLE001
            return None

    def is_python(self, code: str) -> bool:
        """Return whether `code` is known to be Python."""
        return not code.strip() or self.tree(code) is not None

    def is_plainly_python(self, code: str, known: Collection[str] = ()) -> bool:
        """Return whether `code` is more than prose that happens to be Python ("a or b").

        `known` are the names in the session.
        """
        tree = self.tree(code)
        if tree is None:
            return False
        made = names_made(tree)
        callable_names = _FUNCTIONS | made | frozenset(known)
        return any(_is_plain(node, callable_names, made) for node in tree.body)

    def expression(self, text: str) -> ast.expr | None:
        """Return the expression that `text` is, ignoring outer white space; None otherwise."""
        tree = self.tree(f"({text}\n)")
        match tree:
            case ast.Module(body=[ast.Expr(value=value)]):
                return value
        return None


def _ignore_warnings() -> None:
    """Suppress warnings about invalid escapes in texts that are only inspected.

    The filter stays installed, since `warnings.catch_warnings` is not thread-safe; it applies only
    to the file name of these texts.
    """
    first = warnings.filters[0] if warnings.filters else None
    if first is None or getattr(first[3], "pattern", None) != _FILE:
        warnings.filterwarnings("ignore", module=_FILE)


def names_made(tree: ast.AST) -> frozenset[str]:
    """Return the names that code binds anywhere."""
    made: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                made.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                made.add(name)
            case ast.ClassDef(name=name):
                made.add(name)
            case ast.alias(name=name, asname=other):
                made.add((other or name).partition(".")[0])
    return frozenset(made)


def names_read(tree: ast.AST) -> frozenset[str]:
    """Return the names that code reads and does not bind."""
    loads = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    return frozenset(loads - names_made(tree))


def computes(value: ast.expr, known: Collection[str]) -> bool:
    """Return whether an expression is meant to be evaluated, and is not just text.

    It has an f-string field, calls a function of the session or of Python, or is more than a name
    and uses only names of the session.
    """
    functions = _FUNCTIONS | frozenset(known)
    for node in ast.walk(value):
        match node:
            case ast.FormattedValue():
                return True
            case ast.Call(func=function) if _root(function) in functions:
                return True
    read = names_read(value) - _FUNCTIONS
    return bool(read) and not isinstance(value, ast.Name) and read <= frozenset(known)


def _is_plain(node: ast.stmt, functions: Collection[str], made: Collection[str]) -> bool:
    match node:
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return not isinstance(value, ast.Name)
        case ast.Expr(value=ast.Call(func=ast.Name(id=name)) as call) if name in _ANSWERS:
            return any(names_read(argument) & frozenset(made) for argument in call.args)
        case ast.Expr(value=ast.Call(func=function)):
            return _root(function) in functions
    return isinstance(node, _STATEMENTS)


def _root(function: ast.expr) -> str:
    """Return the name that a called expression begins with.

    Methods of constants are Python's own.
    """
    while isinstance(function, (ast.Attribute, ast.Subscript)):
        function = function.value
    match function:
        case ast.Name(id=name):
            return name
        case ast.Constant() | ast.JoinedStr():
            return "str"
    return ""


def tidied(code: str) -> str:
    """Return `code` without console prompts, or without its common indent.

    Neither can begin a cell of Python, so correct code stays as it is. In a console transcript,
    only the lines after prompts are code.
    """
    if not code.startswith(_UNTIDY):
        return code
    lines = code.split("\n")
    first = next((line for line in lines if line.strip()), "")
    if _FIRST_PROMPT.match(first):
        prompts = ((line, _PROMPT.match(line)) for line in lines)
        return "\n".join(line[prompt.end() :] for line, prompt in prompts if prompt)
    code_lines = (line for line in lines if line.strip() and not line.lstrip().startswith("#"))
    margin = _margin(next(code_lines, ""))
    if not margin:
        return code
    return "\n".join(_outdented(line, margin) for line in lines)


def _outdented(line: str, margin: str) -> str:
    if line.startswith(margin):
        return line[len(margin) :]
    return line[min(len(margin), len(_margin(line))) :]  # inside a string, for example


def _margin(line: str) -> str:
    found = _MARGIN.match(line)
    return found[0] if found else ""
