"""Tier `confined`: programs and libraries work as elsewhere, for root's and a user's sandbox.

Each case runs in a session of its own and leaves its result in `seen`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from repl_sandbox import Limits, Sandbox
from repl_sandbox.jail.landlock import kernel_abi
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(not kernel_abi(), reason="this kernel has no Landlock")

FILES = {
    "system's name": ("import os, platform\nseen = os.path.exists('/etc/os-release') and "
        "bool(platform.freedesktop_os_release())", True),
    "Debian's version": ("import os\nseen = not os.path.exists('/etc/debian_version') or "
        "bool(open('/etc/debian_version').read())", True),
    "pip": ("import subprocess, sys\nseen = subprocess.run([sys.executable, '-m', 'pip', 'list'], "
        "capture_output=True, text=True).stderr", ""),
    "git": ("import shutil, subprocess\nseen = [] if not shutil.which('git') else "
        "[subprocess.run(['git', *words], capture_output=True, text=True).returncode for words in"
        " (['init', '-q'], ['status'], ['config', '-l'])]", [0, 0, 0]),
}  # fmt: skip

MODULE = "open('made.py', 'w').write('def double(n): return 2 * n\\n')\nimport made\n"
PROCESSES = {
    "lock": ("import multiprocessing as mp\nwith mp.Lock(), mp.RLock(): pass\n"
        "s = mp.Semaphore(2)\ns.acquire()\nseen = s.get_value()", 1),
    "event": ("import multiprocessing as mp\ne = mp.Event()\n"
        "p = mp.Process(target=e.set)\np.start()\nseen = e.wait(60)\np.join()", True),
    "queue": ("import multiprocessing as mp\nq = mp.Queue()\n"
        "p = mp.Process(target=q.put, args=([1],))\np.start()\nseen = q.get()\np.join()", [1]),
    **{f"pool by {method}": (MODULE + f"import multiprocessing as mp\n"
        f"with mp.get_context({method!r}).Pool(2) as pool: seen = pool.map(made.double, [1, 2])",
        [2, 4]) for method in ("fork", "spawn", "forkserver")},
    "executor": (MODULE + "from concurrent.futures import ProcessPoolExecutor\n"
        "with ProcessPoolExecutor(2) as pool: seen = [*pool.map(made.double, [1, 2])]", [2, 4]),
    "manager": ("import multiprocessing as mp\nwith mp.Manager() as m:\n"
        "    d = m.dict()\n    p = mp.Process(target=d.update, args=({1: 2},))\n"
        "    p.start()\n    p.join()\n    seen = [*d.items()]", [[1, 2]]),
    "shared memory": ("from multiprocessing import Process, shared_memory\n"
        "m = shared_memory.SharedMemory(create=True, size=10)\ndef f():\n"
        "    n = shared_memory.SharedMemory(m.name)\n    n.buf[0] = 7\n    n.close()\n"
        "p = Process(target=f)\np.start()\np.join()\nseen = m.buf[0]\nm.close()\nm.unlink()\n"
        "try: shared_memory.SharedMemory(m.name)\n"
        "except FileNotFoundError: seen = [seen, 'gone']", [7, "gone"]),
    "value": ("import multiprocessing as mp\nv = mp.Value('i', 3)\ndef f():\n"
        "    with v.get_lock(): v.value += 1\np = mp.Process(target=f)\np.start()\np.join()\n"
        "seen = v.value", 4),
    "descriptors in a queue": ("import multiprocessing as mp\nq = mp.Queue()\n"
        "a, b = mp.Pipe()\np = mp.Process(target=lambda: q.get().send('hi'))\np.start()\n"
        "q.put(b)\nseen = a.recv()\np.join()", "hi"),
    "listener and client": ("import threading\n"
        "from multiprocessing.connection import Client, Listener\nseen = []\n"
        "with Listener(family='AF_UNIX') as l:\n"
        "    t = threading.Thread(target=lambda: seen.append(l.accept().recv()))\n    t.start()\n"
        "    with Client(l.address) as c: c.send(5)\n    t.join()", [5]),
    "server of asyncio": ("import asyncio\nasync def answer(r, w):\n"
        "    w.write((await r.readline()).upper())\n    w.close()\n"
        "server = await asyncio.start_unix_server(answer, 'here')\n"
        "r, w = await asyncio.open_unix_connection('here')\nw.write(b'abc\\n')\n"
        "seen = (await r.read()).decode()\nserver.close()", "ABC\n"),
    "a client of nothing": ("import socket\nseen = []\nopen('plain', 'w').close()\n"
        "for path in ('missing', 'plain'):\n    try: socket.socket(socket.AF_UNIX).connect(path)\n"
        "    except OSError as e: seen.append(type(e).__name__)",
        ["FileNotFoundError", "ConnectionRefusedError"]),
}  # fmt: skip

NAMES = (
    "auxv",
    "cgroup",
    "cmdline",
    "environ",
    "limits",
    "maps",
    "smaps",
    "stat",
    "statm",
    "status",
)
READ = f"""
import os, subprocess, sys
def read():
    seen = {{n: len(open('/proc/self/' + n, 'rb').read()) > 0 for n in {NAMES!r}}}
    return [*seen, *(seen.values()), str(os.getpid()) in os.listdir('/proc'),
            len(os.listdir('/proc/self/fd')) > 2, len(os.listdir('/proc/self/task')) > 0]
