"""Tenants by API key, or by address without a key; requests from pages of other sites."""

from __future__ import annotations

import base64

import pytest

from repl_server.auth import APIKeys, Authenticator, configured_keys, new_key, normal
from repl_server.settings import Settings
from repl_server.tenants import RequestError, Tenant

KEY, LINE = new_key("alice")
OTHER, OTHER_LINE = new_key("bob")
KEYS = APIKeys.parse([LINE, OTHER_LINE])
NONE = APIKeys({})
PAGE = "http://pages.example"


def scope(client="198.51.100.7", kind="http", scheme=None, **headers: str | list[str]) -> dict:
    """A request as uvicorn describes it. Names of headers have `_` for `-`."""
    pairs = [
        (name.replace("_", "-").encode(), value.encode("latin-1"))
        for name, values in {"host": "127.0.0.1:8000", **headers}.items()
        for value in ([values] if isinstance(values, str) else values)
    ]
    return {
        "type": kind,
        "scheme": scheme or {"http": "http", "websocket": "ws"}[kind],
        "client": (client, 5000) if client else None,
        "headers": pairs,
    }


def basic(login: str) -> str:
    """Return the Authorization header that a client sends for `http://login@host`."""
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def code_of(identity: Authenticator, request: dict) -> str:
    """The reason why a request is refused."""
    with pytest.raises(RequestError) as refused:
        identity.authenticate(request)
    return refused.value.code


def lets_in(identity: Authenticator, request: dict) -> bool:
    return isinstance(identity.authenticate(request), Tenant)


def local(**more) -> Authenticator:
    return Authenticator(Settings(**more), NONE)


def public(keys=KEYS, **more) -> Authenticator:
    return Authenticator(Settings(host="0.0.0.0", **more), keys)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY} "},
        {"x_api_key": KEY},
        {"x_api_key": KEY, "authorization": "Bearer of-the-proxy"},
        {"x_api_key": KEY, "authorization": f"Bearer {OTHER}"},
        {"authorization": basic(f"openenv:{KEY}")},
        {"authorization": basic(f":{KEY}")},
    ],
)
def test_a_key_identifies_the_tenant(headers) -> None:
    assert public().authenticate(scope(**headers)) == Tenant("key", "alice")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": basic(KEY)},
        {"authorization": basic(f"openenv:{KEY}x")},
        {"authorization": basic(f"openenv:{KEY}")[:-3]},
        {"authorization": "Basic \xff\xfe"},
        {"authorization": [basic(f"openenv:{KEY}"), f"Bearer {KEY}"]},
        {"authorization": KEY},
        {"authorization": "Bearer"},
        {"x_api_key": ""},
        {"x_api_key": "wrong", "authorization": f"Bearer {KEY}"},
        {"x_api_key": [KEY, OTHER]},
        {"authorization": [f"Bearer {KEY}", f"Bearer {OTHER}"]},
        {"x_api_key": "\xff\xfe"},
    ],
)
def test_without_a_valid_key_no_client_is_admitted(headers) -> None:
    assert code_of(public(), scope(**headers)) == "UNAUTHENTICATED"


def test_a_refusal_does_not_repeat_the_key() -> None:
    with pytest.raises(RequestError) as refused:
        public().authenticate(scope(x_api_key="sesame-open"))

    assert "sesame" not in str(refused.value) + str(refused.value.data())


def test_on_loopback_no_key_is_required() -> None:
    assert local().authenticate(scope("127.0.0.1")) == Tenant("address", "127.0.0.1")
    assert (
        local().authenticate(scope("::1", authorization="Bearer for-somebody-else")).kind
        == "address"
    )


def test_a_key_file_on_loopback_asks_for_keys() -> None:
    assert code_of(Authenticator(Settings(), KEYS), scope("127.0.0.1")) == "UNAUTHENTICATED"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_server_on_a_public_address_does_not_start_without_keys(host) -> None:
    with pytest.raises(ValueError, match="repl-env keys"):
        Authenticator(Settings(host=host), NONE)
    assert not Authenticator(Settings(host=host, no_auth=True), NONE).requires_keys


