"""Checks of the `host` keys: made on the host, while the session is open and once it is closed.

One function for each key, in two tables. A question that this engine has no answer to, because it
lacks the part that is asked about, is `NotApplicable`.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from repl_sandbox import CheckpointError, Finished

from .. import processes
from ..case import PATIENCE
from ..internals import session_core
from ..trial import UNPROVED, Trial, init_of, outer_uid, text_of
from ..verdict import NotApplicable
from . import fixtures

_MiB = 1 << 20
# SECURITY.md: a group holds a session to twice its memory, for what a cell rewrites is there twice.
_IN_GROUP = 2.2
# Likewise: without a cgroup a watchdog samples the sum, and a burst between two samples passes:
# what the processes of a session can touch meanwhile. 1.8 GiB were seen on two idle cores. The
# cases hold more if nobody ends them: 16 times 200 MiB.
_BURST = 2 << 30
# Seconds for a checkpoint and for its restoration: more than filling the memory takes.
_CHECKPOINT = 12.0
_CORES = ("/var/crash", "/var/lib/systemd/coredump", "/cores", "/", ".")
_GRADE = """
import unittest
try:
    unittest.TestCase().assertEqual(1, 2)
    graded = "passed"
except AssertionError:
    graded = "failed"
"""


class Open:
    """Questions while the session is open, against what the host was like before it."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._resident = processes.resident()
        self._sysv = _sysv()
        self._cores = _cores()

    def ask(self, key: str) -> None:
        """Note what does not hold of `key`; keys for later are passed over."""
        name, _, rest = key.partition(":")
        if (question := _WHILE_OPEN.get(name)) is not None:
            question(self, *filter(None, [rest]))
        elif name not in _ONCE_CLOSED and name not in _BY_THE_RUN:
            raise ValueError(f"{self._trial.case.id}: no such host check: {key}")

    # ── files and places of the host ─────────────────────────────────────────────────────────

    def absent(self, path: str) -> None:
        self._trial.expect(not os.path.lexists(path), f"{path} is on the host")

    def no_core(self) -> None:
        new = _cores() - self._cores
        self._trial.expect(not new, f"core files: {sorted(new)}")

    def no_new_sysv(self) -> None:
        self._trial.expect(_sysv() == self._sysv, "System V objects are on the host")

    def port_closed(self, port: str) -> None:
        import socket

        with socket.socket() as sock:
            refused = sock.connect_ex(("127.0.0.1", int(port))) != 0
        self._trial.expect(refused, f"port {port} of the host is open")

    # ── what the session used ────────────────────────────────────────────────────────────────

    def rss_cap(self) -> None:
        cap = int(session_core(self._trial.session).limits.memory)
        hard = any(
            layer.active and "cgroup" in layer.name and "namespace" not in layer.name
            for layer in self._trial.isolation.layers
        )
        most = cap * _IN_GROUP if hard else cap + _BURST
        peak = self._trial.meters.memory
        self._trial.expect(peak <= most, f"{peak >> 20} MiB in use, the cap is {cap >> 20}")

    def ws_cap_mb(self, most: str) -> None:
        peak = self._trial.meters.workspace
        self._trial.expect(peak <= int(most) * _MiB, f"the workspace grew to {peak >> 20} MiB")
        self._trial.expect(peak > 0, "the workspace was not seen")

    def host_rss_growth_mb(self, most: str) -> None:
        grown = (processes.resident() - self._resident) >> 20
        self._trial.expect(grown < int(most), f"the host grew by {grown} MiB")

    # ── artefacts ────────────────────────────────────────────────────────────────────────────

    def list_ok(self) -> None:
        self._trial.session.files.list()

    def download(self, rest: str) -> None:
        name, _, expected = rest.rpartition(":")
        files = self._trial.session.files
        try:
            data = files.get(name)
        except Exception as error:  # noqa: BLE001 - any typed error of the API is a refusal
            self._trial.expect(not isinstance(error, MemoryError), f"{name}: {error}")
            return
        if expected == "refused":
            self._trial.problems.append(f"{name} was handed out: {data[:40]!r}")
        self._trial.expect(len(data) <= 256 * _MiB, f"{name}: {len(data)} bytes were handed out")

    def extract(self, name: str) -> None:
        """The session unpacks it, as the engine never does."""
        module, call = ("zipfile", "ZipFile") if name.endswith(".zip") else ("tarfile", "open")
        code = f"import {module}\nwith {module}.{call}({name!r}) as a: a.extractall('unpacked')"
        self._trial.session.run(code)

    def checkpoint(self, proof: str) -> None:
        """Checkpoint the case's session; the restored session shows no denied pattern, and it or
        the error has `proof` that the attack on checkpoints took place.
        """
        trial = self._trial
        try:
            data = trial.session.checkpoint(timeout=_CHECKPOINT * trial.clocks)
            restored = trial.sandbox.restore(data, timeout=_CHECKPOINT * trial.clocks)
        except CheckpointError as error:
            if "cloudpickle" in str(error):
                raise NotApplicable(f"nothing can be checkpointed: {error}") from None
            self._judge(str(error), proof)
            return
        with restored:
            outcome = restored.run("print(globals().get('said', ''))", timeout=PATIENCE)
            rows = [f"{row.name} {row.type} {row.reason}" for row in restored.missing]
            self._judge("\n".join([text_of(outcome), *rows]), proof)
            again = restored.run("1+1", timeout=PATIENCE)
            trial.expect(again.value == "2", "1+1 is not 2 in what was restored")
        one = trial.session.run("1+1", timeout=PATIENCE)
        trial.expect(one.value == "2", "1+1 is not 2 in what was saved")

    def _judge(self, text: str, proof: str) -> None:
        proved = re.search(proof, text) is not None
        self._trial.expect(proved, f"{UNPROVED} of a checkpoint proves the attack: {text:.200}")
        for pattern in self._trial.case.check.deny:
            found = re.search(pattern, text)
            self._trial.expect(found is None, f"a checkpoint has {pattern}: {text:.200}")

    # ── properties of the engine ─────────────────────────────────────────────────────────────

    def sentinel_alive(self) -> None:
        alive = bool(processes.identities([self._trial.sentinel]))
        self._trial.expect(alive, "the sentinel is gone")

    def uid_differs(self) -> None:
        mine = outer_uid(self._trial.session)
        if mine == os.geteuid():
            raise NotApplicable("an ordinary user's sessions all have that user's uid outside")
        with self._trial.open() as other:
            theirs = outer_uid(other)
        differ = len({0, os.geteuid(), mine, theirs}) == 3 + (os.geteuid() != 0)
        self._trial.expect(differ, f"outer uids {mine} and {theirs}")

    def grade_fresh_process(self) -> None:
        """Check that patches made by a case do not reach the session of a grader."""
        with self._trial.open() as grader:
            grader.run(_GRADE)
            graded = grader.get("graded")
        self._trial.expect(graded == "failed", "a grader's session believes a patched assertion")

    def reward_unchanged(self) -> None:
        try:
            from repl_env import LocalREPLEnv
        except ImportError as error:
            raise NotApplicable(f"the environment cannot be imported here: {error}") from None
        with LocalREPLEnv(sandbox=self._trial.sandbox) as env:
            env.reset(expected_answer="right")
            first = env.execute(self._trial.case.code)
            last = env.execute("FINAL('wrong')")
        self._trial.expect(not first.done and not first.reward, f"a file was rewarded: {first}")
        self._trial.expect(last.done and last.reward == 0, f"a wrong answer was rewarded: {last}")

    def restart_then(self, rest: str) -> None:
        code, _, expected = rest.rpartition("=")
        self._trial.session.run("import os\nos._exit(0)")
        value = self._trial.session.run(code).value
        self._trial.expect(value == expected, f"after a restart {code} is {value}")

    # ── answers and calls ────────────────────────────────────────────────────────────────────

    def final_not(self, text: str) -> None:
        given = [answer.text for answer in self._answers() if text in answer.text]
        self._trial.expect(not given, f"the answer {text} was taken")

    def final_is_or_none(self, text: str) -> None:
        given = [answer.text for answer in self._answers()][:1]
        self._trial.expect(given in ([], [text]), f"the answer is {given}")

    def final_plain(self) -> None:
        for answer in self._answers():
            plain = type(answer.text) is str and _is_plain(answer.value)
            self._trial.expect(plain, f"the answer is a {type(answer.value).__name__}")

    def llm_calls_max(self, most: str) -> None:
        made = self._trial.broker.accepted
        self._trial.expect(made <= int(most), f"{made} calls were accepted")

    def _answers(self) -> list[Any]:
        return [answer for reply in self._trial.replies for answer in reply.answers]


