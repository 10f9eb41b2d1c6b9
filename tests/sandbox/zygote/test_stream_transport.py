"""Sessions whose zygote is reached by one byte stream, as in a container with a kernel of its own.

A local process stands for the container: its standard output arrives as the daemon would frame it.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from repl_sandbox import Limits, Sandbox, SandboxError, options
from repl_sandbox.host import template, zygote
from repl_sandbox.host.docker_transport import StreamTransport
from repl_sandbox.host.links import IsolationBaseline
from repl_sandbox.host.zygote import BOOT, ZygoteProcess
from repl_sandbox.protocol.control import Lifeline
from repl_sandbox.zygote.stream import frames
from repl_sandbox.zygote.stream.frames import FILL, GIVE, LENGTH, MAKE, NUMBER, frame
from tests.conformance import run
from tests.waiting import PATIENCE

_MEMORY = 1 << 30


def in_daemon_frames(data: bytes, stream: int = 1) -> bytes:
    """Data of a container's standard output, as an attached client of the daemon reads it."""
    return struct.pack("!BxxxI", stream, len(data)) + data


class ContainerProcess:
    """A process in place of a container; `attach_socket` as of the `docker` package."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._ours, self._theirs = socket.socketpair()

    def attach_socket(self, params: dict[str, int]) -> socket.socket:
        return self._theirs

    def start(self) -> None:
        self._process = subprocess.Popen(
            [self._python, "-I", "-X", "utf8", BOOT, "stream", "confined"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=zygote.ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
        # Pipes of its own, because the process makes them non-blocking.
        self._output = threading.Thread(target=self._carry_output, daemon=True)
        self._output.start()
        threading.Thread(target=self._carry_input, daemon=True).start()

    def _carry_input(self) -> None:
        """Carry what the client sends, and close the socket once neither thread uses it."""
        assert self._process.stdin is not None
        with self._ours:
            with suppress(BrokenPipeError), self._process.stdin as stdin:
                while data := self._ours.recv(1 << 16):
                    stdin.write(data)
                    stdin.flush()
            self._output.join()

    def _carry_output(self) -> None:
        """Carry what the process prints, and end the input too when the process has ended."""
        assert self._process.stdout is not None
        with suppress(BrokenPipeError), self._process.stdout as stdout:
            while data := os.read(stdout.fileno(), 1 << 16):
                self._ours.sendall(in_daemon_frames(data))
        with suppress(OSError):  # the client has closed its end
            self._ours.shutdown(socket.SHUT_RDWR)
        self._process.wait()


class StreamLauncher:
    """Starts a zygote behind a stream; see `ZygoteLauncher`."""

    session_root = "/tmp"

    def __init__(self, python: str) -> None:
        self._python, self._transport = python, StreamTransport(_MEMORY)

    def start(self, hash_seed: int | None) -> tuple[Lifeline, ZygoteProcess]:
        with ExitStack() as undo:
            container: Any = ContainerProcess(self._python)
            self._transport.attach(container, undo)
            container.start()
            met = self._transport.meet(container, PATIENCE, lambda: None, undo)
            undo.pop_all()
        assert met is not None
        return met

    def start_error(self, process: ZygoteProcess, preload: Sequence[str]) -> SandboxError:
        return SandboxError(f"the zygote did not start: {self._transport.output()!r}")

    def baseline(self, process: ZygoteProcess) -> IsolationBaseline:
        return self._transport.baseline()

    def host_path(self, path: str) -> str:
        return path


@pytest.fixture
def streamed(open_python: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    monkeypatch.setattr(options, "container_launcher", lambda _: StreamLauncher(open_python))
    # A process has not the isolation of a container.
    monkeypatch.setattr(template, "confirm", lambda *_: None)
    with Sandbox(isolation="container", image="of a test", require="container") as sandbox:
        yield sandbox


def test_sessions_conform(streamed: Sandbox) -> None:
    report = run(streamed.session)

    failed = {result.name: result.detail for result in report.results if result.status == "failed"}
    assert failed == {}


def test_large_output_files_and_values_arrive_whole_and_in_order(streamed: Sandbox) -> None:
    """More than the window of a channel, on all channels at the same time."""
    size, pieces = 3 << 20, []
    with streamed.session(limits=Limits(output="32MiB")) as session:
        code = f"print('a' * {size})\nimport sys\nprint('b' * {size}, file=sys.stderr)\nsys.argv"
        outcome = session.run(code, on_output=lambda stream, text: pieces.append(stream))
        session.files.put("in", bytes(size))
        copied = session.run("open('out', 'wb').write(open('in', 'rb').read())")
        session.set("text", "c" * size)

        assert (len(outcome.stdout), len(outcome.stderr)) == (size + 1, size + 1)
        assert set(pieces) == {"stdout", "stderr"}
        assert copied.value == str(size)
        assert session.files.get("out") == bytes(size)
        assert session.get("text") == "c" * size


def test_output_of_a_worker_before_its_end_is_kept(streamed: Sandbox) -> None:
    with streamed.session() as session:
        session.run("x = 1")
        killed = session.run("print('last words', flush=True)\nimport os\nos._exit(3)")

        assert killed.stdout == "last words\n"
        assert session.run("x").value == "1"


# ── a container that breaks the protocol ────────────────────────────────────────────────────────


def make(number: int, size: int) -> bytes:
    return frame(MAKE, number, NUMBER.pack(size))


def fill(number: int, offset: int, data: bytes) -> bytes:
    return frame(FILL, number, NUMBER.pack(offset) + data)


def give(channel: int, *rows: list[Any]) -> bytes:
    described = json.dumps(rows).encode()
    return frame(GIVE, channel, LENGTH.pack(len(described)) + described)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (make(3, 5) + make(5, 5), "too many files"),
        (make(3, _MEMORY + 1), "exceeds"),
        (make(3, 5) + fill(3, 4, b"ab"), "outside its file"),
        (make(3, 5) + give(9, ["file", 3, 0, 4, -1, False]), "does not match"),
        (give(9, ["file", 3, 0, 4, -1, False]), "does not match"),
        (give(0, ["read", 3, 0, 0, -1, False]), "a descriptor of kind read"),
        (give(0, ["file"]), "is invalid"),
        (frame(GIVE, 0, b"\xff"), "is invalid"),
        (frame(MAKE, 3, b"1"), "a number of 1 bytes"),
        (b"\xff" * frames.HEADER.size, "kind 255"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_relay_ends_with_an_error_at_an_invalid_frame(sent: bytes, error: str) -> None:
    ours, theirs = socket.socketpair()
    sockets = [socket.socketpair(type=socket.SOCK_SEQPACKET) for _ in range(2)]
    passed = [theirs.fileno(), *(end.fileno() for _, end in sockets)]
    with ours, theirs:
        relay = subprocess.Popen(
            [sys.executable, "-I", BOOT, "relay", *map(str, passed), str(_MEMORY)],
            stdout=subprocess.PIPE,
            pass_fds=passed,
        )
        ours.sendall(in_daemon_frames(b"a traceback", 2) + in_daemon_frames(sent))
        said, _ = relay.communicate(timeout=PATIENCE)
    for pair in sockets:
        for end in pair:
            end.close()

    assert relay.returncode == 0
    assert said.startswith(b"a traceback")
    assert b"the container sent an invalid frame" in said
    assert error.encode() in said
