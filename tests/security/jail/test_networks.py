"""A session's network is its own, unchanged at the start, and not configurable.

Network namespaces are used again (`zygote/networks.py`). Each fact is checked for a
sandbox of the user who runs the suite and for one of an ordinary user.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from repl_sandbox import Sandbox
from tests.internals import zygote_pid
from tests.waiting import LONG, eventually

Ask: TypeAlias = Callable[[str], Any]

# Helpers for the code of a test, which a host process runs.
HOST = """
import contextlib, json
from repl_sandbox import Limits, Sandbox

def network(session):
    (layer,) = (each for each in session.isolation.layers if each.name == "net namespace")
    assert layer.active
    return layer.detail

def used(sandbox, code):
    # The network of a session that ran `code`, and the value that it left as `found`.
    with sandbox.session() as session:
        outcome = session.run(code)
        assert outcome.ok, outcome
        return network(session), session.get("found")

# All files about the network but those that count for the whole machine, and the one that shows
# addresses of the kernel's own sockets, scrambled, in each network others.
READ = '''
import os
def read(path):
    try:
        with open(path) as file: return file.read()
    except (OSError, UnicodeDecodeError) as error: return type(error).__name__
found = {name: read(f"/proc/net/{name}") for name in sorted(os.listdir("/proc/net"))
         if name not in ("protocols", "softnet_stat", "stat", "ptype", "dev_snmp6", "netfilter",
                        "netlink")}
found["unix"] = found["unix"].splitlines()[0]  # the others are of the session itself
for name in ("sockstat", "sockstat6"):  # with the memory and the orphans of the whole machine
    found[name] = found[name].partition("mem")[0].partition("orphan")[0]
'''

# Tries all that sockets can be asked for, most of it in vain.
TRY_ALL = '''
import contextlib, itertools, socket, struct, tempfile
families = ((socket.AF_INET, ("127.0.0.1", 80), ("0.0.0.0", 0)),
            (socket.AF_INET6, ("::1", 80), ("::", 0)))
tried = 0
for (family, there, here), kind in itertools.product(families,
        (socket.SOCK_STREAM, socket.SOCK_DGRAM)):
    for _ in range(20):
        with socket.socket(family, kind) as sock:
            for act in (lambda: sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1),
                        lambda: sock.bind(here), lambda: sock.listen(),
                        lambda: sock.sendto(b"x" * 100, there), lambda: sock.connect(there),
                        lambda: sock.connect(sock.getsockname()),
                        lambda: sock.sendto(b"x", ("224.0.0.1", 9))):
                tried += 1
                with contextlib.suppress(OSError): act()
# Sockets in flight, in a ring that nothing but the kernel's collector breaks.
for n in range(10):
    a, b = socket.socketpair()
    c = socket.socket(socket.AF_UNIX)
    c.bind(f"\\\\0name{n}")
    c.listen()
    socket.send_fds(a, [b"x"], [b.fileno(), a.fileno(), c.fileno()])
    for each in (a, b, c): each.close()
found = tried
'''

# Serves itself, and leaves a listener, a bound port, and connections on their way and at their end.
SERVE = '''
import asyncio, os, socket, threading
async def main():
    async def answer(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    said = []
    for _ in range(5):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"over the loopback\\\\n")
        said.append(await reader.readline())
        writer.close()
    return said
found = [each.decode() for each in asyncio.run(main())]
left = [socket.create_server(("127.0.0.1", 28281)), socket.create_server(("127.0.0.1", 28282))]
left += [socket.create_connection(("127.0.0.1", 28282)), left[1].accept()[0]]
left[2].send(b"never read" * 1000)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("127.0.0.1", 28283))
with open("/proc/net/tcp") as file:
    states = {row.split()[3] for row in file.readlines()[1:]}
assert {"0A", "01", "06"} <= states, states  # listening, established, TIME_WAIT
if os.fork() == 0:  # and a process that holds all of it
    import time
    time.sleep(600)
'''
"""


@pytest.fixture(params=["as the suite's user", "as an ordinary user"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Runs a host's code and returns the JSON that it prints."""
    if request.param == "as an ordinary user":
        user = request.getfixturevalue("user")
        return lambda code: user(HOST + textwrap.dedent(code))
    return lambda code: _here(HOST + textwrap.dedent(code))