"""
READS = [*NAMES, *[True] * (len(NAMES) + 3)]
PROC = {
    "proc in the worker": (READ + "seen = read()", READS),
    "proc in a fork": (READ + "r, w = os.pipe()\nif os.fork() == 0:\n"
        "    os.write(w, repr(read()).encode())\n    os._exit(0)\n"
        "os.close(w)\nseen = eval(open(r).read())", READS),
    "proc in a program": (READ + f"code = {READ!r} + 'print(read())'\n"
        "seen = eval(subprocess.run([sys.executable, '-c', code], capture_output=True,"
        " text=True).stdout)", READS),
    "proc of a child": ("import subprocess\np = subprocess.Popen(['sleep', '60'])\n"
        "seen = [open(f'/proc/{p.pid}/comm').read(), len(open(f'/proc/{p.pid}/maps').read()) > 0]\n"
        "p.kill()", ["sleep\n", True]),
    "a shell reads its own": ("import subprocess\nseen = subprocess.run(['cat', '/proc/self/comm'],"
        " capture_output=True, text=True).stdout", "cat\n"),
    "account": ("import getpass, grp, os, pwd\nme = pwd.getpwuid(os.getuid())\n"
        "seen = [me.pw_name, me.pw_dir == os.environ['HOME'], pwd.getpwnam('user').pw_uid =="
        " os.getuid(), grp.getgrgid(os.getgid()).gr_name, getpass.getuser()]",
        ["user", True, True, "user", "user"]),
    "another account": ("import pwd\ntry: pwd.getpwuid(12345)\nexcept KeyError: seen = 'none'",
        "none"),
    "host's file to read": ("import os\nseen = []\nfor path in ('/etc/hostname', '/etc/shadow',"
        " '/proc/mounts', '/proc/1/cmdline', '/proc/1/environ'):\n"
        "    try: open(path)\n    except FileNotFoundError: seen.append(os.path.exists(path))\n"
        "try: os.listdir('/root')\nexcept FileNotFoundError: seen.append('no list')",
        [True, True, True, True, True, "no list"]),
    "own file that is closed": ("import os\nopen('mine', 'w').close()\nos.chmod('mine', 0)\n"
        "try: open(os.getcwd() + '/mine')\nexcept PermissionError: seen = 'closed'", "closed"),
}  # fmt: skip

LOOK = """
import json
from repl_sandbox import Limits, Sandbox

def look(tier, cases, python=None):
    found = {}
    limits = Limits(timeout=PATIENCE, processes=40)
    with Sandbox(isolation=tier, python=python, limits=limits) as sandbox:
        for name, code in cases.items():
            with sandbox.session() as session:
                outcome = session.run(code)
                found[name] = session.get("seen") if outcome.ok else str(outcome.error)
    return found
"""
CASES = {**FILES, **PROCESSES, **PROC}


@pytest.fixture(scope="module", params=["suite", "ordinary"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the result of each case."""
    cases = {name: code for name, (code, _) in CASES.items()}
    source = LOOK.replace("PATIENCE", str(PATIENCE))
    if request.param == "suite":
        scope: dict[str, Any] = {}
        exec(source, scope)
        result: dict[str, Any] = scope["look"](
            "confined", cases, request.getfixturevalue("open_python")
        )
        return result
    user: Callable[[str], Any] = request.getfixturevalue("user")
    return user(  # type: ignore[no-any-return]
        f"{source}\nprint(json.dumps(look('confined', json.loads({json.dumps(cases)!r}))))"
    )


@pytest.mark.parametrize("name", CASES)
def test_a_program_works(found: dict[str, Any], name: str) -> None:
    assert found[name] == CASES[name][1]


