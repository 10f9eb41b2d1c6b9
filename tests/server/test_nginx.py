"""docker/nginx.conf before two servers: each tenant has one of them, by socket and by HTTP."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import ssl
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from websockets.sync.client import connect

from repl_server.auth import new_key
from tests.server.conftest import Peer, peer, serving
from tests.server.nginx_proxy import ADDRESS, needs_nginx, nginx
from tests.waiting import PATIENCE

OWNERS = ("anna", "ben", "cleo", "dora", "emil", "fred")
# Keys are random, and so is which server a tenant has: six may well share one, not all of these.
MORE = tuple(f"tenant-{number}" for number in range(58))

pytestmark = needs_nginx


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


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_tls_ends_at_the_proxy_as_the_page_says(keys, tmp_path):
    """The playground's origin is that of https: its requests are those of the server's own page."""
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
    (tls,) = re.findall(r"```text\n(listen 443.*?)```", page, re.DOTALL)
    certificate, key = tmp_path / "fullchain.pem", tmp_path / "privkey.pem"
    made = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={ADDRESS} -keyout {key}"
    names = ["-out", certificate, "-addext", f"subjectAltName=IP:{ADDRESS}"]
    subprocess.run(["openssl", *made.split(), *names], check=True, capture_output=True)
    settings = {"api_keys": Path(keys["file"]), "trusted_proxies": ("127.0.0.1",)}
    trusted = ssl.create_default_context(cafile=certificate)
    with (
        serving(settings) as one,
        serving(settings) as two,
        nginx(
            tmp_path / "nginx", one, two, tls=tls.replace("/etc/ssl/repl-env", str(tmp_path))
        ) as proxy,
    ):

        def status(origin: str) -> int:
            connection = http.client.HTTPSConnection(
                ADDRESS, proxy.port, timeout=PATIENCE, context=trusted
            )
            with closing(connection):
                headers = {**bearer(keys["anna"]), "Origin": origin}
                connection.request("GET", "/ready", headers=headers)
                return connection.getresponse().status

        origin = f"https://{ADDRESS}:{proxy.port}"
        assert [status(origin), status(origin.replace("https", "http"))] == [200, 403]
        url = f"wss://{ADDRESS}:{proxy.port}/ws"
        headers = {**bearer(keys["anna"]), "Origin": origin}
        with connect(url, additional_headers=headers, ssl=trusted) as socket:
            client = Peer(socket)
            client.reset()
            assert client.run("6 * 7")["value"] == "42"