def test_an_empty_key_file_still_requires_keys(tmp_path) -> None:
    (tmp_path / "keys").touch()

    with pytest.raises(ValueError, match="create a key"):
        Authenticator(
            Settings(api_keys=tmp_path / "keys"),
            configured_keys(Settings(api_keys=tmp_path / "keys")),
        )


def test_keys_come_from_the_file_and_the_environment(tmp_path) -> None:
    (tmp_path / "keys").write_text(LINE)
    settings = Settings(host="0.0.0.0", api_keys=tmp_path / "keys", hashed_keys=(OTHER_LINE,))
    identity = Authenticator(settings, configured_keys(settings))

    assert identity.authenticate(scope(x_api_key=KEY)).name == "alice"
    assert identity.authenticate(scope(x_api_key=OTHER)).name == "bob"


def test_an_optional_key_identifies_its_tenant() -> None:
    identity = public(no_auth=True)

    assert identity.authenticate(scope()) == Tenant("address", "198.51.100.7")
    assert identity.authenticate(scope(x_api_key=KEY)) == Tenant("key", "alice")
    assert code_of(identity, scope(x_api_key="wrong")) == "UNAUTHENTICATED"


@pytest.mark.parametrize(
    ("client", "forwarded", "whose"),
    [
        ("198.51.100.7", "203.0.113.1", "198.51.100.7"),  # not a trusted proxy
        ("10.0.0.1", "203.0.113.1", "203.0.113.1"),
        (
            "10.0.0.1",
            "198.51.100.9, 203.0.113.1",
            "203.0.113.1",
        ),  # the first one is claimed by the client
        ("10.0.0.1", ["198.51.100.9", "203.0.113.1, 10.0.0.2"], "203.0.113.1"),
        ("10.0.0.1", "203.0.113.1:4711", "203.0.113.1"),
        ("10.0.0.1", "[2001:db8::1]:4711", "2001:db8::/64"),
        ("10.0.0.1", "2001:db8::1", "2001:db8::/64"),
        ("10.0.0.1", "10.0.0.2, 10.0.0.3", "10.0.0.2"),
        ("10.0.0.1", "203.0.113.1, unknown", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "[2001:db8::1]evil", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.1:x", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.1@evil", "10.0.0.1"),
        ("::ffff:10.0.0.1", "203.0.113.1", "203.0.113.1"),
        ("2001:db8:5::1", "203.0.113.1", "2001:db8:5::/64"),
        ("", "203.0.113.1", "unknown"),
    ],
)
def test_a_trusted_proxy_reports_the_client_address(client, forwarded, whose) -> None:
    identity = public(NONE, no_auth=True, trusted_proxies=("10.0.0.0/24",))

    assert identity.authenticate(scope(client, x_forwarded_for=forwarded)) == Tenant(
        "address", whose
    )


