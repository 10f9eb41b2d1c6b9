"""Turns the interpreter that `boot` started into a zygote, or reports why it cannot become one."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from typing import NoReturn

from ..errors import IsolationError, SandboxError
from ..jail import remedies, rlimits
from ..jail.reserved_descriptors import LEAST_FILES
from ..language_policy import Policy
from ..native import process_forks
from ..protocol import control_channel
from . import fork_limiter, spawn_requests
from .main import Zygote
from .network_namespaces import NetworkNamespacePool
from .template.sealed_template import build

# Variables that have had their effect; programs that sessions start do not get them.
_OF_THE_TEMPLATE = ("LD_BIND_NOW", "GLIBC_TUNABLES")
# Signals that each interpreter ignores, and SIGINT here.
_IGNORED = {signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ}


def refuse(fd: int, error: IsolationError) -> NoReturn:
    """Answer on socket `fd`, to the request that configures the zygote, that it cannot start."""
    with socket.socket(fileno=fd) as host:
        if (configuration := control_channel.receive(host)) is not None:
            _say(host, spawn_requests.said(configuration["number"], control_channel.failure(error)))
    os._exit(1)


def serve(fd: int, tier: str, *, privileged: bool) -> NoReturn:
    """Be the zygote on socket `fd`: the first message configures it, the answer reports the result.

    `tier`: the tier of its sessions. `privileged`: this process is root on the host, and not only
    in a user namespace of its own.
    """
    host = socket.socket(fileno=fd)
    for name in _OF_THE_TEMPLATE:
        os.environ.pop(name, None)
    _take_signals()
    signal.signal(signal.SIGCHLD, _wake)
    if tier != "process":
        # Roots and directories are made here for other uids, which a mask of 077 would lock out.
        os.umask(0o022)
    if tier != "jailed":
        # The zygote's signal to an init to end; each init handles it when it is ready to.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    configuration = control_channel.receive(host)
    if configuration is None:
        os._exit(0)
    number = configuration["number"]
    try:
        _check_descriptors()
        policy = None if configuration["policy"] is None else Policy(**configuration["policy"])
        template = build(
            configuration["preload"],
            configuration["mounts"],
            tier,
            configuration["place"],
            policy,
            privileged=privileged,
        )
        networks = _networks() if tier == "jailed" else None
    except SandboxError as error:
        _say(host, spawn_requests.said(number, control_channel.refusal(error)))
        os._exit(1)
    facts = {
        "data_segment": template.data_segment,
        "privileged": template.privileged,
        "base": template.base,
        "python": ".".join(map(str, sys.version_info[:3])),
        "implementation": sys.implementation.name,
        "room": 0 if template.tier == "jailed" or template.privileged else rlimits.room(),
    }
    if template.tier == "alone":
        facts["copies"] = process_forks.makes_siblings()
    limiter = None if template.tier == "jailed" else fork_limiter.start(host)
    _say(host, spawn_requests.said(number, facts))
    Zygote(host, template, networks, limiter).serve()


def _wake(signum: int, frame: object) -> None:
    """Do nothing: the signal interrupts a wait, which an ignored signal would not."""


def _take_signals() -> None:
    """Reset signals as in a new process, whatever the starting process blocks or ignores.

    Sessions inherit the signals: if SIGINT were blocked, cells could not be interrupted, and code
    could not terminate its children.
    """
    # Its sessions set their own handler; the terminal's Ctrl-C is for the host.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in signal.valid_signals() - _IGNORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _say(host: socket.socket, said: bytes) -> None:
    # A host that has left meanwhile is no error; its end of file is read next.
    with suppress(BrokenPipeError, ConnectionResetError):
        host.send(said)


def _check_descriptors() -> None:
    """Raise SandboxError if the limit of descriptors is too low for the sockets of sessions, from
    WORKER on.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limit < LEAST_FILES:  # -1 is no limit
        raise SandboxError(
            f"this process may open {limit} files, and a sandbox needs {LEAST_FILES}: "
            f"raise the limit (ulimit -n {LEAST_FILES})"
        )


def _networks() -> NetworkNamespacePool:
    try:
        return NetworkNamespacePool()
    except OSError as error:
        raise remedies.step_error("namespaces", error) from error
