"""`ZygoteHandle`: the host's side of a zygote: starts it, asks it for sessions, ends it."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from errno import ETOOMANYREFS
from typing import Protocol

from ..errors import SandboxClosed, SandboxError
from ..native import library
from ..protocol import control
from ..protocol.connection import HostConnection
from ..protocol.control import Lifeline
from ..types import PACKAGE_DIR, Policy
from .cgroups import SessionCgroup
from .links import IsolationBaseline, SessionEndpoints, SessionLinks, await_ready

# `LocalLauncher`: starts a zygote's process: an interpreter with a fixed environment.

BOOT = os.path.join(PACKAGE_DIR, "zygote", "boot.py")

# The whole environment of the template and so of each session: nothing of the host's is passed on.
ENVIRONMENT = {
    # Resolve all functions of shared libraries at load time: ld.so(8). Otherwise each session
    # resolves each function that it calls, on pages that it copies for that.
    "LD_BIND_NOW": "1",
    # Allocate large blocks in huge pages (Linux: The GNU Allocator, "Memory Allocation Tunables").
    # A fork then copies one entry for 2 MiB of a session's data instead of 512.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "HOME": "/workspace",
    "USER": "user",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
    # Otherwise a program that a session starts twice within a second, after changing a module in
    # between, would get the bytecode of the first run: the cache compares whole seconds and the
    # size.
    "PYTHONDONTWRITEBYTECODE": "1",
    "PIP_RETRIES": "0",  # there is no network, and it would wait for one for eight seconds
    "MPLBACKEND": "Agg",  # there is no display
    "MPLCONFIGDIR": "/tmp/matplotlib",
    # Otherwise a plot would leave the cache of fontconfig among the files of the workspace.
    "XDG_CACHE_HOME": "/tmp/cache",
    # Threads would make each fork one of a multi-threaded process, and sessions share the cores.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    # Likewise the threads by which the allocators of pyarrow and of polars return memory: without
    # them the allocators do so when they are called.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "_RJEM_MALLOC_CONF": "background_thread:false",
}


class ZygoteProcess(Protocol):
    """The process of a zygote, as its handle needs it; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def poll(self) -> int | None:
        """Return an exit status if the process has ended, None while it lives."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process; subprocess.TimeoutExpired after `timeout` seconds."""

    def kill(self) -> None:
        """Kill the process."""


class ZygoteLauncher(Protocol):
    """Starts a zygote's process, and maps its processes and paths to the host's.

    `session_root`: where the zygote may make directories, as the zygote names it.
    """

    @property
    def session_root(self) -> str:
        """The directory for the directories of sessions; "" if each session mounts its own."""

    def start(self, hash_seed: int | None) -> tuple[Lifeline, ZygoteProcess]:
        """Start the process, which waits for its configuration at the other end of the lifeline.

        Raises:
            SandboxError: it cannot be started.
        """

    def start_error(self, process: ZygoteProcess, preload: Sequence[str]) -> SandboxError:
        """The error for a `process` that ended before it could answer."""

    def baseline(self, process: ZygoteProcess) -> IsolationBaseline:
        """The isolation baseline for the sessions of `process`, once that is a zygote."""

    def host_path(self, path: str) -> str:
        """The host's path of the zygote's `path`."""


class LocalLauncher:
    """The launcher of zygotes that are children of this process."""

    def __init__(self, python: str, tier: str) -> None:
        self.session_root = tempfile.gettempdir() if tier != "jailed" else ""
        self._python = python
        self._tier = tier

    def start(self, hash_seed: int | None) -> tuple[Lifeline, ZygoteProcess]:
        """As of `ZygoteLauncher`."""
        host_end, zygote_end = control.lifeline()
        try:
            with zygote_end:
                return host_end, start(self._python, self._tier, hash_seed, zygote_end.fileno())
        except SandboxError:
            host_end.close()
            raise

    def start_error(self, process: ZygoteProcess, preload: Sequence[str]) -> SandboxError:
        """As of `ZygoteLauncher`."""
        return start_error(process, self._python, preload)

    def baseline(self, process: ZygoteProcess) -> IsolationBaseline:
        """As of `ZygoteLauncher`."""
        return IsolationBaseline(process.pid)

    def host_path(self, path: str) -> str:
        """As of `ZygoteLauncher`."""
        return path


