"""A worker that sends anything, or nothing, harms neither the state nor the memory of the host.

Code in a session finds the worker's socket easily. After any use of it the host goes on, and the
session runs its next cell.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from repl_sandbox import Finished, Killed, Limits, Outcome, Sandbox, TimedOut
from tests.internals import worker_pid
from tests.waiting import LONG, PATIENCE

# Finds the worker's socket, and speaks the protocol over it.
PRELUDE = """
import json, os, socket, stat, struct, time

FD = next(fd for fd in range(4095, 2, -1) if os.path.exists(f"/proc/self/fd/{fd}")
          and stat.S_ISSOCK(os.fstat(fd).st_mode))
wire = socket.socket(fileno=os.dup(FD))

def frame(header, blob=b""):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("!II", len(head), len(blob)) + head + blob

def result(cell, blob=b"", **more):
    fields = dict(type="result", cell=cell, value=None, error=None, changes=[], figures=[])
    return frame({**fields, "displays": [], "peak": 0, **more}, blob)

def call(number, cell, name, args=b"[[],{}]"):
    return frame(dict(type="call", call=number, cell=cell, name=name, parts=[]), args)

def answered(number, cell, value, text=b"t"):
    sizes = dict(text=len(text), printed=None)
    return frame(dict(type="answered", call=number, cell=cell, form="FINAL", **sizes), text + value)

def numbers(count):
    return b"[" + b"0.5," * count + b"0.5]"

def say(data):
    wire.sendall(data)
