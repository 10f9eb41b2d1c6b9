"""The host's side of a zygote: start it, ask it for sessions, hold its lifeline."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Protocol

from ..cgroups.group import Group
from ..errors import IsolationError, RemoteProtocolError, SandboxClosed, SandboxError
from ..types import Policy
from ..wire.connection import HostConnection
from ..wire.messages import VERSION, Ready
from . import control, requests
from .conversation import Conversation, Gone
from .outside import Outside

_BOOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "boot.py")

# An interpreter starts in 10 ms and numpy with pandas in 1 s; importing torch from a cold disk can
# take a minute.
START_TIMEOUT = 120.0
# A session takes 3 ms; on a machine that swaps or is overloaded a thousand times that.
SPAWN_TIMEOUT = 30.0
# To end all sessions and to remove their directories, where the kernel does not.
_LEAVE_TIMEOUT = 30.0

# Bytes of settings: the rest of the message is their names and a number.
_MOST_SETTINGS = control.MAX_MESSAGE - 256

# The whole environment of the template and so of each session. Nothing of the host's is passed on.
_ENVIRONMENT = {
    # Look up all functions of shared libraries now, as import does with those of modules: ld.so(8).
    # Else each session does it for each that it calls, on pages that it copies for that.
    "LD_BIND_NOW": "1",
    "HOME": "/workspace",
    "USER": "user",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
    "MPLBACKEND": "Agg",  # there is no display
    "MPLCONFIGDIR": "/tmp/matplotlib",
    # Threads would make each fork one of a multi-threaded process, and sessions share the cores.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}

_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid


class Family:
    """How many lines of one session are open or begun: the session itself and its branches.

    `fit` of the callers gives that many their room; one at a time, and never after the last left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.lines = 1

    def join(self, most: int, fit: Callable[[int], None]) -> bool:
        """One more, unless there are `most`; whether there was room."""
        with self._lock:
            if self.lines >= most:
                return False
            fit(self.lines + 1)
            self.lines += 1
            return True

    def leave(self) -> bool:
        """One less; whether that was the last."""
        with self._lock:
            self.lines -= 1
            return not self.lines

    def refit(self, fit: Callable[[int], None]) -> None:
        """Take the room of those back that have left."""
        with self._lock:
            if self.lines:
                fit(self.lines)


@dataclass(slots=True)
class Links:
    """What connects the host to one session. `pid` is that of its init, as the host sees it."""

    number: int  # of the request that made the session
    pid: int
    worker_pid: int
    control: socket.socket
    worker: socket.socket
    stdout: int
    stderr: int
    connection: HostConnection
    outside: Outside
    group: Group | None = None
    # What its worker found of the layers that cannot be seen from outside, before any code ran.
    held: dict[str, int] = field(default_factory=dict)
    folder: str = ""  # its own directory, where it has no private mounts
    tier: str = "jailed"
    interpreter: tuple[str, str] = ("", "")  # version and implementation
    family: Family = field(default_factory=Family)

    def close(self) -> None:
        """Let go; the session ends, for its init reads end of file."""
        self.control.close()
        self.worker.close()
        os.close(self.stdout)
        os.close(self.stderr)
        group, self.group = self.group, None
        if group is not None:
            group.release()


class Process(Protocol):
    """What a handle needs of its zygote's process; `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def poll(self) -> int | None:
        """None while it lives."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; subprocess.TimeoutExpired after `timeout` seconds."""

    def kill(self) -> None:
        """End it."""