# Each contains an address or name of this machine, and is another host.
DOUBTFUL = [
    *(
        "[::1]evil.com",
        "[::1]evil.com:8000",
        "[::1].evil.com",
        "[::1]:8000.evil.com",
        "[::1]@evil.com",
    ),
    *(
        "[::1",
        "::1]",
        "::1",
        "[::1]]",
        "[[::1]]",
        "[]",
        "[]:8000",
        "[::1%lo]",
        "[::1%25lo]",
        "[v1.x]",
    ),
    *(
        "[127.0.0.1]",
        "[localhost]",
        "[::1]:",
        "[::1]:x",
        "[::1]:80:80",
        "[::g]",
        "[:::1]",
        "x[::1]",
    ),
    *(
        "127.0.0.1.evil.com",
        "127.0.0.1.evil.com:8000",
        "localhost.evil.com",
        "evil.com.",
        "127.0.0.1.x",
    ),
    *(
        "localhost:80@evil.com",
        "localhost@evil.com",
        "user:word@localhost",
        "@localhost",
        "localhost@",
    ),
    *(
        "localhost.",
        "localhost.:8000",
        "127.0.0.1.",
        "localhost..",
        ".localhost",
        "localhost:8000.",
    ),
    *("localhost:", "localhost:x", "localhost:80x", "localhost:-1", "localhost:+80", "localhost:0"),
    *("localhost:080", "localhost:65536", "localhost:999999", "localhost:8 0", "localhost:80:80"),
    *(
        "localhost%00",
        "localhost%2eevil.com",
        "%6cocalhost",
        "localhost%20",
        "127%2e0.0.1",
        "localhost:%38",
    ),
    *(
        "localhost/",
        "localhost/x",
        "localhost?x",
        "localhost#x",
        "localhost\\x",
        "http://localhost",
        "/",
    ),
    *(
        "localhost evil.com",
        "localhost\tx",
        "localhost,evil.com",
        "localhost;x",
        "localhost\x00",
        "loc\xe4l",
    ),
    *(
        "127.0.0.1:8\xb2",
        "127.1",
        "127.0.0.01",
        "0x7f.0.0.1",
        "2130706433",
        "127.0.0.1.1",
        "1270.0.0.1",
    ),
    *(
        "-localhost",
        "localhost-",
        "*",
        "*.localhost",
        "local_host",
        "localhost" * 40,
        "x." * 200 + "x",
    ),
]


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    "origin",
    [
        *(f"http://{host}" for host in DOUBTFUL),
        *(
            "http://127.0.0.1:8000/",
            "http:/127.0.0.1:8000",
            "http:127.0.0.1:8000",
            "//127.0.0.1:8000",
        ),
        *(
            "http://127.0.0.1:8000\n",
            " http://127.0.0.1:8000",
            "127.0.0.1:8000",
            "http://",
            "file://",
        ),
        PAGE,
        "https://127.0.0.1:8000",
        "http://127.0.0.1:3000",
        "http://localhost:8000",
        "http://127.0.0.1:8000.pages.example",
        "http://127.0.0.1:8000@pages.example",
        "null",
        "",
        "http://127.0.0.1:8000 http://127.0.0.1:8000",
        ["http://127.0.0.1:8000", "http://127.0.0.1:8000"],
    ],
)
def test_pages_of_other_origins_are_refused(kind, origin) -> None:
    assert code_of(local(), scope("127.0.0.1", kind, origin=origin)) == "FORBIDDEN"


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://localhost:8000", "LOCALHOST:8000"),
        ("HTTP://localhost", "localhost:80"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("http://[::1]:8000", "[0:0:0:0:0:0:0:1]:8000"),
        ("http://[2001:db8::1]", "[2001:DB8::1]:80"),
        ("http://127.0.0.1", "127.0.0.1"),
        ("http://192.0.2.4:9000", "192.0.2.4:9000"),  # a forwarded port: not a name of the server
    ],
)
def test_the_server_s_own_pages_may_send_requests(origin, host) -> None:
    assert lets_in(local(), scope("127.0.0.1", "websocket", origin=origin, host=host))


def test_pages_that_the_operator_allowed_may_send_requests() -> None:
    identity = local(origins=("https://Pages.Example/", "http://other.example:80"))

    assert lets_in(identity, scope("127.0.0.1", origin="https://pages.example"))
    assert lets_in(identity, scope("127.0.0.1", origin="https://pages.example:443"))
    assert lets_in(identity, scope("127.0.0.1", origin="http://other.example"))
    assert code_of(identity, scope("127.0.0.1", origin="http://pages.example")) == "FORBIDDEN"


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "pages.example:8000", "origin": "http://pages.example:8000"},
        {"host": "pages.example:8000"},
        {"host": "127.0.0.1.pages.example"},
        {"host": "localhost.pages.example"},
        {"host": ["127.0.0.1:8000", "pages.example"]},
        {"host": ""},
        {"host": []},
        *({"host": host} for host in DOUBTFUL),
        *({"host": host, "origin": f"http://{host}"} for host in DOUBTFUL),
    ],
)
def test_dns_rebinding_is_refused(kind, headers) -> None:
    """The page has the origin of its own request, so only `Host` reveals it."""
    assert code_of(local(), scope("127.0.0.1", kind, **headers)) == "FORBIDDEN"


def look(method="GET", version="1.0", **headers) -> dict:
    """A request over HTTP without `Host`, unless `headers` has one."""
    found = scope("127.0.0.1", **{"host": [], **headers})
    return {**found, "method": method, "http_version": version}


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_a_probe_of_http_1_0_needs_no_host(method) -> None:
    assert lets_in(local(), look(method))


