"""Sandboxes of an ordinary user, whose sessions all have that user's uid outside.

The kernel's checks of uids hold nothing apart there; namespaces, missing capabilities and the
filter must. The view of such a session is tested in test_jail_view.
"""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Callable, Iterator
from errno import ETOOMANYREFS
from typing import Any, TypeAlias

import pytest

from tests.waiting import LONG, PATIENCE

User: TypeAlias = Callable[[str], Any]

# Reads [code, timeout] per line. `code` runs in one session; then that session, its neighbour and a
# new one must answer.
ATTACKED = """
import json, sys
from repl_sandbox import Limits, Sandbox

def value(session):
    try:
        session.run("pass")
        return session.run("6 * 7").value
    except Exception as error:
        return repr(error)

with Sandbox(limits=Limits(timeout=60, grace=0.2)) as sandbox:
    for line in sys.stdin:
        code, timeout = json.loads(line)
        with sandbox.session() as neighbour, sandbox.session() as session:
            neighbour.run("x = 42")
            outcome = session.run(code, timeout=timeout)
            found = [value(neighbour), neighbour.run("x").value, value(session)]
            with sandbox.session() as third:
                found.append(value(third))
        error = None if outcome.error is None else outcome.error.type
        print(json.dumps([type(outcome).__name__, error, *found]), flush=True)
"""

Attack: TypeAlias = Callable[..., Any]


@pytest.fixture(scope="module")
def attack(user: Any) -> Iterator[Attack]:
    """[outcome, error] of code, after which all sessions must work, the neighbour untouched.

    All run below one template, which must outlive each; one that did not is replaced.
    """
    hosts: list[subprocess.Popen[str]] = []

    def run(code: str, timeout: float = PATIENCE) -> Any:
        if not hosts:
            hosts.append(user.start(ATTACKED))
        host = hosts.pop()
        assert host.stdin is not None and host.stdout is not None
        host.stdin.write(json.dumps([code, timeout]) + "\n")
        host.stdin.flush()
        answer = host.stdout.readline() if select.select([host.stdout], [], [], LONG)[0] else ""
        if not answer:
            with host:
                host.kill()
        assert answer, "the host hangs, or ended: its standard error says why"
        hosts.append(host)
        outcome, error, *answers = json.loads(answer)
        assert answers == ["42"] * 4
        return [outcome, error]

    yield run
    for host in hosts:
        host.communicate(timeout=LONG)


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT", "SIGHUP"])
@pytest.mark.parametrize(
    "call", ["os.kill(0, {})", "os.killpg(0, {})", "os.killpg(os.getpgrp(), {})"]
)
def test_a_signal_to_the_process_group_stays_in_the_session(
    attack: Attack, call: str, signal: str
) -> None:
    """A group reaches across pid namespaces: the template's must not be the session's."""
    # A stopped session, and no other, uses up its time.
    attack(f"import os, signal\n{call.format(f'signal.{signal}')}", timeout=0.3)


def test_every_signal_to_init_is_without_effect(attack: Attack) -> None:
    code = (
        "import errno, os\nsaid = []\n"
        "for number in range(1, 65):\n"
        "    try: said.append(os.kill(1, number))\n"
        "    except OSError as error: said.append(error.errno)\n"
        "assert len(said) == 64 and {None, errno.EPERM} >= set(said), said"
    )
    assert attack(code) == ["Finished", None]


@pytest.mark.parametrize("limit", ["RLIMIT_CPU", "RLIMIT_NPROC", "RLIMIT_NOFILE", "RLIMIT_DATA"])
def test_the_code_cannot_set_the_limits_of_init(attack: Attack, limit: str) -> None:
    """prlimit(2) asks for equal uids only, and init has none of its own here."""
    code = f"import resource\nresource.prlimit(1, resource.{limit}, (0, 0))"
    assert attack(code) == ["Raised", "PermissionError"]