"""

TIERS = ("jailed", "confined")

WAIT = "\ntime.sleep(600)"


def run(sandbox: Sandbox, code: str, timeout: float = PATIENCE, **arguments: Any) -> Outcome:
    """The outcome of `code` in a new session, which must be alive afterwards."""
    functions = {"double": lambda x: 2 * x}
    limits = Limits(timeout=PATIENCE, grace=0.2)
    with sandbox.session(host=functions, limits=limits, **arguments) as session:
        outcome = session.run(PRELUDE + code, timeout=timeout)
        session.run("pass")  # what is left of a torn conversation may end here
        assert session.run("double(21)").value == "42"
        return outcome


@pytest.mark.parametrize(
    "code",
    [
        r"say(b'\xff' * 100)",
        r"say(b'GET / HTTP/1.1\r\n\r\n' * 10)",
        "say(struct.pack('!II', 1 << 31, 0))",
        "say(struct.pack('!II', 0, 1 << 31))",
        "say(frame(b''))",
        "say(frame(b'[]'))",
        "say(frame(b'null'))",
        r"say(frame(b'\xff\xfe'))",
        "say(frame(b'[' * 100_000))",
        """say(frame(b'{"type": NaN}'))""",
        "say(frame({'type': ['result']}))",
        "say(frame({'type': 'nothing'}))",
        r"say(frame(b'\1' + bytes(7) + b'\1'))",
        r"say(frame(b'\1' + bytes(3)))",
        r"say(frame(b'\2' + bytes(8)))",
        r"say(frame(b'\2' + bytes(7) + b'\2' + bytes(8)))",
        r"say(frame(b'\2' + b'\xff' * 16))",
        r"say(frame(b'\2' + bytes(7) + b'\1' + bytes(8), b'x'))",
        "say(frame({'type': 'ready', 'version': 1}))",
        "say(frame({'type': 'value'}))",
        "say(result(2))",
        "say(result(-1))",
        "say(result(1.0))",
        "say(result(True))",
        "say(result('1'))",
        "say(result(10 ** 30))",
        "say(result(1, value=7))",
        "say(result(1, changes=[['new', 'x', 'int', 28]]))",
        "say(result(1, changes=[['stolen', 'x', 'int', 28, '1']]))",
        "say(result(1, changes=[['new', 'x', 'int', 28, '1']] * 100_000))",
        "say(result(1, figures=[1 << 40]))",
        "png = b'\\x89PNG\\r\\n\\x1a\\n' + bytes(9 << 20)\n"
        "say(result(1, blob=png, figures=[len(png)]))",
        "say(result(1, blob=b'x' * (17 << 20), value=17 << 20))",
        "say(result(1, error=['a', 'b']))",
        "say(call(1, 1, 'double', b'{}'))",
        "say(call(1, 1, 'double', b'[[1], []]'))",
        "say(call(1, 1, 'double', b'[[1], {'))",
        "say(call(1, 1, '_output_text', b'[[], {}]'))",
        """say(call(1, 1, '_output_text', b'[["1", 2, 3, 4], {}]'))""",
        "say(call(1, 1, '_output_length', b'[[null, null], {}]'))",
        "say(call(1, 1, 'double', b'[' + numbers(1 << 21) + b', {}]'))",
        "say(call(1, 1, '_output_length', b'[[1, \"stdout\"' + b' ' * 2000 + b'], {}]'))",
        "say(answered(1, 1, b'[1, 2'))",
        "say(answered(1, 1, b''))",
        "say(answered(1, 1, numbers(1 << 19)))",
        "say(answered(1, 1, b'\"' + b'x' * (49 << 20) + b'\"'))",
        "say(answered(1, 1, b'1', b'x' * (9 << 20)))",
        "say(answered(1, 1, b'1').replace(b'FINAL', b'BRIBE'))",
    ],
)
def test_a_worker_that_breaks_the_protocol_is_killed_and_reported(
    sandbox: Sandbox, code: str
) -> None:
    outcome = run(sandbox, code + WAIT)
    assert isinstance(outcome, Killed), outcome
    assert (outcome.reason, outcome.state) == ("protocol", "rolled_back")


def test_an_unsolicited_request_for_a_file_gets_none(sandbox: Sandbox) -> None:
    """The descriptor that the host passes belongs to the latest message, and is passed once."""
    outcome = run(
        sandbox,
        "say(call(900, 1, '_memfd'))\n"
        "data, attached, _, _ = wire.recvmsg(1 << 16, socket.CMSG_SPACE(64))\n"
        "b'Cancelled' in data, attached",
    )
    assert outcome.value == "(True, [])"


def test_a_worker_that_asks_for_a_file_twice_at_once_is_killed(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        session.run("print('x' * (1 << 20))")
        outcome = session.run(
            PRELUDE
            + "pages = [call(900 + n, 2, '_output_text', b'[[1, \"stdout\", 0, 262144], {}]')"
            " for n in range(3)]\n"  # which is never read
            "say(b''.join([*pages, call(990, 2, '_memfd'), call(991, 2, '_memfd')]))" + WAIT
        )
        assert isinstance(outcome, Killed), outcome
        assert (outcome.reason, outcome.state) == ("protocol", "rolled_back")


@pytest.mark.parametrize("depth", [50, 200, 450, 900, 3_000, 100_000])
@pytest.mark.parametrize("message", ["call", "answered", "value"])
def test_deep_nesting_with_a_lone_surrogate_raises_nothing_on_the_host(
    sandbox: Sandbox, depth: int, message: str
) -> None:
    nest = f"b'[' * {depth} + b'\"\\\\ud800\"' + b']' * {depth}"
    says = {
        "call": f"say(call(9, 1, 'double', b'[[' + {nest} + b'],{{}}]'))",
        "answered": f"say(answered(9, 1, {nest}))",
        "value": f'say(frame(b\'{{"type":"result","cell":\' + {nest} + b\'}}\'))',
    }
    outcome = run(sandbox, says[message], answers="strict")
    assert isinstance(outcome, (Finished, Killed)), outcome


@pytest.mark.parametrize(
    "code",
    [
        "os.write(FD, b'\\0\\0\\0\\x10')\nwhile True: pass",
        "os.kill(os.getpid(), 19)",
        "while True:\n    try: time.sleep(30)\n    except BaseException: pass",
        "wire.shutdown(socket.SHUT_RD)\nwhile True: pass",
        # A child keeps the socket open, so the host sees no end of file.
        "if os.fork() == 0:\n    while True: pass\nos.close(FD); wire.close()" + WAIT,
    ],
    ids=["half a frame", "SIGSTOP", "interrupts swallowed", "deaf", "hung up behind a child"],
)
def test_a_silent_worker_ends_with_the_timeout(sandbox: Sandbox, code: str) -> None:
    assert isinstance(run(sandbox, code, timeout=0.3), (TimedOut, Killed))


@pytest.mark.parametrize(
    "code",
    [
        "os.close(FD); wire.close()\nwhile True: pass",
        "wire.shutdown(socket.SHUT_RDWR)\nwhile True: pass",
        "os.closerange(3, 4096)\nwhile True: pass",
    ],
)
def test_a_worker_that_closes_its_socket_and_lives_on_is_killed(
    sandbox: Sandbox, code: str
) -> None:
    outcome = run(sandbox, code)
    assert isinstance(outcome, Killed), outcome
    assert outcome.reason == "protocol"


@pytest.mark.parametrize(
    ("deaf", "states"),
    [
        # It has no snapshot.
        (
            "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n",
            ["restarted"],
        ),
        # When it is interrupted its real result comes, which is a breach; it may be copied before.
        ("", ["restarted", "rolled_back"]),
    ],
    ids=["deaf", "interrupted"],
)
def test_a_forged_result_ends_that_cell_only(
    sandbox: Sandbox, deaf: str, states: list[str]
) -> None:
    """Code may misreport its own cell, but can affect neither the timeout nor the result of the
    next.
    """
    with sandbox.session(limits=Limits(timeout=PATIENCE, grace=0.2)) as session:
        outcome = session.run(f"{PRELUDE}{deaf}say(result(1))\nwhile True: pass")
        assert isinstance(outcome, Finished)
        outcome = session.run("'next'", timeout=0.3)
        assert outcome.value is None
        assert outcome.state in states
        assert session.run("6 * 7").value == "42"


def test_a_result_forged_in_advance_is_not_used_for_the_next_cell(sandbox: Sandbox) -> None:
    with sandbox.session(limits=Limits(timeout=PATIENCE, grace=0.2)) as session:
        assert isinstance(session.run(PRELUDE + "say(result(1) + result(2))" + WAIT), Killed)


def test_calls_for_another_cell_do_not_reach_the_host(sandbox: Sandbox) -> None:
    reached: list[int] = []
    with sandbox.session(host={"reach": reached.append}) as session:
        code = "for cell in (0, 2, 3, 99): say(call(1000 + cell, cell, 'reach', b'[[1],{}]'))"
        session.run(PRELUDE + code)
        session.run("pass")
        session.run("pass")
    assert reached == []


def test_unknown_host_functions_cannot_be_called(sandbox: Sandbox) -> None:
    code = "say(call(9, 1, '__class__'))\nreply = wire.recv(1000).decode(errors='replace')\nreply"
    outcome = run(sandbox, code)
    assert outcome.value is not None
    assert "NameError" in outcome.value


def test_a_late_reply_is_not_taken_for_that_of_another_call(sandbox: Sandbox) -> None:
    """The next worker counts its calls from one again."""
    release, released = threading.Event(), threading.Event()

    def ask(question: str) -> str:
        if question == "first":
            os.kill(worker_pid(session), signal.SIGKILL)
            release.wait(PATIENCE)
            released.set()
            return "answer to the first"
        release.set()
        released.wait(PATIENCE)
        # The first call's reply is on its way now; a barrier for it is a call of its own.
        return "answer to the second"

    with sandbox.session(host={"ask": ask}) as session:
        assert isinstance(session.run("ask('first')"), Killed)
        assert session.run("ask('second')").value == "'answer to the second'"


# ── floods: each in a host of its own, whose peak of memory is its own ────────────────────────

FLOOD = """
import json, resource
from repl_sandbox import Limits, Sandbox

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

