"""A session's network is its own, unchanged at the start, and not configurable.

Network namespaces are used again (`zygote/networks.py`). Each fact is checked for a sandbox of the
user who runs the suite and for one of an ordinary user.
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
for name in ("sockstat", "sockstat6"):  # with the memory of all sockets there are
    found[name] = found[name].partition("mem")[0].partition("alloc")[0]
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
    first, second = ask("""
        with Sandbox() as sandbox:
            first, tried = used(sandbox, TRY_ALL)
            assert tried > 400
            print(json.dumps([first, used(sandbox, "found = 1")[0]]))
        """)
    assert first != second


def test_after_any_session_the_next_finds_a_network_as_new(ask: Ask) -> None:
    first, *later = ask("""
        with Sandbox() as sandbox:
            fresh = used(sandbox, READ)[1]
        with Sandbox() as sandbox:
            seen = []
            for code in (TRY_ALL, TRY_ALL, "found = 1"):
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
