"""Internals that tests observe: processes, links and limits behind sessions and sandboxes.

The public interface hides these on purpose. Tests reach them by these functions alone, so that a
change of an internal name changes this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_sandbox import Sandbox, Session
    from repl_sandbox.limits.watchdog import Watchdog
    from repl_sandbox.pool.session_lifecycle import SessionLifecycle
    from repl_sandbox.session.core import Core
    from repl_sandbox.session.drivers.session_handle import SessionHandle, SessionOwner
    from repl_sandbox.zygote.client.session_links import SessionLinks
    from repl_sandbox.zygote.client.zygote_handle import ZygoteHandle
    from repl_sandbox.zygote.client.zygote_per_session import ZygotePerSession


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