limits = Limits(timeout=60, grace=0.3, output="4MiB")
with Sandbox(limits=limits) as sandbox:
    with sandbox.session(host={"double": lambda x: 2 * x}, answers="strict") as session:
        session.run("print('x' * 2_000_000)")
        session.run("double(21)")
        before = peak()
        outcome = session.run(CODE, timeout=SECONDS)
        session.run("pass")
        alive = session.run("double(21)").value
    print(json.dumps([type(outcome).__name__, alive, peak() - before, len(outcome.stdout)]))
"""


# A flood that the time limit ends has one second: it stops at once, for the host stops reading.
FLOODS = {
    "a GiB of output": (3, "block = b'x' * (1 << 20)\nfor _ in range(1024): os.write(1, block)"),
    "tiny writes": (3, "for _ in range(300_000): os.write(2, b'xy')"),
    "children that print": (
        3,
        "import subprocess\nfor _ in range(4): subprocess.Popen(['yes'])\ntime.sleep(0.3)",
    ),
    "calls of nothing": (1, "for n in range(100_000): say(call(n + 100, 3, 'nothing'))"),
    "calls of another cell": (1, "for n in range(100_000): say(call(n + 100, 99, 'double'))"),
    "pages never read": (
        3,
        "page = b'[[1,\"stdout\",0,2000000],{}]'\n"
        "for n in range(400): say(call(n + 100, 3, '_output_text', page))",
    ),
    "answers": (
        3,
        "text = b'x' * 8_000_000\n"
        "for n in range(100): say(answered(n + 100, 3, b'null', text)); wire.recv(1 << 16)",
    ),
    "a huge frame": (
        3,
        "block = bytes(1 << 20)\nwire.sendall(struct.pack('!II', 100, 60 << 20))\n"
        "for _ in range(300): wire.sendall(block)",
    ),
    "many lists": (
        3,
        "say(call(100, 3, 'double', b'[[' + b'[],' * 20_000_000 + b'[]],{}]'))",
    ),
    "many numbers": (3, "say(call(100, 3, 'double', b'[' + numbers(15_000_000) + b',{}]'))"),
    "a page of numbers": (
        3,
        "say(call(100, 3, '_output_length', b'[' + numbers(15_000_000) + b',{}]'))",
    ),
    "an answer of numbers": (3, "say(answered(100, 3, numbers(15_000_000)))"),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_is_bounded_in_the_memory_of_the_host(name: str) -> None:
    """Below the size of one frame of the largest size, with its copies."""
    seconds, code = FLOODS[name]
    done = subprocess.run(
        [sys.executable, "-c", f"CODE, SECONDS = {PRELUDE + code!r}, {seconds}\n{FLOOD}"],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kind, alive, grown, shown = json.loads(done.stdout)
    assert alive == "42", kind
    assert shown <= (4 << 20) + 1000
    assert grown < 256, f"{grown} MiB"


# Tells that the limit was met: once, by whichever process met it.
TELLS = """
import mmap
told = mmap.mmap(-1, 1)
def full():
    if told[0]: return
    told[0] = 1
    print("full", flush=True)
