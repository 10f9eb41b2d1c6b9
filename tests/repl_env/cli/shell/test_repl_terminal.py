"""`repl-env repl`, typed into a terminal."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pexpect
import pytest

ROOT = Path(__file__).parents[4]
CLEAN = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
# Bracketed paste is on while a line is edited; each key redraws the prompt.
_PROMPT_OPENS = r"\x1b\[\?2004h"
_PROMPT_CLOSES = r"\x1b\[\?2004l"
# Nothing here answers when it is asked where its cursor is.
_NO_CPR = {"PROMPT_TOOLKIT_NO_CPR": "1"}


class Terminal:
    """A terminal with the command in it: what is typed, and what stands there without colours."""

    def __init__(self, state, *arguments):
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "repl_env", "repl", *arguments],
            cwd=ROOT,
            env={**CLEAN, "TERM": "xterm-256color", **_NO_CPR, "XDG_STATE_HOME": str(state)},
            encoding="utf-8",
            timeout=120,
            dimensions=(30, 100),
        )
        self.banner = self.ready()

    def ready(self):
        """Wait for the next prompt; what was written before it."""
        self.child.expect(_PROMPT_OPENS)
        before = re.sub(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[=>78])", "", self.child.before)
        self.child.expect(">>> ")
        return before

    def enter(self, text):
        """Type a line and Enter, which ends the input."""
        self.child.send(text + "\r")
        self.child.expect(_PROMPT_CLOSES)

    def run(self, text):
        """Type a line and Enter; return the text before the next prompt."""
        self.enter(text)
        return self.ready()

    def close(self):
        """Leave with Ctrl-D; the exit status."""
        self.child.send("\x04")
        self.child.expect(pexpect.EOF)
        self.child.close()
        return self.child.exitstatus


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """The folder of the state of programs."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def shared(state):
    """One terminal, because starting one takes time."""
    terminal = Terminal(state)
    yield terminal
    terminal.child.close(force=True)


@pytest.fixture
def here(shared):
    """The terminal with a new session in it."""
    assert "a new session" in shared.run(":reset")
    return shared


def test_a_person_sees_values_output_and_errors(here):

    assert "42" in here.run("6 * 7")
    assert "hi" in here.run("print('hi', end='')")
    assert "ZeroDivisionError: division by zero" in here.run("1 / 0")


def test_ctrl_c_interrupts_the_cell_and_keeps_the_variables(here):
    here.run("x = 123456")
    here.enter("print('go'); import time; time.sleep(60)")
    here.child.expect("go\r\n")
    here.child.send("\x03")

    assert "KeyboardInterrupt" in here.ready()
    assert "123456" in here.run("x")


def test_a_second_ctrl_c_ends_a_cell_that_ignores_the_first(here):
    here.run("x = 123456")
    here.run("import signal, time")
    here.enter("_ = signal.signal(2, signal.SIG_IGN); print('go'); time.sleep(60)")
    here.child.expect("go\r\n")
    here.child.send("\x03")
    here.child.expect("Ctrl-C again ends it")
    here.child.send("\x03")

    assert "the cell was ended" in here.ready()
    assert "123456" in here.run("x")


def test_ctrl_c_at_the_prompt_drops_the_typed_line(here):
    here.child.send("never = 1")
    here.child.send("\x03")
    here.ready()

    assert "NameError" in here.run("never")


def test_a_block_is_typed_with_indentation_and_ends_with_an_empty_line(here):
    here.child.send("def f(n):\r")
    here.child.expect(r"\.\.\. ")
    here.child.send("return n + 1\r")
    here.run("")

    assert "42" in here.run("f(41)")


def test_tab_completes_names_and_attributes_and_changes_nothing(here):
    here.run("counted = []")
    here.run("class A: __dir__ = lambda self: counted.append(1) or ['attribute_of_a']")
    here.run("some_long_name = A()")
    here.child.send("some_lo\t")
    here.child.expect("some_long_name")
    here.child.send(".attr\t")
    # On a loaded machine the terminal may answer late: ask again. It may show what was typed first.
    for _ in range(20):
        if here.child.expect(["ibute_of_a", pexpect.TIMEOUT], timeout=5) == 0:
            break
        here.child.send("\t")
    else:
        pytest.fail("the attribute is not completed")
    here.child.send("\x03")
    here.ready()

    assert "[]" in here.run("counted")


def test_the_next_shell_has_the_history_and_the_banner_says_how_the_session_is_held(here, state):
    here.run("remembered = 1")
    file = state / "repl-env" / "history"

    assert "remembered = 1" in file.read_text()
    assert file.stat().st_mode & 0o077 == 0

    second = Terminal(state)
    assert re.search(r"tier (jailed|confined)", second.banner)
    second.child.send("\x1b[A")
    second.child.expect("remembered")
    second.child.send("\x03")
    second.ready()

    assert second.close() == 0


def test_output_cannot_steer_the_terminal(here):
    here.child.send("print('\\x1b]0;title\\x07\\x1b[2J' + '\\x1b[31mred')\r")
    here.child.expect(re.escape("^[]0;title^G^[[2J\x1b[31mred"))
    here.ready()


def test_a_branch_shows_in_the_prompt(here):
    here.enter(":branch")
    here.child.expect("branch 1>>> ")
    here.run(":back")
