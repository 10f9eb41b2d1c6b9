"""Several supervisors at once, each given one case after the other.

Most cases wait for a clock, so a few at a time take the machine no longer than one. A supervisor
that does not reply is ended and replaced: a case that hangs its host has failed, and is reported.
"""

from __future__ import annotations

import json
import queue
import select
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .case import PATIENCE, Case
from .identity import Identity
from .verdict import Verdict


class Crew:
    """`verdicts`, `left` (what supervisors left behind) and their `pids` fill while `run` runs."""

    def __init__(self, identity: Identity, tier: str, sentinel: int, size: int) -> None:
        self.verdicts: list[Verdict] = []
        self.left: list[str] = []
        self.pids: list[int] = []
        self._identity = identity
        self._arguments = (tier, str(sentinel), *identity.pythons.get(tier, ()))
        self._size = size

    def run(self, work: Sequence[Case]) -> None:
        """Run all of `work`, longest first, so that no case is left alone at the end."""
        waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
        for case in sorted(work, key=lambda case: -case.check.timeout):
            waiting.put(case)
        threads = [threading.Thread(target=self._serve, args=(waiting,)) for _ in range(self._size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _serve(self, waiting: queue.SimpleQueue[Case]) -> None:
        member: _Member | None = None
        while True:
            try:
                case = waiting.get_nowait()
            except queue.Empty:
                break
            member = member or self._member()
            verdict = member.ask(case)
            self.verdicts.append(verdict)
            if member.gone:
                member = None
        if member is not None:
            self.left += member.leave()

    def _member(self) -> _Member:
        process = self._identity.start(*self._arguments)
        self.pids.append(process.pid)
        return _Member(process, self._arguments[0])


class _Member:
    """The process of one supervisor."""

    def __init__(self, process: subprocess.Popen[str], asked: str) -> None:
        self._process = process
        self._asked = asked
        self.gone = False
        hello = self._hear(2 * PATIENCE)
        self._unavailable = "" if hello is None else hello.get("unavailable", "")
        self._tier = None if hello is None else hello.get("tier")

    def ask(self, case: Case) -> Verdict:
        """Have `case` run."""
        if self._unavailable:
            return Verdict(case.id, case.group, "not run", self._unavailable)
        if self._tier is None:
            return self._lost(case, "the supervisor did not start")
        if self._tier != self._asked and self._asked != "policy":
            return self._lost(case, f"asked for {self._asked}, but a probe found {self._tier}")
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(case)) + "\n")
            self._process.stdin.flush()
        except OSError:
            return self._lost(case, "the supervisor had died before")
        reply = self._hear(case.longest)
        if reply is None:
            return self._lost(case, f"the host hung or died: no verdict in {case.longest:g} s")
        return Verdict(**reply)

    def leave(self) -> list[str]:
        """End the supervisor regularly; return its leftovers."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        last = self._hear(3 * PATIENCE)
        if last is None:
            self._process.kill()
        self._process.wait(2 * PATIENCE)
        if self._unavailable:
            return []
        return ["a supervisor did not end"] if last is None else list(last["left"])

    def _lost(self, case: Case, problem: str) -> Verdict:
        self.gone = True
        self._process.kill()
        self._process.wait()
        return Verdict(case.id, case.group, "failed", problem)

    def _hear(self, seconds: float) -> dict[str, Any] | None:
        """The next complete line; None at the end of the file or after the timeout."""
        assert self._process.stdout is not None
        poller = select.poll()
        poller.register(self._process.stdout, select.POLLIN)
        if not poller.poll(seconds * 1000):
            return None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None
