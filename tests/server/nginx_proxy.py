"""docker/nginx.conf in a real nginx before servers of a test."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.waiting import PATIENCE

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
EXAMPLE = Path(__file__).parents[2] / "docker" / "nginx.conf"
# Of this machine, but not used by another test, so that a free port stays free.
ADDRESS = "127.0.0.79"

needs_nginx = pytest.mark.skipif(NGINX is None, reason="no nginx; Debian has it as nginx-light")


class Proxy:
    """A running nginx, as a `Serving` is to its clients."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://{ADDRESS}:{port}"


@contextmanager
def nginx(folder: Path, *servers, tls: str = "") -> Iterator[Proxy]:
    """The example, with the ports of these servers; everything that it writes is in `folder`.

    `tls`: directives in place of `listen 8000;`, which listen on port 443.
    """
    folder.mkdir(exist_ok=True)
    with socket.create_server((ADDRESS, 0)) as free:
        port = free.getsockname()[1]
    listen = (tls or "listen 8000;").replace("443" if tls else "8000", f"{ADDRESS}:{port}")
    text = EXAMPLE.read_text(encoding="utf-8").replace("listen 8000;", listen)
    for number, server in enumerate(servers, 1):
        assert f"127.0.0.1:800{number}" in text
        text = text.replace(f"127.0.0.1:800{number}", urlsplit(server.url).netloc)
    scratch = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off;\n{scratch}{text}}}\n"
    )
    process = subprocess.Popen([str(NGINX), "-c", str(config)], stderr=subprocess.PIPE, text=True)
    try:
        while process.poll() is None:
            try:
                socket.create_connection((ADDRESS, port)).close()
            except ConnectionRefusedError:
                continue
            break
        assert process.poll() is None, process.stderr.read()
        yield Proxy(port)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)
