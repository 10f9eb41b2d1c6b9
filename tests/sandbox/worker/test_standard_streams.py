"""Standard streams that a cell closed or replaced."""

from __future__ import annotations

import pytest

from repl_sandbox import Finished, Killed, Limits, Raised, Sandbox, Session
from tests.security.attacks.test_hostile_worker import PRELUDE

BEGIN = """
import contextlib, io, logging, os, subprocess, sys
logging.basicConfig(stream=sys.stderr, format="%(message)s")
class Sink:
    def write(self, text): return len(text)
    def flush(self): pass
"""

# Output of Python, C and started programs.
SAY = """
print("python")
print("error", file=sys.stderr)
logging.warning("logged")
sys.stdout.flush(), sys.stderr.flush()
os.write(1, b"number\\n")
subprocess.run(["/bin/sh", "-c", "echo child; echo complaint >&2"])
sys.__stdout__.write("kept\\n")
(sys.stdin.read(), os.read(0, 1), sys.stdout is sys.__stdout__)
"""


def speaks(session: Session) -> None:
    outcome = session.run(SAY)
    assert outcome.stdout == "python\nnumber\nchild\nkept\n", outcome
    assert outcome.stderr == "error\nlogged\ncomplaint\n", outcome
    assert outcome.value == "('', b'', True)"


@pytest.mark.parametrize(
    ("cell", "note"),
    [
        ("os.close(1)", "descriptor 1 (sys.stdout) was closed or replaced"),
        ("os.close(2)", "descriptor 2 (sys.stderr) was closed"),
        ("os.close(0)", "descriptor 0 (sys.stdin) was closed"),
        ("os.close(1)\nprint('x')", "descriptor 1 (sys.stdout) was closed"),
        ("os.close(1)\nopen('f', 'w').write('x')", "descriptor 1 (sys.stdout) was closed"),
        ("os.closerange(0, 256)", "descriptor 2 (sys.stderr) was closed"),
        ("os.closerange(0, 3)\nmine = open('f', 'w')", "descriptor 0 (sys.stdin) was closed"),
        ("open(1, 'w').close()", "descriptor 1 (sys.stdout) was closed"),
        ("f = open('f', 'w')\nos.dup2(f.fileno(), 1)\nprint('x')", "descriptor 1 (sys.stdout) was"),
        ("os.dup2(os.pipe()[1], 2)", "descriptor 2 (sys.stderr) was closed or replaced"),
        ("os.dup2(os.open('/dev/null', os.O_RDWR), 0)", "descriptor 0 (sys.stdin) was closed or"),
        ("os.dup2(0, 1)", "descriptor 1 (sys.stdout) was closed or replaced"),
        ("os.dup2(1, 2)\nprint('x', file=sys.stderr)", "descriptor 2 (sys.stderr) was closed"),
        ("sys.stdout.close()", "sys.stdout was closed"),
        ("sys.stderr.close()", "sys.stderr was closed"),
        ("sys.__stdout__.close()", "sys.stdout was closed"),
        ("kept = sys.stdout.detach()", "sys.stdout was closed"),
        ("sys.stdin.close()", ""),
        ("sys.stdout = io.StringIO()", "sys.stdout was left replaced by StringIO"),
        ("sys.stderr = open(os.devnull, 'w')", "sys.stderr was left replaced by TextIOWrapper"),
        ("sys.stdout = Sink()", "sys.stdout was left replaced by Sink"),
        ("sys.stdout = sys.__stdout__ = None", "sys.stdout was None"),
        ("sys.__stdout__ = None\nsys.stdout = io.StringIO()", "sys.stdout was left replaced"),
        ("del sys.stdout, sys.stderr, sys.stdin", "sys.stdin was None or deleted"),
        (
            "out = contextlib.redirect_stdout(io.StringIO())\nout.__enter__()",
            "sys.stdout was left replaced by StringIO",
        ),
        (
            "def quiet():\n    with contextlib.redirect_stderr(io.StringIO()):\n        yield 1\n"
            "held = quiet()\nnext(held)",
            "sys.stderr was left replaced by StringIO",
        ),
    ],
)
def test_a_broken_stream_is_repaired_in_the_next_cell(
    session: Session, cell: str, note: str
) -> None:
    session.run(BEGIN)
    outcome = session.run(cell)
    assert isinstance(outcome, Finished | Raised)
    assert outcome.state == "kept"
    assert note in outcome.stderr, outcome.stderr
    speaks(session)
    speaks(session)


