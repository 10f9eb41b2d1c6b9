"""docker/nginx.conf before two servers: each tenant has one of them, by socket and by HTTP."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from repl_server.auth.api_keys import new_key
from tests.server.conftest import peer, serving
from tests.waiting import PATIENCE

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
EXAMPLE = Path(__file__).parents[2] / "docker" / "nginx.conf"
# Of this machine, but not used by another test, so that a free port stays free.
ADDRESS = "127.0.0.79"
OWNERS = ("anna", "ben", "cleo", "dora", "emil", "fred")
# Keys are random, and so is which server a tenant has: six may well share one, not all of these.
MORE = tuple(f"tenant-{number}" for number in range(58))

pytestmark = pytest.mark.skipif(NGINX is None, reason="no nginx; Debian has it as nginx-light")


class Proxy:
    def __init__(self, port: int) -> None:
        self.port = port


@contextmanager
def nginx(folder: Path, *servers):
    """The example, with the ports of these servers; everything that it writes is in `folder`."""
    with socket.create_server((ADDRESS, 0)) as free:
        port = free.getsockname()[1]
    text = EXAMPLE.read_text(encoding="utf-8").replace("listen 8000;", f"listen {ADDRESS}:{port};")
    for number, server in enumerate(servers, 1):
        assert f"127.0.0.1:800{number}" in text
        text = text.replace(f"127.0.0.1:800{number}", f"127.0.0.1:{server.port}")
    scratch = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr;\n"
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


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> dict[str, str]:
    """A key for each tenant; the file of them is at "file"."""
    made = {name: new_key(name) for name in OWNERS + MORE}
    file = tmp_path_factory.mktemp("keys") / "keys.txt"
    file.write_text("\n".join(line for _, line in made.values()))
    return {"file": str(file), **{name: key for name, (key, _) in made.items()}}


@pytest.fixture(scope="module")
def behind(keys, tmp_path_factory):
    """Two servers and the proxy before them."""
    settings = {"api_keys": Path(keys["file"]), "trusted_proxies": ("127.0.0.1",)}
    with (
        serving(settings) as one,
        serving(settings) as two,
        nginx(tmp_path_factory.mktemp("nginx"), one, two) as proxy,
    ):
        yield one, two, proxy


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def through(proxy, headers):
    """A socket of the server that the proxy chooses."""
    return peer(proxy, named=True, host=ADDRESS, additional_headers=headers)


def asked(proxy, method, path, key, data=None, **headers):
    connection = http.client.HTTPConnection(ADDRESS, proxy.port, timeout=PATIENCE)
    body = None if data is None else json.dumps(data)
    more = {"Content-Type": "application/json", **bearer(key), **headers}
    connection.request(method, path, body, more)
    answer = connection.getresponse()
    content = json.loads(answer.read() or "null")
    connection.close()
    return answer, content


def holder(servers, tenant):
    """The one of `servers` that has sessions of `tenant`."""
    found = [
        server
        for server in servers
        if any(s.tenant.name == tenant for s in server.manager.sessions)
    ]
    assert len(found) == 1
    return found[0]


def test_each_tenant_has_one_server_whichever_header_it_uses(behind, keys):
    one, two, proxy = behind
    used = set()

    for tenant in OWNERS:
        headers = bearer(keys[tenant])
        answer, _ = asked(
            proxy, "POST", "/reset", keys[tenant], {"context": tenant}, **{"X-Session-Id": "new"}
        )
        token = answer.headers["X-Session-Id"]
        server = holder((one, two), tenant)
        used.add(server.port)
        with through(proxy, headers) as client:
            client.ask("open")
            client.reset(context="there")
            assert client.run("print(context)")["stdout"] == "there\n"
            # Both sessions are on the first one's server: otherwise `holder` would find two.
            assert holder((one, two), tenant) is server
        _, found = asked(
            proxy, "POST", "/step", keys[tenant], {"action": {"code": "print(context)"}},
            **{"X-Session-Id": token},
        )  # fmt: skip
        assert found["observation"]["result"]["stdout"] == f"{tenant}\n"

    for tenant in MORE:
        if used == {one.port, two.port}:
            break
        asked(proxy, "POST", "/reset", keys[tenant], {}, **{"X-Session-Id": "new"})
        used.add(holder((one, two), tenant).port)
    assert used == {one.port, two.port}


def test_a_dropped_socket_is_resumed_through_the_proxy(behind, keys):
    _, _, proxy = behind
    headers = bearer(keys["anna"])
    with through(proxy, headers) as first:
        token = first.ask("open")["data"]["token"]
        first.reset(context="kept")
        first.run("x = 41")

    with through(proxy, headers) as second:
        assert second.ask("resume", {"token": token})["data"]["resumed"] is True
        assert second.run("x + 1")["value"] == "42"


def test_a_header_selects_among_the_servers_of_one_tenant(behind, keys):
    one, two, proxy = behind
    used = set()
    # Half of all shards are at each, by chance: twelve may well be at one, not all of these.
    for shard in range(64):
        headers = {**bearer(keys["ben"]), "X-Repl-Shard": str(shard)}
        with through(proxy, headers) as client:
            name = client.open()["session_id"]
            used |= {
                server.port
                for server in (one, two)
                for s in server.manager.sessions
                if s.id == name
            }
            client.send("close", {}, id="last")
        if used == {one.port, two.port}:
            break
    assert used == {one.port, two.port}


def test_a_wrong_key_is_refused_by_the_server_behind(behind):
    _, _, proxy = behind
    answer, content = asked(proxy, "POST", "/reset", "repl_wrong", {})
    assert answer.status == 401 and content["code"] == "UNAUTHENTICATED"