@pytest.mark.parametrize(
    "code",
    [
        "open('/proc/1/mem', 'rb')",
        "open('/proc/1/environ')",
        "open('/proc/1/maps')",
        "import os\nos.listdir('/proc/1/fd')",
        "import os\nos.readlink('/proc/1/root')",
        "import os\nos.readlink('/proc/1/cwd')",
        "import os\nos.readlink('/proc/1/ns/mnt')",
        "import os\nos.setpgid(1, 0)",
        "import os\nos.sched_setaffinity(1, [0])",
        "import os\nos.setpriority(os.PRIO_PROCESS, 1, 10)",
        "open('/proc/1/oom_score_adj', 'w').write('1000')",
        "open('/proc/self/oom_score_adj', 'w').write('-1000')",
        "open('/proc/sys/kernel/hostname', 'w').write('mine')",
        "open('/proc/sys/user/max_user_namespaces', 'w').write('1')",
        "open('/proc/self/uid_map', 'w').write('0 0 1')",
    ],
)
def test_init_and_the_kernel_settings_are_inaccessible(attack: Attack, code: str) -> None:
    outcome, error = attack(code)
    assert outcome == "Raised"
    assert error in ("PermissionError", "ProcessLookupError", "OSError")


FULL = """
import json
from repl_sandbox import Killed, Limits, Sandbox, TimedOut

with Sandbox(ready=1, limits=Limits(timeout=60, grace=0.2, memory="200MiB")) as sandbox:
    with sandbox.session(host={"double": lambda x: 2 * x}) as session:
        session.set("text", "x" * 1_000_000)
        results = [
            session.run("import os\\nopen('file', 'w').write(text)\\ndouble(len(text))").value,
            session.run("import subprocess\\nsubprocess.run(['id', '-u'], text=True,"
                        " capture_output=True).stdout").value,
            isinstance(session.run("while True: pass", timeout=0.05), TimedOut),
            session.run("bytearray(1 << 30)").error.type,
            isinstance(session.run("os._exit(1)"), Killed),
            session.run("import os\\nos.path.getsize('file')").value,
        ]
    for _ in range(20):
        sandbox.session().close()
print(json.dumps(results))
"""


IN_FLIGHT = """
import json, resource
from repl_sandbox import Limits, Sandbox

resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
seen = []
with Sandbox(isolation={tier!r}, limits=Limits(timeout=60, open_files=1024)) as sandbox:
    with sandbox.session() as neighbour, sandbox.session() as session:
        neighbour.run("x = 42")
        outcome = session.run(
            "import socket\\nkept, sent = [], 0\\n"
            "try:\\n    while True:\\n        kept.append(socket.socketpair())\\n"
            "        socket.send_fds(kept[-1][0], [b'x'], [0] * 250)\\n        sent += 250\\n"
            "except OSError as error: seen = error.errno, sent"
        )
        seen.append(session.get("seen"))
        with sandbox.session() as third:
            seen.append(third.run("6 * 7").value)
        seen += [neighbour.run("import os; os._exit(1)").state, neighbour.run("x").value]
print(json.dumps(seen))
"""


@pytest.mark.parametrize("tier", ["jailed", "confined"])
def test_descriptors_in_flight_do_not_block_other_senders(user: User, tier: str) -> None:
    """The kernel counts them by user, and stops who may open fewer than that."""
    (errno, sent), *others = user(IN_FLIGHT.replace("{tier!r}", repr(tier)))
    assert errno == ETOOMANYREFS
    assert 0 < sent < 1024
    assert others == ["42", "rolled_back", "42"]


def test_the_engine_works_for_an_ordinary_user(user: User) -> None:
    """Bulk values, host calls, programs, limits, interrupts, restarts and the pool."""
    assert user(FULL) == ["2000000", r"'1000\n'", True, "MemoryError", True, "1000000"]


LEAK = """
import json, operator, os, psutil, time
from repl_sandbox import Sandbox

def held():
    (zygote,) = psutil.Process().children()
    return [psutil.Process().num_fds(), zygote.num_fds(), len(zygote.children(recursive=True))]

with Sandbox() as sandbox:
    with sandbox.session() as session:
        session.run("1")
    try:
        before = held()
    except psutil.AccessDenied:
        held = lambda: [psutil.Process().num_fds()]
        before = held()
    for _ in range(50):
        with sandbox.session() as session:
            assert session.run("6 * 7").value == "42"
    until = time.monotonic() + 60  # a thread that looks at sessions opens some for a moment
    while any(more := [*map(operator.gt, held(), before)]) and time.monotonic() < until:
        time.sleep(0.01)
    print(json.dumps(more))
"""


