"""The daemon's socket: its path, and whether this user may connect."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

from ...errors import IsolationError

_USUAL = "unix:///var/run/docker.sock"
_SECONDS = 5.0


def find() -> str:
    """Return the path of the socket that DOCKER_HOST names, else of Docker's usual one.

    Raises:
        IsolationError: nothing answers there, or this user may not connect.
    """
    address = urlsplit(os.environ.get("DOCKER_HOST") or _USUAL)
    if address.scheme not in ("unix", "http+unix"):
        raise _error(
            f"DOCKER_HOST is {address.geturl()}, and the daemon must be on this system",
            "Set DOCKER_HOST to the daemon's socket: unix:///path",
        )
    path = address.netloc + address.path
    try:
        with socket.socket(socket.AF_UNIX) as trial:
            trial.settimeout(_SECONDS)
            trial.connect(path)
    except PermissionError as error:
        raise _error(
            f"this user may not use its socket {path}",
            "Run as a user of the socket's group, usually docker, which is as good as root",
        ) from error
    except OSError as error:
        raise _error(
            f"none answers at {path}: {error.strerror or error}",
            "Start Docker, or set DOCKER_HOST to the socket of one that runs, or of Podman",
        ) from error
    return path


def _error(message: str, remedy: str) -> IsolationError:
    return IsolationError("container", "daemon", message, remedy)