"""


@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    try: os.fork()\n    except OSError: full()",
        "for _ in range(500):\n    try:\n        if os.fork() == 0: os._exit(0)\n"
        "    except OSError: full(); break",
        "import threading\nthreads = []\ntry:\n    while True:\n"
        "        threads.append(threading.Thread(target=time.sleep, args=(30,), daemon=True))\n"
        "        threads[-1].start()\nexcept RuntimeError: full()",
        "if os.fork() == 0:\n    while True:\n        try: os.fork()\n"
        "        except OSError: full()\nwhile not told[0]: time.sleep(0.01)",
    ],
    ids=["fork bomb", "zombies", "threads", "fork bomb left behind"],
)
def test_a_fork_bomb_of_a_hostile_worker_affects_its_session_only(
    sandbox: Sandbox, code: str
) -> None:
    limits = Limits(timeout=PATIENCE, grace=0.2, processes=30)
    with sandbox.session() as neighbour, sandbox.session(limits=limits) as session:
        outcome = session.run(PRELUDE + TELLS + code, timeout=1)
        assert "full" in outcome.stdout or "processes" in outcome.limits, outcome
        assert neighbour.run(
            "import os\nos.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)"
        ).ok
        session.run("import os\nos._exit(0)")  # a restart ends what was left
        assert session.run("6 * 7").value == "42"


def test_a_thread_that_prints_between_cells_does_not_delay_the_next(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        code = "import threading\ndef chat():\n    while True: print('.' * 200)\n"
        session.run(code + "threading.Thread(target=chat, daemon=True).start()")
        for number in range(5):
            assert session.run(f"{number}").value == str(number)


def test_an_output_held_open_by_children_does_not_delay_the_cell(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        outcome = session.run("import subprocess\nsubprocess.Popen(['sleep', '1000'])\n'done'")
        assert outcome.value == "'done'"
