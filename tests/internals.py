"""Internals that tests observe or set: processes, links and limits behind sessions and sandboxes.

The public interface hides these on purpose. Tests reach them by these functions alone, so that a
change of an internal name changes this module.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from struct import Struct
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from repl_sandbox import Sandbox, Session
    from repl_sandbox.host.links import SessionLinks
    from repl_sandbox.host.nested import ZygotePerSession
    from repl_sandbox.host.pool import SessionLifecycle
    from repl_sandbox.host.watchdog import Watchdog
    from repl_sandbox.host.zygote import ZygoteHandle
    from repl_sandbox.native.library import SyscallBatch
    from repl_sandbox.session.core import Core
    from repl_sandbox.session.handle import SessionHandle, SessionOwner


def session_core(session: SessionHandle) -> Core:
    """The protocol core that both session drivers share."""
    return session._core


def session_links(session: SessionHandle) -> SessionLinks:
    """The processes, sockets and folders of a session."""
    return session_core(session).links


def init_pid(session: SessionHandle) -> int:
    """The process id of a session's init."""
    return session_links(session).pid


def worker_pid(session: SessionHandle) -> int:
    """The process id of a session's worker."""
    return session_links(session).worker_pid


def zygote_client(sandbox: Sandbox) -> ZygoteHandle | ZygotePerSession:
    """The host's side of the template process of a sandbox."""
    return sandbox._zygote


def zygote_pid(sandbox: Sandbox) -> int:
    """The process id of the template process of a sandbox."""
    return zygote_client(sandbox).pid


def session_lifecycle(sandbox: Sandbox) -> SessionLifecycle:
    """The open and ready sessions of a sandbox."""
    return sandbox._lifecycle


def session_watchdog(sandbox: Sandbox) -> Watchdog:
    """The thread that measures the sessions of a sandbox."""
    return session_lifecycle(sandbox).watchdog


def template_parent(sandbox: Sandbox) -> Sandbox | None:
    """The sandbox that a shared template was made from, while it keeps it alive."""
    return sandbox._parent


def session_owner(session: Session) -> SessionOwner:
    """The owner that a session returns to when it is closed."""
    return session._owner


def locks_of(sandbox: Sandbox) -> tuple[Any, Any]:
    """The locks that a fork of the host may find held: those of the sandbox and its watchdog."""
    return sandbox._lock, session_watchdog(sandbox)._lock


def watchdog_round(sandbox: Sandbox) -> int:
    """The number of rounds of measurements so far."""
    return session_watchdog(sandbox)._round


def session_share(sandbox: Sandbox, session: SessionHandle) -> Any:
    """The fair-share record of a session."""
    return session_watchdog(sandbox)._shares._shares[session_links(session).family]


def watchdog_period() -> float:
    """Seconds between two measurements of a session."""
    from repl_sandbox.host import watchdog

    return watchdog._PERIOD


def set_watchdog_period(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the seconds between two measurements of a session."""
    patch.setattr("repl_sandbox.host.watchdog._PERIOD", seconds)


def set_idle_periods(patch: pytest.MonkeyPatch, periods: int) -> None:
    """Set the number of periods between two measurements of an idle session."""
    patch.setattr("repl_sandbox.host.watchdog._IDLE_PERIODS", periods)


def set_restore_timeout(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the seconds that a snapshot has to take over."""
    patch.setattr("repl_sandbox.session.recovery._RESTORE_TIMEOUT", seconds)


def set_file_timeout(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the seconds that the file helper of a session has for a reply."""
    patch.setattr("repl_sandbox.session.files._TIMEOUT", seconds)


def file_request() -> Callable[..., Any]:
    """The function that sends a request for a file to init."""
    from repl_sandbox.session import files

    return files._request


def set_file_request(patch: pytest.MonkeyPatch, request: Callable[..., Any]) -> None:
    """Replace `file_request()`."""
    patch.setattr("repl_sandbox.session.files._request", request)


def set_leave_timeout(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the seconds that closing sessions have before they are killed."""
    patch.setattr("repl_sandbox.host.pool._LEAVE_TIMEOUT", seconds)


def set_ruleset_call(patch: pytest.MonkeyPatch, call: Callable[..., Any]) -> None:
    """Replace the system call that makes a Landlock ruleset."""
    patch.setattr("repl_sandbox.jail.landlock._create_ruleset", call)


def branch_commands() -> set[str]:
    """The requests that init takes from a host."""
    from repl_sandbox.init.branch import SessionBranch

    return set(SessionBranch._COMMANDS)


def batch_wait() -> CodeType:
    """The code of the method in which a batch waits for its sessions."""
    from repl_sandbox.session.batch import SessionBatch

    return SessionBatch._wait.__code__


def packed_rows(batch: SyscallBatch) -> Any:
    """The memory with the packed system calls of a batch."""
    return batch._packed_rows


def native_structures() -> dict[str, Any]:
    """The structures that the native core and Python share, by their name in C."""
    from repl_sandbox.native import forks, library

    return {
        "failure": library.Failure,
        "batch": library.BatchStructure,
        "pollfd": forks.Pollfd,
        "text": forks._Text,
        "spawn": forks._Spawn,
        "post_fork_work": forks._Work,
        "snapshot": forks._Snapshot,
        "hooked_fork": forks._HookedFork,
    }


def row_format() -> Struct:
    """The form of a packed system call."""
    from repl_sandbox.native import library

    return library._ROW


def started(sandbox: Any) -> Coroutine[Any, Any, Any]:
    """The start of an asynchronous sandbox, as a coroutine of its own."""
    starting: Coroutine[Any, Any, Any] = sandbox._start()
    return starting


def set_thread_count(patch: pytest.MonkeyPatch, count: int) -> None:
    """Set the number of threads that a worker sees in its process."""
    for module in ("branch", "channel"):
        patch.setattr(f"repl_sandbox.worker.{module}._thread_count", lambda: count)


def break_descriptions(patch: pytest.MonkeyPatch) -> None:
    """Break the function that follows the causes of an exception."""
    patch.setattr("repl_sandbox.worker.tracebacks._chain", None)
