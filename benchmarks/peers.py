"""The same work done by other ways to run Python in a session. None of them is held by the kernel.

    python -m benchmarks.peers NAME      prints {figure: value} as JSON, in seconds, bytes or 1/s

Runs in the virtual environment of the peers. A figure that a peer cannot do is left out.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Protocol, Self

from . import peer_runs
from .samples import Samples
from .work import CPU_LOOP, PRINT_1_MB, STEP, TEXT_LINE


class Peer(Protocol):
    """A session of some peer."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def run(self, code: str) -> object: ...
    def put(self, text: str) -> None: ...
    def processes(self) -> list[int]: ...


class Smolagents:
    """smolagents' LocalPythonExecutor: interprets the syntax tree, in this process."""

    def __enter__(self) -> Self:
        from smolagents.local_python_executor import LocalPythonExecutor

        self._executor = LocalPythonExecutor(additional_authorized_imports=[])
        self._executor.send_tools({})
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, code: str) -> object:
        return self._executor(code)

    def put(self, text: str) -> None:
        self._executor.send_variables({"context": text})

    def processes(self) -> list[int]:
        return []  # lives in the host


class Kernel:
    """An ipykernel, spoken to with jupyter_client's blocking client."""

    def __enter__(self) -> Self:
        from jupyter_client.manager import start_new_kernel

        self._manager, self._client = start_new_kernel(
            kernel_name="python3", extra_arguments=["--log-level=ERROR"]
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def run(self, code: str) -> object:
        reply = self._client.execute_interactive(code, output_hook=lambda _: None, timeout=120)
        if reply["content"]["status"] != "ok":
            raise RuntimeError(str(reply["content"]))
        return reply

    def put(self, text: str) -> None:
        # A literal in the code takes 20 s for 100 MB; people go by a file.
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text)
            file.flush()
            self.run(f"context = open({file.name!r}).read()")

    def processes(self) -> list[int]:
        return [self._manager.provisioner.pid]


class Subprocess:
    """A Python started for the session, with a small loop on a pair of pipes."""

    def __enter__(self) -> Self:
        program = str(Path(__file__).with_name("subprocess_worker.py"))
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, code: str) -> object:
        return self._ask(b"r", code)

    def put(self, text: str) -> None:
        self._ask(b"p", text)

    def processes(self) -> list[int]:
        return [self._process.pid]

    def _ask(self, kind: bytes, text: str) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        data = text.encode()
        self._process.stdin.write(kind + struct.pack("!I", len(data)) + data)
        self._process.stdin.flush()
        (size,) = struct.unpack("!I", self._process.stdout.read(4))
        return self._process.stdout.read(size)


class LocalREPL:
    """The REPL of rlms: exec, in this process."""

    def __enter__(self) -> Self:
        from rlm.environments.local_repl import LocalREPL

        self._repl = LocalREPL()
        return self

    def __exit__(self, *_: object) -> None:
        self._repl.cleanup()

    def run(self, code: str) -> object:
        result = self._repl.execute_code(code)
        if result.stderr:
            raise RuntimeError(result.stderr)
        return result

    def put(self, text: str) -> None:
        self._repl.load_context(text)

    def processes(self) -> list[int]:
        return []  # lives in the host


PEERS: dict[str, Callable[[], Peer]] = {
    "smolagents": Smolagents,
    "ipykernel": Kernel,
    "subprocess": Subprocess,
    "rlms": LocalREPL,
}
# Samples that show a median without minutes of waiting: an ipykernel takes half a second to start,
# smolagents ten for the loop.
ROUNDS: dict[str, dict[str, int]] = {
    "smolagents": {"cold": 50, "step": 300, "stdout": 20, "context": 5, "cpu": 1, "memory": 0},
    "ipykernel": {"cold": 5, "step": 100, "stdout": 20, "context": 3, "cpu": 5, "memory": 4},
    "subprocess": {"cold": 30, "step": 300, "stdout": 20, "context": 5, "cpu": 5, "memory": 10},
    "rlms": {"cold": 50, "step": 300, "stdout": 20, "context": 3, "cpu": 5, "memory": 0},
}


def measure(name: str) -> dict[str, float]:
    """Every figure that the peer can do."""
    make, rounds = PEERS[name], ROUNDS[name]
    figures = {"cold": median(_cold(make, rounds["cold"]))}
    figures["rate"] = _rate(make)
    with make() as peer:
        for key, code in (("step", STEP), ("stdout", PRINT_1_MB), ("cpu", CPU_LOOP)):
            with _skipped_if_refused(name, key):
                figures[key] = median(_timed(partial(peer.run, code), rounds[key]))
        for megabytes in (10, 100):
            text = TEXT_LINE * (megabytes * 1_000_000 // len(TEXT_LINE))
            seconds = _timed(partial(_give, peer, text), rounds["context"])
            figures[f"context_{megabytes}"] = median(seconds)
    if rounds["memory"]:
        figures["memory"] = _memory(make, rounds["memory"])
    if name == "rlms":
        figures |= peer_runs.measure()
    return figures


def _give(peer: Peer, text: str) -> None:
    """Put `text` and look at it, since some peers only note where it is."""
    peer.put(text)
    peer.run("len(context)")


def _cold(make: Callable[[], Peer], rounds: int) -> list[float]:
    seconds = []
    for _ in range(rounds):
        start = perf_counter()
        with make() as peer:
            peer.run("1+1")
            seconds.append(perf_counter() - start)
    return seconds


def _rate(make: Callable[[], Peer], seconds: float = 3.0) -> float:
    count, start = 0, perf_counter()
    while (elapsed := perf_counter() - start) < seconds:
        with make() as peer:
            peer.run("1+1")
        count += 1
    return count / elapsed


def _timed(action: Callable[[], object], rounds: int) -> list[float]:
    if rounds > 1:
        action()  # warm
    seconds = []
    for _ in range(rounds):
        start = perf_counter()
        action()
        seconds.append(perf_counter() - start)
    return seconds


def _memory(make: Callable[[], Peer], count: int) -> float:
    peers = [make().__enter__() for _ in range(count)]
    total = 0
    for peer in peers:
        peer.run("1+1")
    for pid in (pid for peer in peers for pid in peer.processes()):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += int(next(line.split()[1] for line in rollup if line.startswith("Pss:"))) * 1024
    for peer in peers:
        peer.__exit__(None, None, None)
    return total / count


@contextmanager
def _skipped_if_refused(name: str, key: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 (each peer has its own way to refuse)
        print(f"{name} does not do {key}: {type(error).__name__}: {error}", file=sys.stderr)


def ask(python: str, name: str) -> dict[str, Samples]:
    """The medians that the interpreter `python` measures of the peer `name`; {} if it cannot."""
    done = subprocess.run(
        [python, "-m", "benchmarks.peers", name],
        stdout=subprocess.PIPE,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    medians = json.loads(done.stdout) if done.returncode == 0 else {}
    return {key: Samples((value,)) for key, value in medians.items()}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
