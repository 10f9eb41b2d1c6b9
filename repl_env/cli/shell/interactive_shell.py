"""`Shell`: sessions with a person or a program in front of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn

from repl_sandbox.errors import SandboxError, SessionClosed
from repl_sandbox.session_limits import check_seconds

from .cell_screens import Screen
from .interrupts import InterruptHandler

if TYPE_CHECKING:
    from repl_sandbox import Sandbox, Session
    from repl_sandbox.types import AnyOutcome

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
