"""`LocalLauncher`: starts a zygote's process: an interpreter with a fixed environment."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Protocol

from ...errors import SandboxError
from ...protocol import control_channel
from ...protocol.control_channel import Lifeline
from ...types import PACKAGE_DIR
from .isolation_baseline import IsolationBaseline

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
        host_end, zygote_end = control_channel.lifeline()
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
            env={**ENVIRONMENT, **seeded, "PATH": path},
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