def test_sessions_leave_nothing_behind(user: User) -> None:
    assert not any(user(LEAK))


# The session's interpreter may lack cloudpickle; then it says so.
CHECKPOINT = """
import json
from repl_sandbox import CheckpointError, Sandbox

with Sandbox(hash_seed=3) as sandbox:
    with sandbox.session() as session:
        session.run("x = [1]\\ny = x\\ndef f(): return x")
        try:
            data = session.checkpoint()
        except CheckpointError as error:
            print(json.dumps(["cloudpickle" in str(error), session.run("x is y").value]))
            raise SystemExit
    with sandbox.restore(data) as session:
        print(json.dumps([session.missing == (), session.run("f() is y").value]))
"""


def test_a_namespace_is_saved_and_restored(user: User) -> None:
    assert user(CHECKPOINT) == [True, "True"]


SHARED = """
import json
from repl_sandbox import Sandbox

with Sandbox(isolation={tier!r}) as parent:
    with parent.with_shared(text="x" * 20_000_000, table={{"a": [1]}}) as one:
        with one.with_shared(more=2) as two, two.session() as first, two.session() as second:
            first.run("table['a'].append(2)")
            found = [each.run("len(text), table, more").value for each in (first, second)]
            pid = first._core.links.worker_pid
            private = 0
            if first.isolation.tier == "jailed":  # elsewhere it hides its memory from this user too
                with open(f"/proc/{{pid}}/smaps_rollup") as rollup:
                    rows = [row.split() for row in rollup if row.startswith("Private_")]
                private = sum(int(kilobytes) for _, kilobytes, _ in rows)
            tier = first.isolation.tier
    with parent.session() as after:
        found.append(after.run("6 * 7").value)
print(json.dumps([found, tier, private < 10_000]))
"""


@pytest.mark.parametrize("tier", ["jailed", "confined", "process"])
def test_shared_objects_are_in_memory_once_and_each_sessions_own(user: User, tier: str) -> None:
    assert user(SHARED.format(tier=tier)) == [
        ["(20000000, {'a': [1, 2]}, 2)", "(20000000, {'a': [1]}, 2)", "42"],
        tier,
        True,
    ]


FILES = """
import json
from repl_sandbox import Limits, Sandbox
PREPARE = '''
import os, sqlite3, tempfile, time
home = os.getcwd()
open('a', 'w').write('content')
c = sqlite3.connect('w.db')
c.execute('pragma journal_mode=wal'); c.execute('create table t(n)'); c.commit()
d = tempfile.TemporaryDirectory()
'''
found = []
with Sandbox(isolation="{tier}", limits=Limits(timeout=60, workspace="8MiB")) as sandbox:
    with sandbox.session() as session:
        session.files.put("given", b"by the host")
        session.run(PREPARE)
        with session.branch() as branch, branch.branch() as inner:
            for each in (branch, inner):
                found.append(each.run("open(home + '/a', 'w')").ok)
                each.run("c.execute('insert into t values(9)'); c.commit()")
                each.run("c.close(); d.cleanup()")
                found.append(each.run("open('a').read()").value)
        found.append(session.run(
            "c.execute('select count(*) from t').fetchone(), os.path.exists(d.name)").value)
        if "{tier}" == "confined":
            session.run("open('big', 'wb').write(bytes(20 << 20)); time.sleep(50)")
        found.append(session.run("sorted(os.listdir())").value)
print(json.dumps(found))
"""


@pytest.mark.parametrize("tier", ["jailed", "confined"])
def test_files_of_a_session_survive_its_branches_and_its_excess(
    user: Callable[[str], Any], tier: str
) -> None:
    *branches, kept, names = user(FILES.format(tier=tier))
    assert branches == [False, "'content'"] * 2
    assert kept == "((0,), True)"
    assert names == "['a', 'given', 'w.db', 'w.db-shm', 'w.db-wal']"
