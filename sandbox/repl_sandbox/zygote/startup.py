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
from ..jail.reserved_descriptors import MIN_FILES
from ..language_policy import Policy
from ..native import process_forks
from ..protocol import control_channel
from . import fork_limiter, spawn_requests
from .main import Zygote
from .network_namespaces import NetworkNamespacePool
from .template.sealed_template import SealedTemplate, build

# Variables that have had their effect; programs that sessions start do not get them.
_TEMPLATE_VARIABLES = ("LD_BIND_NOW", "GLIBC_TUNABLES")
# Signals that each interpreter ignores, and SIGINT here.
_IGNORED = {signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ}


def refuse(fd: int, error: IsolationError) -> NoReturn:
    """Answer on socket `fd`, to the request that configures the zygote, that it cannot start."""
    with socket.socket(fileno=fd) as host:
        if (configuration := control_channel.receive(host)) is not None:
            _reply(
                host,
                spawn_requests.answer_to(configuration["number"], control_channel.failure(error)),
            )
    os._exit(1)


def serve(fd: int, tier: str, *, privileged: bool) -> NoReturn:
    """Be the zygote on socket `fd`: the first message configures it, the answer reports the result.

    `tier`: the tier of its sessions. `privileged`: this process is root on the host, and not only
    in a user namespace of its own.
    """
    host = socket.socket(fileno=fd)
    _prepare_process(tier)
    configuration = control_channel.receive(host)
    if configuration is None:
        os._exit(0)
    number = configuration["number"]
    try:
        _check_descriptors()
        template = _build(configuration, tier, privileged=privileged)
        networks = _networks() if tier == "jailed" else None
    except SandboxError as error:
        _reply(host, spawn_requests.answer_to(number, control_channel.refusal(error)))
        os._exit(1)
    facts = _report(template)
    limiter = None if template.tier == "jailed" else fork_limiter.start(host)
    _reply(host, spawn_requests.answer_to(number, facts))
    Zygote(host, template, networks, limiter).serve()


def _prepare_process(tier: str) -> None:
    """Reset the environment and the signals of this process, which sessions inherit."""
    for name in _TEMPLATE_VARIABLES:
        os.environ.pop(name, None)
    _reset_signals()
    signal.signal(signal.SIGCHLD, _wake)
    if tier != "process":
        # Roots and directories are made here for other uids, which a mask of 077 would lock out.
        os.umask(0o022)
    if tier != "jailed":
        # The zygote's signal to an init to end; each init handles it when it is ready to.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _build(
    configuration: control_channel.Message, tier: str, *, privileged: bool
) -> SealedTemplate:
    policy = None if configuration["policy"] is None else Policy(**configuration["policy"])
    return build(
        configuration["preload"],
        configuration["mounts"],
        tier,
        configuration["place"],
        policy,
        privileged=privileged,
    )


def _report(template: SealedTemplate) -> control_channel.Message:
    """The facts about the template that the host needs."""
    facts = {
        "data_segment": template.data_segment,
        "privileged": template.privileged,
        "base": template.base,
        "python": ".".join(map(str, sys.version_info[:3])),
        "implementation": sys.implementation.name,
        "process_limit": 0
        if template.tier == "jailed" or template.privileged
        else rlimits.process_limit(),
    }
    if template.tier == "alone":
        facts["supports_snapshots"] = process_forks.makes_siblings()
    return facts


def _wake(signum: int, frame: object) -> None:
    """Do nothing: the signal interrupts a wait, which an ignored signal would not."""


def _reset_signals() -> None:
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


def _reply(host: socket.socket, answer_to: bytes) -> None:
    # A host that has left meanwhile is no error; its end of file is read next.
    with suppress(BrokenPipeError, ConnectionResetError):
        host.send(answer_to)


def _check_descriptors() -> None:
    """Raise SandboxError if the limit of descriptors is too low for the sockets of sessions, from
    WORKER on.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limit < MIN_FILES:  # -1 is no limit
        raise SandboxError(
            f"this process may open {limit} files, and a sandbox needs {MIN_FILES}: "
            f"raise the limit (ulimit -n {MIN_FILES})"
        )


def _networks() -> NetworkNamespacePool:
    try:
        return NetworkNamespacePool()
    except OSError as error:
        raise remedies.step_error("namespaces", error) from error