class Closing:
    """Closes the session, and answers the questions about its end."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        session = trial.session
        init = init_of(session)
        pids = [init, *processes.descendants(init)]
        self._identities = processes.identities(pids)
        trial.quiet.begin()
        start = time.monotonic()
        session.close()
        self._took = time.monotonic() - start
        self._slack = trial.quiet.slack
        self._calls = trial.broker.accepted

    def ask(self, key: str) -> None:
        """Note what does not hold of `key`; keys for earlier are passed over."""
        name, _, rest = key.partition(":")
        if (question := _ONCE_CLOSED.get(name)) is not None:
            question(self, *filter(None, [rest]))

    def close_within(self, most: str) -> None:
        in_time = self._took <= float(most) + self._slack
        self._trial.expect(in_time, f"closing took {self._took:.1f} s")

    def cleanup_ok(self) -> None:
        self.close_within("5")
        self.procs_gone_after_reset()

    def procs_gone_after_close(self, name: str) -> None:
        everybody = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        self._trial.expect(name not in processes.names(everybody), f"{name} still runs")
        self.procs_gone_after_reset()

    def procs_gone_after_reset(self) -> None:
        """The engine's reset is a session that ends and another that begins."""
        with self._trial.open() as next_one:
            answer = next_one.run("6 * 7")
            left = processes.identities(list(self._identities)).items() & self._identities.items()
        self._trial.expect(not left, f"processes {sorted(left)} are left")
        self._trial.expect(isinstance(answer, Finished), "the next session does not answer")

    def llm_no_calls_after_close(self) -> None:
        made = self._trial.broker.accepted - self._calls
        self._trial.expect(made == 0, f"{made} calls came after the end")


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return type(value) is list and all(map(_is_plain, value))
    if isinstance(value, dict):
        return type(value) is dict and all(map(_is_plain, (*value, *value.values())))
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (bool, int, str)


def _sysv() -> tuple[str, ...]:
    kinds = ("shm", "sem", "msg")
    return tuple(Path(f"/proc/sysvipc/{kind}").read_text() for kind in kinds)


def _cores() -> set[str]:
    found = set()
    for folder in (*_CORES, str(fixtures.ROOT)):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        found |= {os.path.join(folder, name) for name in names if name.startswith("core")}
    return found


_WHILE_OPEN: dict[str, Callable[..., None]] = {
    name: question
    for name, question in vars(Open).items()
    if callable(question) and not name.startswith("_") and name != "ask"
}
_ONCE_CLOSED: dict[str, Callable[..., None]] = {
    name: question
    for name, question in vars(Closing).items()
    if callable(question) and not name.startswith("_") and name != "ask"
}
# Listeners belong to the run, which looks at them when all cases are through.
_BY_THE_RUN = frozenset(f"{kind}_not_hit" for kind in ("tcp", "udp", "unix", "abstract"))