ELSEWHERE = {
    "a file in /mnt/data": "open('/mnt/data/a.txt', 'w')",
    "a file to read": "open('/mnt/data/a.csv').read()",
    "a database": "import sqlite3\nsqlite3.connect('/mnt/data/a.db')",
    "a directory": "import os\nos.makedirs('/mnt/data/a')",
    "a file of the system": "open('/usr/new', 'w')",
    "behind another error": (
        "try: open('/mnt/data/a.txt', 'w')\nexcept OSError as e: raise ValueError from e"
    ),
    "a message of pandas": (
        "raise OSError(\"Cannot save file into a non-existent directory: '/mnt/data'\")"
    ),
    "a message with a number": "raise OSError(2, \"Failed to open local file '/mnt/data/a'\")",
}
WITHOUT_TMP = {
    "a file in /tmp": "open('/tmp/out.csv', 'w')",
    "a database in /tmp": "import sqlite3\nsqlite3.connect('/tmp/a.db')",
    "a file in /workspace": "open('/workspace/out.csv', 'w')",
}


@pytest.fixture(scope="module", params=["jailed", "confined"])
def tiers(request: pytest.FixtureRequest) -> Any:
    python = None if request.param == "jailed" else request.getfixturevalue("open_python")
    with Sandbox(
        isolation=request.param, python=python, limits=Limits(timeout=PATIENCE)
    ) as sandbox:
        yield sandbox


def last_line(sandbox: Sandbox, code: str) -> tuple[str, str]:
    """Return the last line of the error's traceback, and the working directory."""
    with sandbox.session() as session:
        assert session.run("import os\nseen = os.getcwd()").ok
        here = session.get("seen")
        error = session.run(code).error
        assert error is not None
        return error.traceback.splitlines()[-1], str(here)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_an_error_about_a_file_elsewhere_names_the_working_directory(
    tiers: Sandbox, name: str
) -> None:
    line, here = last_line(tiers, ELSEWHERE[name])
    assert f"In a session only {here} (the working directory)" in line
    assert line.rstrip(")").endswith("can be written.")


@pytest.mark.parametrize("name", WITHOUT_TMP)
def test_in_confined_tmp_and_workspace_are_elsewhere(tiers: Sandbox, name: str) -> None:
    with tiers.session() as session:
        outcome = session.run(WITHOUT_TMP[name])
        if session.isolation.tier == "jailed":
            assert outcome.ok
            return
    line, here = last_line(tiers, WITHOUT_TMP[name])
    assert f"In a session only {here} (the working directory)" in line


@pytest.mark.parametrize(
    "code",
    [
        "open('missing.txt')",
        "import os\nopen(os.getcwd() + '/a/b', 'w')",
        "import os\nopen(os.environ['TMPDIR'] + '/a/b', 'w')",
        "raise OSError(2, 'no file')",
        "raise ValueError('/mnt/data')",
        "open('/usr/missing')",
    ],
)
def test_other_errors_have_no_such_hint(tiers: Sandbox, code: str) -> None:
    line, _ = last_line(tiers, code)
    assert "can be written" not in line


def test_pytest_looks_for_no_configuration_above_the_session(tiers: Sandbox) -> None:
    """As pytest does: the first directory upwards with one of its files decides."""
    code = (
        "import os, pathlib\nfound = []\n"
        "for folder in [here := pathlib.Path.cwd(), *here.parents]:\n"
        "    names = [n for n in ('pytest.ini', 'pyproject.toml', 'tox.ini', 'setup.cfg')"
        " if (folder / n).is_file()]\n"
        "    found += [(folder / names[0]).read_text()] if names else []\n"
        "    if names: break\n"
        "seen = ''.join(found)"
    )
    with tiers.session() as session:
        assert session.run(code).ok
        assert session.get("seen") == ""


AGAIN = """
import os, multiprocessing as mp
with mp.Pool(2) as pool: done = pool.map(abs, [-1, -2])
with mp.Manager() as m: done.append(m.list([3])[0])
seen = [done, *(len(open('/proc/self/' + n).read()) > 0 for n in ('maps', 'status', 'cgroup'))]
"""


def test_all_of_it_works_after_a_takeover_and_in_a_branch(tiers: Sandbox) -> None:
    with tiers.session() as session:
        assert session.run(AGAIN).ok
        assert session.run("os._exit(1)").state == "rolled_back"
        with session.branch() as branch:
            for each in (session, branch):
                assert each.run(AGAIN).error is None
                assert each.get("seen") == [[1, 2, 3], True, True, True]
