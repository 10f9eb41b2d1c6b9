"""Options of `repl-env serve`: network, access and isolation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from repl_env.cli.options.session_options import Isolation, Require

from ..auth.api_keys import VARIABLE
from .serve_parameters import Texts, option

_ACCESS = "Network and access"
_ISOLATION = "Isolation"


@dataclass(frozen=True, kw_only=True)
class ServerAccessOptions:
    """The address of the server, and its clients."""

    host: Annotated[str, option("--host", _ACCESS, "Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, option("--port", _ACCESS, "Port to listen on; 0 picks a free one.", min=0, max=65535)
    ] = 8000
    api_keys: Annotated[
        Path | None,
        option(
            "--api-keys",
            _ACCESS,
            f"File of API keys, made by `repl-env keys`; {VARIABLE} may hold lines of such a file.",
            metavar="FILE",
            envvar=f"{VARIABLE}_FILE",
        ),
    ] = None
    metrics_key: Annotated[
        str | None,
        option(
            "--metrics-key",
            _ACCESS,
            "Name of the key that sees all keys in /metrics.",
            metavar="NAME",
        ),
    ] = None
    no_auth: Annotated[
        bool,
        option("--no-auth", _ACCESS, "Serve every client that can reach the port without a key."),
    ] = False
    web: Annotated[
        bool | None,
        option(
            "--web/--no-web",
            _ACCESS,
            "Serve the playground at /; default: only if --host is loopback.",
        ),
    ] = None
    origin: Annotated[
        Texts,
        option("--origin", _ACCESS, "Origin of web pages that may send requests; may be repeated."),
    ] = None
    frame_ancestor: Annotated[
        Texts,
        option(
            "--frame-ancestor", _ACCESS, "Site that may show pages in a frame; may be repeated."
        ),
    ] = None
    trusted_proxy: Annotated[
        Texts,
        option(
            "--trusted-proxy",
            _ACCESS,
            "Address or network of a proxy whose X-Forwarded-For is trusted; may be repeated.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ServerIsolationOptions:
    """The sandbox of the sessions."""

    isolation: Annotated[
        Isolation, option("--isolation", _ISOLATION, "Isolation tier of sessions.", metavar="TIER")
    ] = Isolation.AUTO
    require: Annotated[
        Require,
        option("--require", _ISOLATION, "Weakest isolation tier to accept.", metavar="TIER"),
    ] = Require.JAILED
    image: Annotated[
        str | None,
        option("--image", _ISOLATION, "Container image for the tier container.", metavar="IMAGE"),
    ] = None
    runtime: Annotated[
        str | None,
        option(
            "--runtime", _ISOLATION, "Container runtime, as the daemon names it.", metavar="NAME"
        ),
    ] = None
    python: Annotated[
        str | None,
        option(
            "--python",
            _ISOLATION,
            "Interpreter of the sessions, CPython 3.11 or later; by default that of the server.",
            metavar="FILE",
        ),
    ] = None
    mount: Annotated[
        Texts,
        option(
            "--mount",
            _ISOLATION,
            "A file or directory that sessions may read, at the same path or at INSIDE; may be "
            "repeated.",
            metavar="[INSIDE=]PATH",
        ),
    ] = None
    preload: Annotated[
        Texts,
        option(
            "--preload",
            _ISOLATION,
            "Modules to import before sessions start; may be repeated.",
            metavar="MODULE",
        ),
    ] = None