def _here(code: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_unchanged_network_is_reused(ask: Ask) -> None:
    seen = ask("""
        with Sandbox() as sandbox:
            print(json.dumps([used(sandbox, "found = 1")[0] for _ in range(5)]))
        """)
    assert len(set(seen)) == 1


def test_two_sessions_never_share_a_network(ask: Ask) -> None:
    seen = ask("""
        with Sandbox() as sandbox, contextlib.ExitStack() as stack:
            for _ in range(3): used(sandbox, "found = 1")
            print(json.dumps([network(stack.enter_context(sandbox.session())) for _ in range(8)]))
        """)
    assert len(set(seen)) == 8


def test_a_network_that_reveals_its_session_is_discarded(ask: Ask) -> None:
    """By its counters: the kernel may give a new network the number of one that is gone."""
    opened = ask("""
        COUNT = '''
        names, values = (line.split() for line in open("/proc/net/snmp") if line[:4] == "Tcp:")
        found = int(values[names.index("ActiveOpens")])
        '''
        with Sandbox() as sandbox:
            _, tried = used(sandbox, TRY_ALL)
            assert tried > 400
            after_all = used(sandbox, COUNT)[1]
            _, said = used(sandbox, SERVE)
            assert len(said) == 5
            left = used(sandbox, SERVE + COUNT)[1]
            print(json.dumps([after_all, used(sandbox, COUNT)[1], left > 0]))
        """)
    assert opened == [0, 0, True]


@pytest.mark.parametrize(
    "leave",
    [
        "import socket\nkept = socket.create_server(('127.0.0.1', 28281))",
        "import socket\nkept = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "kept.bind(('127.0.0.1', 28281))",
        "import socket\nkept = socket.create_server(('::1', 28281), family=socket.AF_INET6)",
    ],
    ids=["a listener", "a bound port", "a listener of IPv6"],
)
def test_what_leaves_no_trace_leaves_no_port_either(ask: Ask, leave: str) -> None:
    """Such a network may be used again; the port is free there, and nobody listens."""
    again, found = ask(f"""
        with Sandbox() as sandbox:
            first = used(sandbox, {leave!r} + "\\nfound = 1")[0]
            second, found = used(sandbox, '''
        import socket
        def number(call):
            try: call()
            except OSError as error: return error.errno
        one, two = ("127.0.0.1", 28281), ("::1", 28281)
        found = [number(lambda: socket.create_connection(each, 5)) for each in (one, two)]
        found.append(number(lambda: socket.create_server(one).close()))
        found.append(len(open("/proc/net/tcp").readlines() + open("/proc/net/udp").readlines()))
        ''')
            print(json.dumps([first == second, found]))
        """)
    refused = 111
    assert found == [refused, refused, None, 2], again


def test_sessions_serve_themselves_and_nobody_else(ask: Ask) -> None:
    """Two sessions and the host each have the same port for themselves."""
    found = ask("""
        import socket
        CLIENT = '''
        import socket
        try: found = socket.create_connection(("127.0.0.1", 28281), 5).recv(9).decode()
        except OSError as error: found = error.errno
        '''
        SERVER = '''
        import socket, threading
        server = socket.create_server(("0.0.0.0", 28281))
        def serve():
            while True:
                with server.accept()[0] as connection: connection.send(NAME)
        threading.Thread(target=serve, daemon=True).start()
        '''
        with Sandbox() as sandbox, sandbox.session() as one, sandbox.session() as two:
            def client(session):
                assert session.run(CLIENT).ok
                return session.get("found")
            with socket.create_server(("127.0.0.1", 28281)) as host:
                host.settimeout(5)
                alone = [client(one), client(two)]
                for name, session in (("one", one), ("two", two)):
                    outcome = session.run(f"NAME = b'{name}'" + SERVER)
                    assert outcome.ok, outcome
                both = [client(one), client(two)]
                with one.branch() as branch:
                    both.append(client(branch))
                with socket.create_connection(("127.0.0.1", 28281)):
                    host.accept()[0].close()  # the host's own still is the host's
            try:
                socket.create_connection(("127.0.0.1", 28281), 5)
                outside = "reached"
            except OSError as error:
                outside = error.errno
        print(json.dumps([alone, both, outside]))
        """)
    refused = 111
    assert found == [[refused, refused], ["one", "two", "one"], refused]


def test_nothing_outside_is_reached_by_any_family_or_address(ask: Ask) -> None:
    """By addresses of the host, of its network and of all: TCP, UDP, and both versions of IP."""
    heard, tried = ask("""
        import socket
        def address():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                try: sock.connect(("192.0.2.1", 9))
                except OSError: return "127.0.0.1"
                return sock.getsockname()[0]
        with contextlib.ExitStack() as stack:
            hosts = []
            for family, any_address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    with contextlib.suppress(OSError):
                        sock = stack.enter_context(socket.socket(family, kind))
                        sock.bind((any_address, 28285))
                        if kind == socket.SOCK_STREAM: sock.listen()
                        sock.settimeout(0.5)
                        hosts.append(sock)
            assert len(hosts) >= 2
            sandbox = stack.enter_context(Sandbox())
            code = '''
        import socket
        tried = 0
        places = ["127.0.0.1", "127.0.0.2", "0.0.0.0", ADDRESS, "10.0.2.2", "169.254.169.254",
                  "255.255.255.255", "224.0.0.1", "::1", "::", "::ffff:127.0.0.1", "fe80::1"]
        for place in places:
            family = socket.AF_INET6 if ":" in place else socket.AF_INET
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                with socket.socket(family, kind) as sock:
                    sock.settimeout(2)
                    tried += 1
                    try:
                        sock.connect((place, 28285))
                        sock.send(b"from a session")
                    except OSError: pass
        found = tried
        '''
            tried = used(sandbox, f"ADDRESS = {address()!r}" + code)[1]
            heard = []
            for sock in hosts:
                try: heard.append(repr(sock.accept() if sock.type == socket.SOCK_STREAM
                                       else sock.recvfrom(99)))
                except TimeoutError: pass
        print(json.dumps([heard, tried]))
        """)
    assert heard == []
    assert tried == 24


def test_the_kernel_s_memory_for_a_connection_is_bounded(ask: Ask) -> None:
    """What nobody reads is no more than for a pair of other sockets, and ends do not pile up."""
    bounds, taken, waiting = ask("""
        code = '''
        import socket
        bounds = [open(f"/proc/sys/net/ipv4/tcp_{name}").read().split()[-1]
                  for name in ("rmem", "wmem", "max_tw_buckets")]
        server = socket.create_server(("127.0.0.1", 0), backlog=4000)
        one = socket.create_connection(server.getsockname())
        other = server.accept()[0]
        one.setblocking(False)
        taken = 0
        try:
            while True: taken += one.send(bytes(1 << 16))
        except BlockingIOError: pass
        for _ in range(3000):
            client = socket.create_connection(server.getsockname())
            server.accept()[0].close()
            client.close()
        with open("/proc/net/sockstat") as file:
            waiting = int(file.read().partition("tw ")[2].split()[0])
        found = [bounds, taken, waiting]
        '''
        with Sandbox() as sandbox:
            print(json.dumps(used(sandbox, code)[1]))
        """)
    assert bounds == ["212992", "212992", "1024"]
    assert 1 << 14 < taken < 1 << 20
    assert 0 < waiting <= 1024


def test_after_any_session_the_next_finds_a_network_as_new(ask: Ask) -> None:
    first, *later = ask("""
        with Sandbox() as sandbox:
            fresh = used(sandbox, READ)[1]
        with Sandbox() as sandbox:
            seen = []
            for code in (TRY_ALL, SERVE, TRY_ALL, "found = 1"):
                used(sandbox, code)
                seen.append(used(sandbox, READ)[1])
        print(json.dumps([fresh, *seen]))
        """)
    assert {"snmp", "netstat", "sockstat", "unix", "tcp"} <= set(first)
    assert "Tcp:" in first["snmp"]
    for seen in later:
        assert seen == first


def test_no_process_of_a_session_can_configure_its_network(ask: Ask) -> None:
    """The network belongs to the user namespace of the template: ioctl_ns(2), NS_GET_USERNS."""
    owner, theirs = ask("""
        import fcntl, os
        with Sandbox() as sandbox, sandbox.session() as session:
            pid = session._core.links.worker_pid
            with open(f"/proc/{pid}/ns/net") as network:
                owner = fcntl.ioctl(network, 0xB701)
            print(json.dumps([os.fstat(owner).st_ino, os.stat(f"/proc/{pid}/ns/user").st_ino]))
        """)
    assert owner != theirs


def test_no_object_of_a_network_belongs_to_the_session_s_code(ask: Ask) -> None:
    """Otherwise it could read data for the owner, such as the loaded firewall modules."""
    own, firewall = ask("""
        with Sandbox() as sandbox:
            print(json.dumps(used(sandbox, '''
        import os
        own = [path for top in ("/proc/net/", "/proc/sys/net") for path, _, names in os.walk(top)
               for name in names if os.access(f"{path}/{name}", os.W_OK)]
        tables = [name for name in os.listdir("/proc/net") if name.endswith("_tables_matches")]
        found = [own, [name for name in tables if os.access(f"/proc/net/{name}", os.R_OK)]]
        '''.replace("\\n        ", "\\n"))[1]))
        """)
    assert own == firewall == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at a zygote's descriptors")
def test_idle_zygotes_hold_no_network_needed_by_others() -> None:
    with Sandbox(recovery="restart") as sandbox:
        folder = Path(f"/proc/{zygote_pid(sandbox)}/fd")

        def networks() -> int:
            found = 0
            for path in folder.iterdir():
                with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                    found += os.readlink(path).startswith("net:")
            return found

        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(sandbox.session())
        assert networks() == 5
        eventually(lambda: networks() == 1)


def test_more_sessions_than_kept_networks(ask: Ask) -> None:
    seen, again, descriptors = ask("""
        import os
        with Sandbox(limits=Limits(memory="64MiB"), recovery="restart") as sandbox:
            def opened():
                with contextlib.ExitStack() as stack:
                    sessions = [stack.enter_context(sandbox.session()) for _ in range(90)]
                    return [network(each) for each in sessions]
            seen, again = opened(), opened()
            zygote = sandbox._zygote.pid
            count = len(os.listdir(f"/proc/{zygote}/fd")) if os.geteuid() == 0 else 0
        print(json.dumps([seen, again, count]))
        """)
    assert len(set(seen)) == len(set(again)) == 90
    assert set(seen) & set(again)
    assert descriptors < 112
