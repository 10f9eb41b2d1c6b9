"""The table of `:` commands of `repl-env repl`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repl_sandbox.errors import SandboxError

from ..render.terminal_text import one_line
from .interactive_shell import Shell, ShellExit

if TYPE_CHECKING:
    from repl_sandbox.types import Listing, Missing

KEYS = """\
Enter           run the cell when it is whole; a block ends with an empty line
Esc Enter       run the cell as it is
Tab             complete a name, an attribute or a command
Up, Down        earlier cells; Ctrl-R searches them
Ctrl-C          clear the input, or interrupt the running cell; variables stay
Ctrl-D          leave"""


@dataclass(frozen=True, slots=True)
class Command:
    """A command. `takes` shows its argument: `NAME` must be given, `[NAME]` may be."""

    name: str
    takes: str
    does: str
    run: Callable[[Shell, str], RenderableType]


def run_command(shell: Shell, line: str) -> bool:
    """Run the command of `line`, show its reply or error, and return whether it worked."""
    name, _, argument = line[1:].partition(" ")
    argument = argument.strip()
    try:
        command = _find(name)
        if command.takes and not command.takes.startswith("[") and not argument:
            raise ValueError(f":{command.name} needs {command.takes}")
        if argument and not command.takes:
            raise ValueError(f":{command.name} takes nothing")
        shell.screen.reply(line, command.run(shell, argument))
    except (OSError, SandboxError, TypeError, ValueError) as error:
        shell.screen.complain(line, _reason(error))
        return False
    return True


def _find(name: str) -> Command:
    """Return the command `name`, or the only one that begins with `name`."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    begin = [command for command in COMMANDS if name and command.name.startswith(name)]
    if len(begin) == 1:
        return begin[0]
    if begin:
        raise ValueError(f":{name} may be {', '.join(f':{one.name}' for one in begin)}")
    raise ValueError(f"There is no command :{name}. :help lists them.")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _vars(shell: Shell, argument: str) -> RenderableType:
    variables = shell.session.variables()
    if not variables:
        return "no variables"
    table = _table("name", "type", "bytes", "value")
    table.columns[2].justify = "right"
    for one in variables:
        table.add_row(*_cells(one.name, one.type, f"{one.size:,}", one.preview))
    return table


def _undo(shell: Shell, argument: str) -> RenderableType:
    count = _count(argument)
    lost = shell.session.rollback(count)
    undone = "the last cell is undone" if count == 1 else f"the last {count} cells are undone"
    return Text("\n".join([undone, *(f"not brought back: {one_line(each)}" for each in lost)]))


def _count(argument: str) -> int:
    try:
        return int(argument or 1)
    except ValueError:
        raise ValueError(f"{argument!r} is no number of cells") from None


def _branch(shell: Shell, argument: str) -> RenderableType:
    session = shell.branch()
    lost = [f"not brought along: {one_line(each)}" for each in session.lost]
    return Text("\n".join(["in a copy now; :back drops it and returns", *lost]))


def _back(shell: Shell, argument: str) -> RenderableType:
    if not shell.leave_branch():
        raise ValueError("this is no branch; :branch makes one")
    return "the copy is dropped"


def _files(shell: Shell, argument: str) -> RenderableType:
    listing: Listing = shell.session.files.list()
    if not listing:
        return "no files"
    table = _table("path", "kind", "bytes")
    table.columns[2].justify = "right"
    for file in listing:
        table.add_row(*_cells(file.path, file.kind, f"{file.size:,}"))
    if not listing.complete:
        table.add_row("… and more", "", "")
    return table


def _put(shell: Shell, argument: str) -> RenderableType:
    path = Path(argument).expanduser()
    data = path.read_bytes()
    shell.session.files.put(path.name, data)
    return Text(f"{path.name}: {len(data):,} bytes, in the session's working directory")


def _get(shell: Shell, argument: str) -> RenderableType:
    data = shell.session.files.get(argument)
    return _written(Path(argument).name, data)


