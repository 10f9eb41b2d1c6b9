"""Terminals of a session: its own in tier `jailed`, none in `confined`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from repl_sandbox import Sandbox, Session

# Runs a program on a terminal: `on_terminal(arguments)` is its output.
PRELUDE = """
import errno, fcntl, os, pty, struct, sys, termios, tty
def on_terminal(*arguments):
    pid, master = pty.fork()
    if pid == 0:
        os.execvp(arguments[0], arguments)
    said = b""
    try:
        while more := os.read(master, 1024):
            said += more
    except OSError as error:  # the program has ended
        assert error.errno == errno.EIO
    os.close(master)
    os.waitpid(pid, 0)
    return said.decode().split()
"""


def test_a_pair_is_a_terminal(seen: Callable[[str], Any]) -> None:
    found = seen(
        f"{PRELUDE}\nmaster, slave = pty.openpty()\nos.write(slave, b'a line\\n')\n"
        "seen = [os.read(master, 99).decode(), os.isatty(slave), os.ttyname(slave)]\n"
        "termios.tcsetwinsize(slave, (24, 80))\ntty.setraw(slave)\n"
        "os.write(slave, b'raw\\n')\n"
        "seen += [os.read(master, 99).decode(), list(os.get_terminal_size(master))]\n"
        "seen += [os.fstat(slave).st_uid == os.getuid(), oct(os.fstat(slave).st_mode)]"
    )
    assert found == ["a line\r\n", True, "/dev/pts/0", "raw\n", [80, 24], True, "0o20620"]


def test_programs_have_a_controlling_terminal(seen: Callable[[str], Any]) -> None:
    code = "import os, sys; print(sys.stdin.isatty(), os.tcgetpgrp(0) == os.getpgrp())"
    found = seen(
        f"{PRELUDE}\nseen = [on_terminal('sh', '-c', 'tty; echo $((6 * 7))'),\n"
        f"        on_terminal(sys.executable, '-c', {code!r})]"
    )
    assert found == [["/dev/pts/0", "42"], ["True", "True"]]


def test_a_spawned_program_is_copied_to_the_output(session: Session) -> None:
    outcome = session.run(
        "import os, pty\n"
        "def read(fd):\n    data = os.read(fd, 1024)\n    said.append(data)\n    return data\n"
        "said = []\nstatus = pty.spawn(['echo', 'spoken'], read, lambda fd: b'')\n"
        "b''.join(said).split(), status"
    )
    # The terminal is read to its end: to close it earlier sends SIGHUP to its program.
    assert (outcome.value, outcome.stdout.split()) == ("([b'spoken'], 0)", ["spoken"])


@pytest.mark.skipif(not os.path.exists("/usr/bin/script"), reason="util-linux is not here")
def test_script_works(session: Session) -> None:
    outcome = session.run(
        "import subprocess\n"
        "subprocess.run(['script', '-qec', 'tty', '/dev/null'], capture_output=True,\n"
        "               stdin=subprocess.DEVNULL, text=True).stdout.split()"
    )
    assert outcome.value == "['/dev/pts/0']"


@pytest.mark.parametrize(
    "request_",
    [0x5412, 0x541C, 0x541D, 0x5423, 0x5437, 0x540C, 0x4B3A, 0x5607],
    ids="TIOCSTI TIOCLINUX TIOCCONS TIOCSETD TIOCVHANGUP TIOCEXCL KDSETMODE VT_WAITACTIVE".split(),
)
def test_a_terminal_takes_no_dangerous_command(session: Session, request_: int) -> None:
    """The terminal is the program's own, which would be allowed to type into it."""
    code = (
        f"{PRELUDE}\n"
        "code = '''\n"
        "import fcntl\n"
        f"try: fcntl.ioctl(0, {request_}, bytes(8)); print('done')\n"
        "except OSError as error: print(error.errno)\n"
        "print(len(fcntl.ioctl(0, 0x5413, bytes(8))))  # TIOCGWINSZ\n"
        "'''\nseen = on_terminal(sys.executable, '-c', code)"
    )
    assert session.run(code).ok
    assert session.get("seen") == ["1", "8"]


def test_sessions_have_terminals_of_their_own(sandbox: Sandbox) -> None:
    """Each counts from 0, and sees no other session's and none of the host."""
    master, slave = os.openpty()
    with sandbox.session() as one, sandbox.session() as two:
        for session in (one, two):
            session.run("import os, pty\nmaster, slave = pty.openpty()")
            session.run("seen = [sorted(os.listdir('/dev/pts')), os.ttyname(slave)]")
            assert session.get("seen") == [["0", "ptmx"], "/dev/pts/0"]
        one.run("os.write(slave, b'of one\\n')")
        two.run("os.write(slave, b'of two\\n')")
        assert two.run("os.read(master, 99)").value == r"b'of two\r\n'"
        assert one.run("os.read(master, 99)").value == r"b'of one\r\n'"
    os.close(master)
    os.close(slave)


def test_the_number_of_terminals_is_limited_and_the_error_says_so(session: Session) -> None:
    outcome = session.run("import os\nheld = []\nwhile True: held.append(os.openpty())")
    assert outcome.error is not None
    assert "terminals" in outcome.error.traceback
    assert session.run("len(held)").value == "32"


@pytest.mark.parametrize("sandbox", ["confined"], indirect=True)
@pytest.mark.parametrize(
    "call", ["os.openpty()", "pty.openpty()", "pty.fork()", "os.forkpty()", "pty.spawn('true')"]
)
def test_where_there_are_no_terminals_the_error_says_so(session: Session, call: str) -> None:
    outcome = session.run(f"import os, pty\n{call}")
    assert outcome.error is not None
    assert outcome.error.type in ("OSError", "PermissionError")
    assert "A session has terminals in tier 'jailed' only" in outcome.error.traceback


@pytest.mark.parametrize("sandbox", ["jailed"], indirect=True)
def test_a_terminal_of_a_dead_worker_is_named(session: Session) -> None:
    session.run("import os, pty\nmaster, slave = pty.openpty()\nx = 1")
    outcome = session.run("os._exit(1)")
    assert outcome.state == "rolled_back"
    assert [each.partition(", ")[2] for each in outcome.lost] == ["a terminal", "a terminal"]
    assert session.run("isinstance(pty.openpty(), tuple), x").value == "(True, 1)"