def flags_of(hash_seed: int | None) -> tuple[list[str], dict[str, str]]:
    """The options of a zygote's interpreter, and the variables that they need."""
    # -I is -E, -P and -s. Without -E it reads the seed; the whole environment is the engine's.
    isolated = ["-I"] if hash_seed is None else ["-P", "-s"]
    seeded = {} if hash_seed is None else {"PYTHONHASHSEED": str(hash_seed)}
    return [*isolated, "-X", "utf8"], seeded


def interposed(tier: str, package: str = PACKAGE_DIR) -> dict[str, str]:
    """The variable by which programs of `tier` get functions of ours in place of the C library's.

    `package`: this package's directory, as the zygote names it.
    """
    if tier not in ("jailed", "confined", "alone"):
        return {}
    name = library.file_name(os.uname().machine)
    path = os.path.join(package, os.path.basename(library.NATIVE_FOLDER), name)
    # ld.so(8) takes both for the end of a path, and each program would complain of its parts.
    return {} if {" ", ":"} & {*path} else {"LD_PRELOAD": path}


def start(python: str, tier: str, hash_seed: int | None, fd: int) -> ZygoteProcess:
    """Start a zygote, to be configured on socket `fd`.

    Raises:
        SandboxError: `python` is not an interpreter, or cannot be run; or this package lies in an
            archive.
    """
    if not os.path.isfile(BOOT):
        raise SandboxError(
            f"sessions need repl_sandbox unpacked in a directory, and there is no file {BOOT}"
        )
    path = f"{os.path.dirname(python)}:/usr/local/bin:/usr/bin:/bin"
    flags, seeded = flags_of(hash_seed)
    passed = -1
    try:
        # In a daemon without standard streams it may have one of their numbers.
        passed = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
        return subprocess.Popen(
            [python, *flags, BOOT, str(passed), tier],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=_standard_error(),
            pass_fds=[passed],
            env={**ENVIRONMENT, **interposed(tier), **seeded, "PATH": path},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(f"python: cannot start {python}: {error}") from error
    finally:
        if passed >= 0:
            os.close(passed)


def _standard_error() -> int | None:
    """The descriptor for the standard error of an interpreter that fails to start: this process's
    own.

    Without one, a file or socket of the zygote's could get its number.
    """
    try:
        return None if os.get_inheritable(2) else subprocess.DEVNULL
    except OSError:
        return subprocess.DEVNULL


def start_error(process: ZygoteProcess, python: str, preload: Sequence[str]) -> SandboxError:
    """The error for an interpreter that ended before it could answer."""
    status = process.wait()
    ended = f"by signal {-status}" if status < 0 else f"with exit status {status}"
    modules = f" (preload: {', '.join(preload)})" if preload else ""
    return SandboxError(
        f"python: {python} ended {ended} before it was ready as a template{modules}; "
        "its standard error says why"
    )


# `ZygoteRequests`: the host's requests to a zygote, from many threads on one socket, and the
# answers.
#
# Requests and answers are numbered; answers come in the order in which the work was done. Of the
# waiting callers one reads for all. A caller may leave before its answer comes, by a time-out or
# Ctrl-C; the next reader skips a late answer. Only waiting callers read, so a request without a
# waiting caller must not be answered: the zygote would block.


class ZygoteGone(SandboxClosed):
    """The zygote is gone, and so are its sessions."""

    def __init__(self) -> None:
        super().__init__(
            "the zygote is gone, as after an end of its process or its container from outside; "
            "its standard error says why"
        )


class ZygoteRequests:
    """The requests to the zygote at the other end of `sock`, whose time-out holds for each
    request.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()
        self._waiting = threading.Condition()
        self._reading = False
        self._over = False
        self._answers: dict[int, bytes | None] = {}  # by the numbers of the requests in progress

    @property
    def seconds(self) -> float:
        """The limit in seconds for an answer."""
        return self._socket.gettimeout() or 0.0

    @property
    def is_over(self) -> bool:
        """True if the zygote has closed its end, or no more requests will be sent."""
        return self._over or _has_hung_up(self._socket)

    def ask(self, number: int, request: bytes, descriptors: Sequence[int] = ()) -> bytes:
        """Send `request`, which has this number, and return the answer.

        Raises:
            ZygoteGone: the zygote is gone.
            SandboxError: it did not answer in time.
        """
        with self._waiting:
            self._answers[number] = None
        try:
            self.send(request, descriptors)
            return self._answer(number)
        finally:
            with self._waiting:
                del self._answers[number]

    def send(self, request: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a request without an answer; raises as `ask`."""
        with self._sending:
            try:
                socket.send_fds(self._socket, [request], descriptors)
            except TimeoutError as error:
                raise self._timeout_error() from error
            except OSError as error:
                # for example after messages of another process of this user
                if error.errno == ETOOMANYREFS:
                    raise SandboxError(f"nothing can be sent to the zygote: {error}") from error
                raise ZygoteGone from error

    def send_unless_gone(self, request: bytes) -> None:
        """Send a request without an answer, if it can be sent."""
        try:
            self._socket.send(request)
        except OSError:
            pass

    def try_send(self, request: bytes) -> bool:
        """Send a request without an answer if that needs no waiting; return whether it was sent."""
        try:
            self._socket.send(request, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    @property
    def can_send(self) -> bool:
        """True if a request can be sent without waiting."""
        poller = select.poll()
        try:
            poller.register(self._socket, select.POLLOUT)
        except ValueError:  # it was closed meanwhile
            return True
        return bool(poller.poll(0))

    def hang_up(self) -> None:
        """Tell the zygote to end, and all waiting callers that it has ended."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already

    def close(self) -> None:
        """Close the socket when no caller waits at it any more."""
        self.hang_up()
        with self._waiting:
            self._waiting.wait_for(lambda: not self._reading)
            self._over = True
            self._waiting.notify_all()
        with self._sending:
            self._socket.close()

    def forked(self) -> None:
        """In a child of the host: close the socket, which stays the host's."""
        self._socket.close()

    def _timeout_error(self) -> SandboxError:
        return SandboxError(f"the zygote did not answer within {self.seconds} s")

    def _answer(self, number: int) -> bytes:
        until = time.monotonic() + self.seconds
        with self._waiting:
            while (answer := self._answers[number]) is None:
                remaining = until - time.monotonic()
                if self._over:
                    raise ZygoteGone
                if remaining <= 0:
                    raise self._timeout_error()
                if self._reading:
                    self._waiting.wait(remaining)
                else:
                    self._read(remaining)
        return answer

    def _read(self, seconds: float) -> None:
        """Read one answer, for any caller. Other callers may come and go meanwhile."""
        self._reading = True
        data: bytes | None = b""
        try:
            self._waiting.release()
            data = _next(self._socket, seconds)
        except OSError:
            pass  # as at end of file
        finally:
            self._waiting.acquire()
            self._reading = False
            self._waiting.notify_all()
        if data:
            number, answer = control.read_answer(data)
            if number in self._answers:
                self._answers[number] = answer
        elif data is not None:
            self._over = True


def _has_hung_up(sock: socket.socket) -> bool:
    poller = select.poll()
    try:
        poller.register(sock, 0)
    except ValueError:  # it was closed meanwhile
        return True
    return bool(poller.poll(0))


def _next(sock: socket.socket, seconds: float) -> bytes | None:
    """Return the next message, b"" at the end, None if there was none in `seconds`."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return sock.recv(control.MAX_MESSAGE) if poller.poll(seconds * 1000) else None


# `ZygoteHandle`: the host's side of a zygote: starts it, requests sessions, holds its lifeline.

# An interpreter starts in 10 ms, numpy with pandas takes 1 s; importing torch from a cold disk can
# take a minute.
START_TIMEOUT = 120.0
# A session takes 3 ms; on a machine that swaps or is overloaded a thousand times that.
SPAWN_TIMEOUT = 30.0
# For ending all sessions and removing their directories, where the kernel does not.
_LEAVE_TIMEOUT = 30.0

# Bytes of settings: the rest of the message is their names and a number.
_MAX_SETTINGS = control.MAX_MESSAGE - 256


class ZygoteHandle:
    """One zygote. Thread-safe; unusable in a forked child."""

    def __init__(
        self,
        python: str | None,
        preload: Sequence[str],
        mounts: Mapping[str, str],
        policy: Policy | None = None,
        tier: str = "jailed",
        hash_seed: int | None = None,
        launch: Callable[[], ZygoteLauncher] | None = None,
    ) -> None:
        launcher = launch() if launch else LocalLauncher(python or sys.executable, tier)
        configuration = {
            "preload": list(preload),
            "mounts": dict(mounts),
            "policy": None if policy is None else asdict(policy),
            "place": launcher.session_root,
        }
        _check_size(configuration)
        self._numbers = itertools.count(1)
        host_end, self._process = launcher.start(hash_seed)
        self._connect(host_end, tier)
        try:
            answer = self._configure(configuration)
            host_end.settimeout(SPAWN_TIMEOUT)
        except ZygoteGone as error:
            self.close()
            raise launcher.start_error(self._process, preload) from error
        except BaseException:
            self.close()
            raise
        base = launcher.host_path(answer["base"]) if answer["base"] else ""
        self._read_report(answer, launcher.baseline(self._process), base)

    def _connect(self, host_end: socket.socket, tier: str) -> None:
        """Start the conversation on socket `host_end`, which is the zygote's lifeline."""
        host_end.settimeout(START_TIMEOUT)
        self.tier = tier
        self._requests = ZygoteRequests(host_end)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        _alive.add(self)

    def _read_report(self, answer: control.Message, baseline: IsolationBaseline, base: str) -> None:
        """Read a zygote's report of itself when it can serve.

        `base`: the host's path of the directory of the sessions' directories.
        """
        self._baseline = baseline
        self.data_segment: int = answer["data_segment"]
        self.privileged: bool = answer["privileged"]
        # True if snapshots of a worker can take over: its kernel makes siblings by clone(2).
        self.supports_snapshots: bool = answer.get("supports_snapshots", True) is True
        self._base = base
        self.interpreter: tuple[str, str] = (answer["python"], answer["implementation"])
        # The limit of processes of a session that shares its user with the host; 0 if none does.
        self.process_limit: int = answer["process_limit"]

    @property
    def pid(self) -> int:
        """The zygote's process id, in its namespace."""
        return self._baseline.template

    def private_memory(self) -> int:
        """Bytes of anonymous memory of the zygote."""
        memory: int = self._baseline.query("private", self.pid)
        return memory

    def begin(
        self,
        slot: int,
        workspace: int,
        rlimits: Mapping[str, int],
        group: SessionCgroup | None = None,
        snapshots: int = -1,
        processes: int = 0,
    ) -> SessionLinks:
        """Request a session without waiting for it; `finish` must follow.

        `group` is the cgroup of the session from its first moment; it is released in any case.
        `snapshots` is the number of snapshots kept besides the current one, -1 for not even that.
        `processes`: the limit where neither a user of its own nor a cgroup limits them.
        """
        try:
            ends = SessionEndpoints()
        except OSError:
            if group is not None:
                group.release()
            raise
        number, version = next(self._numbers), 0 if group is None else group.version
        settings = control.settings(workspace, rlimits, snapshots, processes)
        request = control.spawn(number, slot, version, settings)
        links = SessionLinks(number, 0, 0, *ends.take(), HostConnection(), self._baseline, group)
        links.folder = f"{self._base}/{number}" if self._base else ""
        links.tier = self.tier
        links.interpreter = self.interpreter
        try:
            with _entrance(group) as entrance:
                self._check_open()
                self._requests.send(request, (*ends.remote, *entrance))
        except BaseException:
            self.abandon(links)
            raise
        finally:
            ends.close_remote()
        return links

    def finish(self, links: SessionLinks) -> None:
        """Wait until the requested session is ready, unless it is already."""
        if links.worker_pid:
            return
        try:
            # Waits for the session and not for the zygote, so callers need not wait for one
            # another.
            if not await_ready(links, self._requests.seconds):
                self.check_alive()
                raise SandboxError("the session did not start: its init is gone")
            # The kernel ends a session with its zygote from the session's first moment. If the
            # zygote had ended before, nothing would end the session.
            self.check_alive()
        except OSError as error:  # its processes ended meanwhile
            self.abandon(links)
            self.check_alive()
            raise SandboxError(f"the session ended as it started: {error.strerror}") from error
        except BaseException:
            self.abandon(links)
            raise

    def end(self, links: SessionLinks) -> None:
        """End a session: when this returns, all its processes are gone."""
        try:
            self.kill(links)
        finally:
            links.close()

    def kill(self, links: SessionLinks) -> None:
        """End a session's processes, and leave its links to callers that still read them."""
        if self._closed or os.getpid() != self._pid:
            return
        try:
            number = next(self._numbers)
            self._ask(number, control.end(number, links.number))
        except ZygoteGone:
            pass  # and the session with it: the kernel kills each init when its zygote ends

    def request_end(self, links: SessionLinks) -> int | None:
        """Request the end of a session without waiting; return a descriptor that reports it.

        None if the end cannot be observed so, or the zygote is busy: then nothing may have been
        done.
        """
        if self.tier != "jailed" or self._closed or os.getpid() != self._pid:
            return None  # elsewhere a session may outlive its init
        try:
            pidfd = os.pidfd_open(links.pid)
        except OSError:
            return None
        # While a process has the other end, the pid is still that of the session's init, with which
        # the kernel ends all processes of its namespace.
        if links.ended or not self._requests.try_send(
            control.end(control.UNANSWERED, links.number)
        ):
            os.close(pidfd)
            return None
        return pidfd

    @property
    def accepts_requests(self) -> bool:
        """True if a request can be sent without waiting."""
        return self._requests.can_send

    @property
    def seconds(self) -> float:
        """The limit in seconds for the start of a session."""
        return self._requests.seconds

    def abandon(self, links: SessionLinks) -> None:
        """End a session that did not start, without waiting: the zygote may hang."""
        links.close()
        # If the request cannot be sent, the zygote is gone, or ends the session when the start is
        # done.
        self._requests.send_unless_gone(control.end(control.UNANSWERED, links.number))

    def forget(self, pid: int) -> None:
        """Have the zygote reap a nested one with this pid, which has ended."""
        try:
            self.ask({"op": "forget", "nested": pid})
        except SandboxError:
            pass  # it is gone itself, and its successor reaps the other

    def ask(self, question: control.Message, descriptors: Sequence[int] = ()) -> control.Message:
        """Return the zygote's answer to a rare request.

        Raises:
            SandboxError: the zygote is gone, or could not do it.
        """
        number = next(self._numbers)
        reply = self._ask(number, control.ask(number, question), descriptors)
        answer: control.Message = json.loads(reply)
        if "failed" in answer:
            raise control.error_of(answer)
        return answer

    def check_alive(self) -> None:
        """Raise SandboxClosed if the zygote is gone, and so all its sessions, or is about to end.

        A process that the kernel ends closes its descriptors first, and exists for a while yet.
        """
        if self._requests.is_over or self._process.poll() is not None:
            raise ZygoteGone

    def _check_open(self) -> None:
        if self._closed or os.getpid() != self._pid:
            raise SandboxClosed(
                "the sandbox is closed, or belongs to the process that forked this one"
            )

    def _configure(self, configuration: control.Message) -> control.Message:
        """Send the first request: build the template."""
        number = next(self._numbers)
        request = json.dumps({**configuration, "number": number}).encode()
        answer: control.Message = json.loads(self._ask(number, request))
        if "failed" in answer:
            raise control.error_of(answer)
        return answer

    def _ask(self, number: int, request: bytes, descriptors: Sequence[int] = ()) -> bytes:
        self._check_open()
        return self._requests.ask(number, request, descriptors)

    def close(self) -> None:
        """End the zygote and all its sessions. In a forked child: only close the socket."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if os.getpid() != self._pid:
            self._requests.forked()
            return
        self._requests.hang_up()
        if self.tier != "jailed":
            # It ends its sessions, which the kernel would not.
            try:
                self._process.wait(_LEAVE_TIMEOUT)
            except subprocess.TimeoutExpired:
                pass
        self._end_process()
        self._requests.close()

    def _end_process(self) -> None:
        """Kill the zygote, whose lifeline is closed, if it hangs."""
        try:
            self._process.kill()
        except PermissionError:
            # This process has given up the user that it started the zygote as. The zygote ends by
            # itself, unless it hangs.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_TIMEOUT)
            return
        self._process.wait()

    def forked(self) -> None:
        """In a child of the host: close the lifeline, so that only the host has it."""
        self._closed = True
        self._requests.forked()


def _check_size(configuration: control.Message) -> None:
    """Raise ValueError, naming the largest setting, if the settings exceed one message."""
    sizes = {name: len(json.dumps(value)) for name, value in configuration.items()}
    if sum(sizes.values()) > _MAX_SETTINGS:
        name = max(sizes, key=lambda name: sizes[name])
        raise ValueError(
            f"{name}: {sizes[name]:,} bytes; the limit of all settings of a template together is "
            f"{_MAX_SETTINGS:,}"
        )


def _entrance(group: SessionCgroup | None) -> AbstractContextManager[Sequence[int]]:
    return contextlib.nullcontext(()) if group is None else group.entrance()


_alive: weakref.WeakSet[ZygoteHandle] = weakref.WeakSet()


def _drop_all() -> None:
    for handle in list(_alive):
        handle.forked()


os.register_at_fork(after_in_child=_drop_all)