@pytest.mark.parametrize(
    "request_",
    [
        look("POST"),
        look("PUT"),
        look(version="1.1"),
        look(host=""),
        look(host="pages.example"),
        look(host=["127.0.0.1:8000", "pages.example"]),
        look(origin=PAGE),
        look(sec_fetch_site="cross-site"),
    ],
)
def test_no_other_request_is_accepted_without_a_host(request_) -> None:
    """State-changing requests, browser requests and requests with a wrong Host are refused."""
    assert code_of(local(), request_) == "FORBIDDEN"


@pytest.mark.parametrize("host", [[], "", ["127.0.0.1:8000", "pages.example"]])
def test_a_missing_or_repeated_host_header_is_reported_as_that(host) -> None:
    with pytest.raises(RequestError, match="exactly one Host"):
        local().authenticate(scope("127.0.0.1", host=host))


def test_a_host_name_of_the_operator_is_accepted() -> None:
    """A proxy on this machine that passes `Host` on."""
    identity = local(origins=("https://repl.example",), trusted_proxies=("127.0.0.1",))
    behind = {
        "host": "repl.example",
        "x_forwarded_for": "203.0.113.1",
        "x_forwarded_proto": "https",
    }

    assert identity.authenticate(scope("127.0.0.1", **behind)).name == "203.0.113.1"
    assert lets_in(identity, scope("127.0.0.1", origin="https://repl.example", **behind))


def test_on_public_addresses_only_pages_need_a_known_host_name() -> None:
    identity = public(NONE, no_auth=True)

    assert lets_in(identity, scope(host="repl:8000"))
    assert code_of(identity, scope(host="repl:8000", origin="http://repl:8000")) == "FORBIDDEN"


def test_with_a_key_any_host_name_is_the_own_origin() -> None:
    keyed = {"host": "repl.example", "x_api_key": KEY}

    assert lets_in(public(), scope(origin="http://repl.example", **keyed))
    assert code_of(public(), scope(origin="https://repl.example", **keyed)) == "FORBIDDEN"
    assert code_of(public(), scope(origin=PAGE, **keyed)) == "FORBIDDEN"


def test_the_scheme_of_the_own_origin_is_the_one_before_the_proxy() -> None:
    identity = public(trusted_proxies=("10.0.0.1",))
    page = {"host": "repl.example", "x_api_key": KEY, "origin": "https://repl.example"}

    for kind in ("http", "websocket"):
        assert lets_in(identity, scope("10.0.0.1", kind, x_forwarded_proto="https", **page))
        for said in ("http", "https, http", "gopher"):
            request = scope("10.0.0.1", kind, x_forwarded_proto=said, **page)
            assert code_of(identity, request) == "FORBIDDEN"
        assert code_of(identity, scope(x_forwarded_proto="https", **page)) == "FORBIDDEN"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_cross_site_loads_without_an_origin_are_refused(site) -> None:
    image = {"sec_fetch_site": site, "sec_fetch_mode": "no-cors"}

    assert code_of(local(), scope("127.0.0.1", **image)) == "FORBIDDEN"
    assert lets_in(local(), scope("127.0.0.1", **{**image, "sec_fetch_mode": "navigate"}))
    assert lets_in(local(), scope("127.0.0.1", **{**image, "sec_fetch_site": "same-origin"}))
    assert lets_in(local(), scope("127.0.0.1", **{**image, "sec_fetch_site": "none"}))


@pytest.mark.parametrize(
    "origin",
    [
        "example.org",
        "https://",
        "*",
        "https://example.org/path",
        "",
        "https://[::1]x",
        "https://a@b",
        "https://x:0",
    ],
)
def test_an_invalid_origin_cannot_be_configured(origin) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        local(origins=(origin,))


@pytest.mark.parametrize("proxy", ["localhost", "*", "10.0.0.0/99", ""])
def test_an_invalid_address_cannot_be_a_trusted_proxy(proxy) -> None:
    with pytest.raises(ValueError, match="is not an address or network"):
        local(trusted_proxies=(proxy,))


def test_equal_origins_are_normalized() -> None:
    assert (
        normal("HTTPS://Example.Org:443") == normal("https://example.org") == "https://example.org"
    )
    assert normal("https://example.org:80") == "https://example.org:80"
    assert normal("vscode-webview://abc") == "vscode-webview://abc"
