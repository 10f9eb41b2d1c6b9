"""Internals of sessions and sandboxes that checks observe.

An ordinary user has a copy of this folder alone, so it cannot import `tests.internals`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_sandbox import Sandbox, Session
    from repl_sandbox.host.links import SessionLinks
    from repl_sandbox.host.nested import ZygotePerSession
    from repl_sandbox.host.zygote import ZygoteHandle
    from repl_sandbox.session.core import Core


def session_core(session: Session) -> Core:
    """The protocol core of a session."""
    return session._core


def session_links(session: Session) -> SessionLinks:
    """The processes, sockets and folders of a session."""
    return session_core(session).links


def zygote_client(sandbox: Sandbox) -> ZygoteHandle | ZygotePerSession:
    """The host's side of the template process of a sandbox."""
    return sandbox._zygote


def baseline(sandbox: Sandbox) -> Any:
    """The processes and layers of a sandbox's template as they were when it started."""
    return zygote_client(sandbox)._baseline