class ZygoteHandle:
    """One zygote. Thread-safe; dead in a process that was forked from this one."""

    def __init__(
        self,
        python: str | None,
        preload: Sequence[str],
        mounts: Mapping[str, str],
        policy: Policy | None = None,
        tier: str = "jailed",
        hash_seed: int | None = None,
    ) -> None:
        configuration = {
            "preload": list(preload),
            "mounts": dict(mounts),
            "policy": None if policy is None else asdict(policy),
            "place": tempfile.gettempdir() if tier != "jailed" else "",
        }
        _check_size(configuration)
        ours, theirs = control.pair()
        self._hold(ours, tier)
        self._numbers = itertools.count(1)
        executable = python or sys.executable
        bin_path = f"{os.path.dirname(executable)}:/usr/local/bin:/usr/bin:/bin"
        # -I is -E, -P and -s. Without -E it reads the seed; the environment is ours, whole.
        flags = ["-I"] if hash_seed is None else ["-P", "-s"]
        seeded = {} if hash_seed is None else {"PYTHONHASHSEED": str(hash_seed)}
        try:
            with theirs:
                self._process: Process = subprocess.Popen(
                    [executable, *flags, "-X", "utf8", _BOOT, str(theirs.fileno()), tier],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={**_ENVIRONMENT, **seeded, "PATH": bin_path},
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise SandboxError(f"python: cannot start {executable}: {error}") from error
        try:
            answer = self._configure(configuration)
            ours.settimeout(SPAWN_TIMEOUT)
        except Gone as error:
            raise SandboxError(self._stillborn(executable, preload)) from error
        except BaseException:
            self.close()
            raise
        self._learn(answer)

    def _hold(self, ours: socket.socket, tier: str) -> None:
        """Begin a conversation on socket `ours`, by which the zygote lives."""
        ours.settimeout(START_TIMEOUT)
        self.tier = tier
        self._conversation = Conversation(ours)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        _alive.add(self)

    def _stillborn(self, executable: str, preload: Sequence[str]) -> str:
        """What to say of an interpreter that ended before it could answer."""
        self.close()
        status = self._process.wait()
        ended = f"by signal {-status}" if status < 0 else f"with exit status {status}"
        modules = f" (preload: {', '.join(preload)})" if preload else ""
        return (
            f"python: {executable} ended {ended} before it was a template{modules}; "
            "its standard error says why"
        )

    def _learn(self, answer: control.Message) -> None:
        """Take what a zygote says of itself once it can serve."""
        self._outside = Outside(self.pid)
        self.data_segment: int = answer["data_segment"]
        self.privileged: bool = answer["privileged"]
        self._base: str = answer["base"]
        self.interpreter: tuple[str, str] = (answer["python"], answer["implementation"])
        # The limit of processes of a session that shares its user with the host; 0 if none does.
        self.room: int = answer["room"]

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    def spawn(
        self,
        slot: int,
        workspace: int,
        rlimits: Mapping[str, int],
        group: Group | None = None,
        states: int = -1,
    ) -> Links:
        """A new session: its jail is complete and its worker waits when this returns.

        Raises:
            IsolationError: a step of the jail failed.
        """
        links = self.begin(slot, workspace, rlimits, group, states)
        self.finish(links)
        return links

    def begin(
        self,
        slot: int,
        workspace: int,
        rlimits: Mapping[str, int],
        group: Group | None = None,
        states: int = -1,
    ) -> Links:
        """Ask for a session, and leave the caller the time it takes; `finish` must follow.

        `group` is what the session is in from its first moment; whatever happens, it is released.
        `states` is how many it keeps besides the current one, -1 for not even that.
        """
        try:
            host_control, their_control = control.pair()
            host_worker, their_worker = socket.socketpair()
            stdout, their_stdout = os.pipe2(os.O_CLOEXEC)
            stderr, their_stderr = os.pipe2(os.O_CLOEXEC)
        except OSError:
            if group is not None:
                group.release()
            raise
        number, version = next(self._numbers), 0 if group is None else group.version
        settings = requests.settings(workspace, rlimits, states)
        request = requests.spawn(number, slot, version, settings)
        connection = HostConnection()
        ends = (host_control, host_worker, stdout, stderr)
        links = Links(number, 0, 0, *ends, connection, self._outside, group)
        links.folder = f"{self._base}/{number}" if self._base else ""
        links.tier = self.tier
        links.interpreter = self.interpreter
        try:
            with their_control, their_worker:
                theirs = (their_control.fileno(), their_worker.fileno(), their_stdout, their_stderr)
                host_worker.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                with _entrance(group) as entrance:
                    self._check_open()
                    self._conversation.send(request, (*theirs, *entrance))
        except BaseException:
            self.abandon(links)
            raise
        finally:
            os.close(their_stdout)
            os.close(their_stderr)
        for fd in (stdout, stderr):
            os.set_blocking(fd, False)
        host_worker.setblocking(False)
        host_control.setblocking(False)
        return links

    def finish(self, links: Links) -> None:
        """Wait until the session that was asked for is there; as `spawn`."""
        try:
            # The zygote does not answer: the session itself speaks, or what went wrong comes
            # through its control socket. A wait less, and callers need not wait for one another.
            links.worker_pid = self._await_ready(links)
            links.pid = _parent(links.worker_pid)
        except BaseException:
            self.abandon(links)
            raise

    def end(self, links: Links) -> None:
        """End a session: when this returns, all its processes are gone."""
        try:
            self.kill(links)
        finally:
            links.close()

    def kill(self, links: Links) -> None:
        """End a session's processes, and leave its links to whoever still reads them."""
        if self._closed or os.getpid() != self._pid:
            return
        try:
            number = next(self._numbers)
            self._ask(number, requests.end(number, links.number))
        except Gone:
            pass  # and the session with it: the kernel kills each init when its zygote ends

    def leave(self, links: Links) -> None:
        """End one line of a session that has others: when this returns its processes are gone."""
        try:
            links.control.shutdown(socket.SHUT_WR)
        except OSError:
            return  # init is gone, and the session with it
        poller = select.poll()
        poller.register(links.control, select.POLLIN)
        until = time.monotonic() + SPAWN_TIMEOUT
        while poller.poll(max(0.0, until - time.monotonic()) * 1000):
            try:
                if not links.control.recv(control.MAX_MESSAGE):
                    return
            except OSError:
                return

    def abandon(self, links: Links) -> None:
        """Have a session ended that did not come up, without waiting: the zygote may hang."""
        links.close()
        # If it cannot be told, it is gone, or ends the session when its own request is done.
        self._conversation.drop(requests.end(next(self._numbers), links.number))

    def forget(self, pid: int) -> None:
        """Have the zygote wait for a nested one with this pid, which has ended."""
        try:
            self.ask({"op": "forget", "nested": pid})
        except SandboxError:
            pass  # it is gone itself, and whoever inherited the other waits for it

    def ask(self, question: control.Message, descriptors: Sequence[int] = ()) -> control.Message:
        """The zygote's answer to a question that is asked once in a while.

        Raises:
            SandboxError: there is no zygote any more, or it could not do what it was asked for.
        """
        number = next(self._numbers)
        said = self._ask(number, requests.ask(number, question), descriptors)
        answer: control.Message = json.loads(said)
        if "failed" in answer:
            raise failure(answer)
        return answer

    def _check_open(self) -> None:
        if self._closed or os.getpid() != self._pid:
            raise SandboxClosed(
                "the sandbox is closed, or belongs to the process that forked this one"
            )

    def _await_ready(self, links: Links) -> int:
        """Wait for the worker's first message; its pid, as the kernel attests it."""
        # Not select(2), which ends at descriptor 1,023. Only the worker: whoever fails also ends,
        # and with the last process that holds the other end its socket is at its end.
        poller = select.poll()
        poller.register(links.worker, select.POLLIN)
        seconds = self._conversation.seconds
        if not poller.poll(seconds * 1000):
            raise SandboxError(f"the zygote did not answer within {seconds} s")
        pid = read_ready(links.worker, links.connection)
        if pid:
            _hear(links)
            links.worker.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
            return pid
        links.control.settimeout(1.0)
        report = _hear(links)
        if report is None and self._process.poll() is not None:
            raise Gone
        if report and "failed" in report:
            raise failure(report)
        raise SandboxError(f"the session did not start: {report or 'its init is gone'}")

    def _configure(self, configuration: control.Message) -> control.Message:
        """The first thing to be asked: build the template."""
        number = next(self._numbers)
        request = json.dumps({**configuration, "number": number}).encode()
        answer: control.Message = json.loads(self._ask(number, request))
        if "failed" in answer:
            raise failure(answer)
        return answer

    def _ask(self, number: int, request: bytes, descriptors: Sequence[int] = ()) -> bytes:
        self._check_open()
        return self._conversation.ask(number, request, descriptors)

    def close(self) -> None:
        """End the zygote and all its sessions. In a forked child: only let go of the socket."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if os.getpid() != self._pid:
            self._conversation.forked()
            return
        self._conversation.hang_up()
        if self.tier != "jailed":
            # It ends its sessions, whom no kernel would end with it.
            try:
                self._process.wait(_LEAVE_TIMEOUT)
            except subprocess.TimeoutExpired:
                pass
        self._process.kill()
        self._process.wait()
        self._conversation.close()

    def forked(self) -> None:
        """In a child of the host: drop the lifeline, so that it is the host's alone."""
        self._closed = True
        self._conversation.forked()


def _check_size(configuration: control.Message) -> None:
    """ValueError, naming the largest setting, if they are more than one message holds."""
    sizes = {name: len(json.dumps(value)) for name, value in configuration.items()}
    if sum(sizes.values()) > _MOST_SETTINGS:
        name = max(sizes, key=lambda name: sizes[name])
        raise ValueError(
            f"{name}: {sizes[name]:,} bytes; the limit of all settings of a template together is "
            f"{_MOST_SETTINGS:,}"
        )


def _entrance(group: Group | None) -> AbstractContextManager[Sequence[int]]:
    return contextlib.nullcontext(()) if group is None else group.entrance()


def failure(answer: control.Message) -> SandboxError:
    if not answer["failed"]:
        return SandboxError(answer["message"])
    step, remedy = answer["failed"], answer.get("remedy", "")
    # It was formatted where it was raised, and would be again.
    tier = answer["tier"]
    message = str(answer["message"]).removeprefix(f"{tier}: {step}: ")
    if remedy:
        message = message.removesuffix(f". {remedy}")
    return IsolationError(tier, step, message, remedy)


def read_ready(worker: socket.socket, connection: HostConnection) -> int:
    """The pid of the worker that has just said `Ready`; 0 if it said nothing and is gone."""
    space = socket.CMSG_SPACE(_CREDENTIALS.size)
    data, ancillary, _, _ = worker.recvmsg(256, space)
    for message in connection.receive(data):
        if not isinstance(message, Ready) or message.version != VERSION:
            raise RemoteProtocolError("the worker speaks another version of the protocol")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                pid: int = _CREDENTIALS.unpack(payload)[0]
                return pid
    return 0


def _hear(links: Links) -> control.Message | None:
    """What a session's own processes or the zygote have to say besides `Ready`: how it failed.

    The worker's word on what holds it, which comes before that, is kept.
    """
    try:
        message = control.receive(links.control)
        if message is not None and "held" in message:
            links.held = message["held"]
            message = control.receive(links.control)
        return message
    except OSError:
        return None


def _parent(pid: int) -> int:
    """The parent of process `pid`: proc(5), the second field behind the name in parentheses."""
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        return int(file.read(1024).rpartition(b")")[2].split(None, 2)[1])


_alive: weakref.WeakSet[ZygoteHandle] = weakref.WeakSet()


def _drop_all() -> None:
    for handle in list(_alive):
        handle.forked()


os.register_at_fork(after_in_child=_drop_all)
