"""`LineEditor`: cells as a person types them, with history, completion and colours.

It stands on prompt_toolkit, which is loaded only here, at a terminal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application.current import get_app
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_selection
from prompt_toolkit.formatted_text import AnyFormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.styles import Style
from pygments.lexers.python import PythonLexer

from repl_env.cli.cells import completions, is_block, is_whole
from repl_env.cli.shell import COMMANDS, Shell
from repl_sandbox.errors import SandboxError

_INDENT = "    "
_LEAVES_BLOCK = re.compile(r"\s*(return|pass|break|continue|raise)\b")
_PATH_COMMANDS = frozenset({"put", "save", "load", "figure", "page"})
_STYLE = Style.from_dict({"prompt": "ansigreen bold", "continuation": "ansibrightblack"})


class LineEditor:
    """Asks for one cell or command after the other, until Ctrl-D. Ctrl-C clears the input."""

    def __init__(self, shell: Shell, history: History) -> None:
        self._shell = shell
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            prompt_continuation=[("class:continuation", "... ")],
            style=_STYLE,
            lexer=PygmentsLexer(PythonLexer),
            completer=ShellCompleter(shell),
            complete_while_typing=False,
            auto_suggest=AutoSuggestFromHistory(),
            history=history,
            key_bindings=_keys(),
            multiline=True,
            reserve_space_for_menu=6,
        )

    def __iter__(self) -> Iterator[str]:
        while True:
            try:
                yield self._session.prompt()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return

    def _message(self) -> AnyFormattedText:
        depth = self._shell.depth
        return [("class:prompt", f"{'branch ' * bool(depth)}{depth or ''}>>> ")]


class ShellCompleter(Completer):
    """Commands, their paths, and names of the session."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """As prompt_toolkit asks for them."""
        before = document.text_before_cursor
        if before.startswith(":"):
            yield from self._command(before, event)
            return
        prefix, names = completions(self._shell.session, before)
        for name in names:
            yield Completion(name, start_position=-len(prefix))

    def _command(self, before: str, event: CompleteEvent) -> Iterator[Completion]:
        name, space, argument = before[1:].partition(" ")
        if not space:
            for command in COMMANDS:
                if command.name.startswith(name):
                    yield Completion(
                        command.name, start_position=-len(name), display_meta=command.does
                    )
        elif name in _PATH_COMMANDS:
            yield from self._paths.get_completions(Document(argument), event)
        elif name == "get":
            for path in self._files():
                if path.startswith(argument):
                    yield Completion(path, start_position=-len(argument))

    def _files(self) -> list[str]:
        try:
            listing = self._shell.session.files.list()
        except SandboxError:
            return []
        return [file.path for file in listing if file.kind == "file" and file.path.isprintable()]


def history_in(environ: Mapping[str, str]) -> History:
    """Return the history file of the user in XDG_STATE_HOME; in memory if it cannot be written.

    XDG Base Directory Specification 0.8: a relative path in the variable is ignored.
    """
    state = environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    path = folder / "repl-env" / "history"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Cells may hold what is nobody else's business.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


def is_ready(text: str) -> bool:
    """Return whether Enter at the end of `text` runs it: the last block is closed."""
    if text.startswith(":") or not text.strip():
        return True
    closed = "\n" not in text or text.rsplit("\n", 1)[1].strip() == "" or not is_block(text)
    return closed and is_whole(text)


def next_indent(before: str) -> str:
    """Return the indentation of the line that follows `before`."""
    line = before.rsplit("\n", 1)[-1]
    indent = line[: len(line) - len(line.lstrip())]
    if line.rstrip().endswith((":", "(", "[", "{")):
        return indent + _INDENT
    if _LEAVES_BLOCK.match(line):
        return indent[: -len(_INDENT)]
    return indent


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @Condition
    def at_indentation() -> bool:
        return not get_app().current_buffer.document.current_line_before_cursor.strip()

    @Condition
    def indented() -> bool:
        return bool(get_app().current_buffer.document.current_line_before_cursor)

    @keys.add("enter")
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None  # it is in the text already
        elif not buffer.document.text_after_cursor.strip() and is_ready(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n" + next_indent(buffer.document.text_before_cursor))

    @keys.add("escape", "enter")
    def _run(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("tab", filter=at_indentation & ~has_selection)
    def _indent(event: KeyPressEvent) -> None:
        column = event.current_buffer.document.cursor_position_col
        event.current_buffer.insert_text(" " * (len(_INDENT) - column % len(_INDENT)))

    @keys.add("backspace", filter=at_indentation & indented & ~has_selection)
    def _dedent(event: KeyPressEvent) -> None:
        column = event.current_buffer.document.cursor_position_col
        event.current_buffer.delete_before_cursor((column - 1) % len(_INDENT) + 1)

    return keys
