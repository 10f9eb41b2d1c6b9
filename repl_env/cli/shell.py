"""The shell of `repl-env repl`: its loop, its `:` commands, Ctrl-C."""

from __future__ import annotations

import os
import queue
import re
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repl_env.cli.cells import Screen
from repl_env.cli.tables import one_line
from repl_env.common.files import read_regular
from repl_sandbox.display import page_of, size_text
from repl_sandbox.errors import SandboxError, SessionClosed
from repl_sandbox.types import check_seconds

if TYPE_CHECKING:
    from repl_sandbox import Sandbox, Session
    from repl_sandbox.types import AnyOutcome, Listing, Missing


# Ctrl-C while a cell runs: the first interrupts the cell, the second leaves it to the engine.

# Seconds after which someone who pressed Ctrl-C wonders whether it was seen.
_PATIENCE = 1.0


class InterruptHandler:
    """While this is entered, SIGINT calls `interrupt`; a second one raises KeyboardInterrupt.

    `interrupt` takes a lock that the interrupted thread may hold, so a thread of its own calls it.
    `waiting` is called from that thread when the cell goes on for a second after the first Ctrl-C.
    Off the main thread, which alone gets signals, nothing is changed.
    """

    def __init__(self, interrupt: Callable[[], None], waiting: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._waiting = waiting
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._count = 0
        self._before: Any = None
        self._thread = threading.Thread(target=self._serve, name="interrupting", daemon=True)
        self._is_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> InterruptHandler:
        if self._is_main:
            self._thread.start()
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_main:
            signal.signal(signal.SIGINT, self._before)
            self._asked.put(False)
            self._thread.join()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt
        self._asked.put(True)  # reentrant, unlike other queues

    def _serve(self) -> None:
        if not self._asked.get():
            return
        with suppress(SandboxError):
            self._interrupt()
        try:
            self._asked.get(timeout=_PATIENCE)
        except queue.Empty:
            self._waiting()
            self._asked.get()


# `Shell`: sessions with a person or a program in front of them.

# Words that leave other shells; in a cell they would only end the cell's process.
_LEAVE = frozenset({"exit", "quit", "exit()", "quit()"})


_NUMBER = re.compile(r"[+-]?\d{1,18}")
_STATUS = {"": 0, "None": 0, "False": 0, "True": 1}


class ShellExit(Exception):
    """The end of the shell, at the request of its user."""


class Shell:
    """Runs cells and commands, in one session after the other, and shows their outcomes.

    `run_command` runs a command, an input that begins with `:`, and returns whether it succeeded.
    `values` are the variables that a session begins with. With `exits`, a SystemExit of the code
    ends the input as it ends a program, whose exit status is then `status`. `failed` counts cells
    and commands that did not do what they were to. Closing it closes its sessions, not the sandbox.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        screen: Screen,
        run_command: Callable[[Shell, str], bool],
        *,
        values: Mapping[str, str | bytes] | None = None,
        timeout: float | None = None,
        exits: bool = False,
    ) -> None:
        self._sandbox = sandbox
        self._run_command = run_command
        self._exits = exits
        self.status = 0
        self._values = dict(values or {})
        self.screen = screen
        self.timeout = timeout
        self.cells = 0
        self.failed = 0
        self.figures: tuple[bytes, ...] = ()
        self.last: AnyOutcome | None = None
        self._sessions: list[Session] = []
        self.restart()

    @property
    def session(self) -> Session:
        """The session that the next cell runs in: the innermost branch."""
        return self._sessions[-1]

    @property
    def depth(self) -> int:
        """The number of branches between the first session and this one."""
        return len(self._sessions) - 1

    def restart(self) -> None:
        """Replace the session by a new one with the initial values."""
        self.close()
        session = self._sandbox.session()
        self._sessions = [session]
        for name, value in self._values.items():
            session.set(name, value)

    def restore(self, data: bytes) -> Session:
        """Replace all sessions by one with a saved namespace."""
        session = self._sandbox.restore(data, timeout=self.timeout)
        self.close()
        self._sessions = [session]
        return session

    def branch(self) -> Session:
        """Continue in a branch of the session; `leave_branch` returns."""
        self._sessions.append(self.session.branch())
        return self.session

    def leave_branch(self) -> bool:
        """Close the branch and continue where it began; False if the session is no branch."""
        if not self.depth:
            return False
        self._sessions.pop().close()
        return True

    def set_timeout(self, seconds: float) -> None:
        """Set the time limit of further cells in seconds; TypeError or ValueError if it is none."""
        self.timeout = check_seconds(seconds, "timeout")

    def run_all(self, inputs: Iterable[str]) -> None:
        """Run one input after the other until they end or one of them leaves."""
        try:
            for text in inputs:
                self.run(text)
        except ShellExit:
            pass

    def run(self, text: str) -> None:
        """Run a cell, or a command, which begins with `:`.

        Raises:
            Leave: the input asks for that.
        """
        stripped = text.strip()
        if stripped in _LEAVE:
            raise ShellExit
        if stripped.startswith(":"):
            self.failed += not self._run_command(self, stripped)
        elif stripped:
            self._run_cell(text)

    def close(self) -> None:
        """Close all its sessions."""
        while self._sessions:
            self._sessions.pop().close()

    def _run_cell(self, code: str) -> None:
        outcome = self._outcome(code)
        if outcome is None:
            self.failed += 1
            return
        self.cells += 1
        if self._exits and outcome.error is not None and outcome.error.type == "SystemExit":
            self._exit(outcome.error.message)
        self.failed += not outcome.ok
        self.last = outcome
        if outcome.figures:
            self.figures = outcome.figures
        self.screen.outcome(self.cells, outcome)

    def _exit(self, message: str) -> NoReturn:
        """End the shell with the status or the message of a SystemExit, as a program would."""
        if message in _STATUS:
            self.status = _STATUS[message]
        elif _NUMBER.fullmatch(message):
            self.status = int(message) & 0xFF
        else:
            self.status = 1
            self.screen.complain("", message)
        raise ShellExit

    def _outcome(self, code: str) -> AnyOutcome | None:
        """Return the cell's outcome; without one, show the reason and return None."""
        session, screen = self.session, self.screen
        try:
            with InterruptHandler(session.interrupt, self._still_running):
                return session.run(code, timeout=self.timeout, on_output=screen.output)
        except KeyboardInterrupt:
            screen.complain(code, "[the cell was ended; :vars shows what there is]")
        except SessionClosed:
            screen.complain(code, "The session is gone. `:reset` begins another.")
        except (SandboxError, TypeError, ValueError) as error:
            screen.complain(code, f"{type(error).__name__}: {error}")
        return None

    def _still_running(self) -> None:
        self.screen.note("[interrupted, and it goes on; Ctrl-C again ends it]")


# The table of `:` commands of `repl-env repl`.

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
    table = _table("name", "type", "size", "value")
    table.columns[2].justify = "right"
    for one in variables:
        table.add_row(*_cells(one.name, one.type, size_text(one.size), one.preview))
    return table


def _undo(shell: Shell, argument: str) -> RenderableType:
    count = _count(argument)
    try:
        lost = shell.session.rollback(count)
    except ValueError as error:
        raise ValueError(f"{error}; `repl-env repl --undo {count}` keeps as many") from None
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
    table = _table("path", "kind", "size")
    table.columns[2].justify = "right"
    for file in listing:
        table.add_row(*_cells(file.path, file.kind, size_text(file.size)))
    if not listing.complete:
        table.add_row("… and more", "", "")
    return table


def _put(shell: Shell, argument: str) -> RenderableType:
    path = Path(argument).expanduser()
    data = read_regular(path)
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
    if path.suffix.lower() != ".png":
        raise ValueError(f"{argument!r}: figures are PNG images; name a file that ends with .png")
    table = Table.grid()
    for number, figure in enumerate(shell.figures, 1):
        named = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        table.add_row(_written(os.fspath(named), figure))
    return table


def _page(shell: Shell, argument: str) -> RenderableType:
    if shell.last is None:
        raise ValueError("no cell has run")
    return _written(argument, page_of(shell.last, f"Cell {shell.cells}").encode())


def _isolation(shell: Shell, argument: str) -> RenderableType:
    isolation = shell.session.isolation
    table = _table("layer", "active", "found", title=f"tier {isolation.tier}")
    for layer in isolation.layers:
        active = Text("yes", "green") if layer.active else Text("no", "yellow")
        table.add_row(layer.name, active, one_line(layer.detail))
    return table


def _save(shell: Shell, argument: str) -> RenderableType:
    from repl_sandbox.protocol.checkpoints import read_manifest

    data = shell.session.checkpoint(timeout=shell.timeout)
    path = Path(argument).expanduser()
    path.write_bytes(data)
    return _saved(f"{path}: {len(data):,} bytes", read_manifest(data).missing)


def _load(shell: Shell, argument: str) -> RenderableType:
    session = shell.restore(read_regular(Path(argument).expanduser()))
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
    Command("page", "FILE.html", "save the last cell as a page with tables and figures", _page),
    Command("save", "FILE", "write the variables to a file", _save),
    Command("load", "FILE", "go on in a new session with saved variables", _load),
    Command("reset", "", "begin anew, in a new session", _reset),
    Command("timeout", "[SECONDS]", "how long a cell may execute", _timeout),
    Command("isolation", "", "what holds the session, as found by looking", _isolation),
    Command("help", "", "this", _help),
    Command("quit", "", "leave", _quit),
)
_BY_NAME = {command.name: command for command in COMMANDS}
