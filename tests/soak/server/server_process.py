"""`Served`: a server in a process of its own, and its resources, seen from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import psutil

from tests.soak.process_resources import anonymous, descriptors, mounts
from tests.waiting import PATIENCE, comes_to

# An address of this machine: a port here is free again when its server has ended.
_ADDRESS = "127.0.0.78"
# Keys of two tenants, on a server with keys; another passes them over.
GUEST, ABUSER = "soak-guest", "soak-abuser"
_KEYS = ",".join(f"{key}:{sha256(key.encode()).hexdigest()}" for key in (GUEST, ABUSER))
# Seconds within which a server has returned freed memory: somewhat more than its own interval.
_GIVES_BACK = 7.0
_LOOK = 0.5


class Holdings(NamedTuple):
    """Resources that must be the same again once no client is connected."""

    descriptors: int
    mounts: int
    processes: int


class Served:
    """A running server: `url` is where, `pid` who it is. Port 0 takes a free one.

    `keyed`: it knows GUEST and ABUSER, and refuses all others.
    """

    def __init__(self, options: Sequence[str], port: int = 0, *, keyed: bool = False) -> None:
        self._options, self._keyed = options, keyed
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in __exit__)
        program = str(Path(sys.executable).with_name("repl-env"))
        self._process = subprocess.Popen(
            [program, "serve", "--host", _ADDRESS, "--port", str(port), *options],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **({"REPL_ENV_API_KEYS": _KEYS} if keyed else {})},
            # Like a service, in its own cgroup.
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.url = self._address()

    def _address(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "http://" in line:
                return "http://" + line.partition("http://")[2].split()[0].rstrip("/")
        raise RuntimeError(f"the server did not start: {self.complaints()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def again(self) -> Served:
        """Another, on the same port, with the same options."""
        port = urlsplit(self.url).port
        assert port is not None
        return Served(self._options, port, keyed=self._keyed)

    # ── its end ───────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """Ask it to drain and end."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it on the spot."""
        self._process.kill()

    def ended(self) -> int:
        """The exit status, once the server has ended."""
        return self._process.wait(PATIENCE)

    # ── what it says ──────────────────────────────────────────────────────────────────────────

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        """Status and body of an HTTP request; the body as JSON where it is."""
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=PATIENCE)
        try:
            key = {"Authorization": f"Bearer {GUEST}"}
            connection.request(method, path, body=body, headers={**key, **headers})
            response = connection.getresponse()
            told = response.read()
        finally:
            connection.close()
        try:
            return response.status, json.loads(told)
        except ValueError:
            return response.status, told

    def complaints(self) -> list[str]:
        """The lines of its log that report an internal error."""
        self._log.seek(0)
        return [line.strip()[:500] for line in self._log if _is_complaint(line)]

    def sessions(self) -> int:
        """The number of open sessions, those in their grace time included."""
        return int(self.request("GET", "/ready")[1]["sessions"])

    # ── what it holds ─────────────────────────────────────────────────────────────────────────

    def processes(self) -> list[psutil.Process]:
        """All below it: zygotes, and what lives in jails."""
        return psutil.Process(self.pid).children(recursive=True)

    def holdings(self) -> Holdings:
        """Return the resources of the server and its zygotes."""
        pids = [str(self.pid), *(str(child.pid) for child in psutil.Process(self.pid).children())]
        found = [(0, 0)]
        for pid in pids:
            with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended meanwhile
                found.append((len(descriptors(pid)), mounts(pid)))
        held, seen = map(sum, zip(*found, strict=True))
        return Holdings(held, seen, len(self.processes()))

    def left_behind(self, before: Holdings) -> list[str]:
        """Describe the resources that stay above `before`; the server releases some late."""

        def more() -> list[str]:
            return [
                f"left behind: {name}: {became}, before {was}"
                for name, was, became in zip(before._fields, before, self.holdings(), strict=True)
                if became > was
            ]

        return comes_to(more, [])

    def memory(self) -> int:
        """Bytes of their own that it and its zygotes have in memory at rest.

        The least of some seconds: a server gives back what was freed now and then, not at once.
        """
        end, least = time.monotonic() + _GIVES_BACK, self._memory()
        while time.monotonic() < end:
            time.sleep(_LOOK)
            least = min(least, self._memory())
        return least

    def _memory(self) -> int:
        children = psutil.Process(self.pid).children()
        return anonymous(str(self.pid)) + sum(anonymous(str(child.pid)) for child in children)

    def settled(self, processes: int | None = None) -> None:
        """Wait until no session is open, and no more processes are there than that.

        Raises:
            TimeoutError: some stay.
        """

        def stay() -> bool:
            many = processes is not None and len(self.processes()) > processes
            return many or self.sessions() > 0

        if comes_to(stay, False):
            left = [str(process) for process in self.processes()]
            raise TimeoutError(f"{self.sessions()} sessions and these are left: {left}")


def _is_complaint(line: str) -> bool:
    try:
        return json.loads(line)["level"] not in ("debug", "info", "warning")
    except (ValueError, LookupError, TypeError):
        return True  # a traceback, a warning of Python's


def gone(processes: Sequence[psutil.Process]) -> list[str]:
    """The processes that still live after some time, as text."""
    return comes_to(lambda: [str(each) for each in processes if _lives(each)], [])


def _lives(process: psutil.Process) -> bool:
    try:
        # A zombie holds nothing; its new parent reads its status late.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