def _written(name: str, data: bytes) -> RenderableType:
    """Write `data` to a new file: data of a session replaces no file of the user."""
    path = Path(name).expanduser()
    if path.name in {"", ".", ".."}:
        raise ValueError(f"{name!r} names no file")
    with path.open("xb") as file:
        file.write(data)
    return Text(f"{one_line(str(path))}: {len(data):,} bytes")


def _figure(shell: Shell, argument: str) -> RenderableType:
    if not shell.figures:
        raise ValueError("no cell has shown a figure")
    path = Path(argument).expanduser()
    table = Table.grid()
    for number, figure in enumerate(shell.figures, 1):
        named = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        table.add_row(_written(os.fspath(named), figure))
    return table


def _isolation(shell: Shell, argument: str) -> RenderableType:
    isolation = shell.session.isolation
    table = _table("layer", "active", "found", title=f"tier {isolation.tier}")
    for layer in isolation.layers:
        active = Text("yes", "green") if layer.active else Text("no", "yellow")
        table.add_row(layer.name, active, one_line(layer.detail))
    return table


def _save(shell: Shell, argument: str) -> RenderableType:
    from repl_sandbox.protocol.checkpoint_manifest import read_manifest

    data = shell.session.checkpoint(timeout=shell.timeout)
    path = Path(argument).expanduser()
    path.write_bytes(data)
    return _saved(f"{path}: {len(data):,} bytes", read_manifest(data).missing)


def _load(shell: Shell, argument: str) -> RenderableType:
    session = shell.restore(Path(argument).expanduser().read_bytes())
    count = len(session.variables())
    return _saved(f"{count} variables; files are not part of what is saved", session.missing)


def _saved(message: str, missing: tuple[Missing, ...]) -> RenderableType:
    without = [f"without {one_line(f'{one.name} ({one.type}): {one.reason}')}" for one in missing]
    return Text("\n".join([message, *without]))


def _timeout(shell: Shell, argument: str) -> RenderableType:
    if argument:
        try:
            seconds = float(argument)
        except ValueError:
            raise ValueError(f"{argument!r} is no number of seconds") from None
        shell.set_timeout(seconds)
    return "as the sandbox has it" if shell.timeout is None else f"{shell.timeout:g} s"


def _reset(shell: Shell, argument: str) -> RenderableType:
    shell.restart()
    return "a new session"


def _help(shell: Shell, argument: str) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for command in COMMANDS:
        table.add_row(Text(f":{command.name} {command.takes}", "bold"), command.does)
    keys = Table.grid(padding=(1, 0, 0, 0))
    keys.add_row(table)
    keys.add_row(Text(KEYS))
    return keys


def _quit(shell: Shell, argument: str) -> RenderableType:
    raise ShellExit


def _table(*headings: str, title: str | None = None) -> Table:
    return Table(
        *headings,
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="dim",
    )


def _cells(*texts: str) -> list[Text]:
    """Return texts of a session as cells of a table, without markup and control characters."""
    return [Text(one_line(text)) for text in texts]


COMMANDS: tuple[Command, ...] = (
    Command("vars", "", "the variables", _vars),
    Command("undo", "[N]", "go back to before the last cell, or the last N", _undo),
    Command("branch", "", "go on in a copy of the session, files too", _branch),
    Command("back", "", "drop the copy and go on where it was made", _back),
    Command("files", "", "the files in the session's working directory", _files),
    Command("put", "PATH", "copy a file of yours into the session", _put),
    Command("get", "PATH", "copy a file of the session here; replaces none", _get),
    Command("figure", "FILE.png", "save what the last cell with figures has drawn", _figure),
    Command("save", "FILE", "write the variables to a file", _save),
    Command("load", "FILE", "go on in a new session with saved variables", _load),
    Command("reset", "", "begin anew, in a new session", _reset),
    Command("timeout", "[SECONDS]", "how long a cell may execute", _timeout),
    Command("isolation", "", "what holds the session, as found by looking", _isolation),
    Command("help", "", "this", _help),
    Command("quit", "", "leave", _quit),
)
_BY_NAME = {command.name: command for command in COMMANDS}