def test_nothing_is_reported_where_no_stream_was_lost(session: Session) -> None:
    session.run(BEGIN)
    for cell in (
        "with contextlib.redirect_stdout(io.StringIO()): print('x')",
        "sys.stdout.reconfigure(line_buffering=True)",
        "sys.stdout, sys.stderr = sys.stderr, sys.stdout",
        "sys.stdout, sys.stderr = sys.stderr, sys.stdout",
    ):
        outcome = session.run(cell)
        assert (outcome.stdout, outcome.stderr) == ("", "")
    speaks(session)


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("last", [256, 950, 1000, 4096, 65536])
def test_the_session_goes_on_whatever_streams_are_closed(
    copied: Session, first: int, last: int
) -> None:
    """Including the worker's own connection, whose end ends the worker."""
    copied.run(BEGIN)
    outcome = copied.run(f"os.closerange({first}, {last})")
    assert isinstance(outcome, Finished | Killed), outcome
    assert outcome.state in {"kept", "rolled_back"}
    speaks(copied)
    assert isinstance(copied.run("os._exit(1)"), Killed)
    speaks(copied)


def test_streams_are_repaired_without_a_snapshot() -> None:
    with Sandbox(recovery="restart") as sandbox, sandbox.session() as session:
        session.run(BEGIN)
        session.run("x = 1")
        assert "descriptor 1" in session.run("os.close(1)").stderr
        speaks(session)


def test_a_branch_repairs_its_own_streams(copied: Session) -> None:
    copied.run(BEGIN)
    with copied.branch() as branch:
        branch.run("os.closerange(0, 3)")
        speaks(branch)
        speaks(copied)


def test_without_free_descriptors_streams_are_restored_later(sandbox: Sandbox) -> None:
    with sandbox.session(limits=Limits(open_files=32)) as session:
        session.run(BEGIN)
        session.run("os.dup2(os.pipe()[1], 1)\nheld = []")
        session.run(
            "os.dup2(os.pipe()[1], 1)\n"
            "try:\n    while 1: held.append(os.dup(0))\nexcept OSError: pass"
        )
        assert "cannot be opened again" in session.run("None or print()").stderr
        session.run("for fd in held: os.close(fd)")
        speaks(session)


def test_a_forked_child_does_not_call_the_host(session: Session) -> None:
    session.run(BEGIN)
    outcome = session.run("pid = os.fork()\nif pid: os.waitpid(pid, 0)\nelse: os.close(1)")
    assert isinstance(outcome, Finished), outcome
    speaks(session)


NOT_READ = """
for number in range(900, 990):
    say(call(number, 1, "_streams"))
say(result(1))
while not os.path.exists("all are answered"):
    time.sleep(0.01)
found, data = 0, b""
while b"second" not in data:
    data, attached, *_ = wire.recvmsg(1 << 16, socket.CMSG_SPACE(64))
    found += sum(len(each[2]) // 4 for each in attached)
say(result(2, str(found).encode(), value=len(str(found))))
time.sleep(600)
"""


def test_a_worker_that_does_not_read_gets_no_streams(sandbox: Sandbox) -> None:
    """Each request puts two descriptors on their way; the number is limited for the host's user."""
    with sandbox.session() as session:
        session.run(PRELUDE + NOT_READ)
        session.files.put("all are answered", "")
        assert session.run("second").value == "2"
