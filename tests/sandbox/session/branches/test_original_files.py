"""A branch changes no file of the session that it was made of, by whatever it has kept of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from repl_sandbox import Raised, Sandbox, Session
from repl_sandbox.jail.landlock import kernel_abi
from tests.sandbox.session.branches.branching import LIMITS


@pytest.fixture
def original(session: Session) -> Session:
    if not kernel_abi():
        pytest.skip("this kernel has no Landlock")
    return session


def ok(session: Session, code: str) -> Any:
    outcome = session.run(code)
    assert outcome.ok, outcome
    return outcome.value


STATE = """
def state():
    import hashlib, os
    found = {}
    for top in (home, os.environ['TMPDIR']):
        for place, _, names in os.walk(top):
            for name in names:
                path = f'{place}/{name}'
                if '/branch-' not in path:
                    found[path] = hashlib.sha256(open(path, 'rb').read()).hexdigest()
    return sorted(found.items())
"""

CHANGES = {
    "written": "open(f'{home}/a', 'w').write('x')",
    "appended": "open(f'{home}/a', 'a').write('x')",
    "truncated": "os.truncate(f'{home}/a', 0)",
    "removed": "os.remove(f'{home}/a')",
    "renamed": "os.rename(f'{home}/a', f'{home}/b')",
    "replaced": "os.replace('own', f'{home}/a')",
    "made": "open(f'{home}/new', 'w')",
    "directory made": "os.mkdir(f'{home}/new')",
    "directory removed": "os.rmdir(f'{home}/empty')",
    "link made": "os.symlink('a', f'{home}/new')",
    "hard link made": "os.link(f'{home}/a', 'stolen'); open('stolen', 'w').write('x')",
    "tree removed": "import shutil; shutil.rmtree(f'{home}/full')",
    "path kept": "path.write_text('x')",
    "by a child": "import subprocess, sys; subprocess.run([sys.executable, '-c', "
    "'import sys; open(sys.argv[1], \"w\").write(\"x\")', f'{home}/a'], check=True, "
    "stderr=subprocess.DEVNULL)",
    "database": "sqlite3.connect(f'{home}/w.db').execute('insert into t values(9)')",
    "temporary file": "open(temporary, 'w').write('x')",
    "temporary file removed": "os.remove(temporary)",
    "closed temporary directory": "import shutil; shutil.rmtree(folder)",
}
PREPARE = """
import os, pathlib, sqlite3, tempfile
home = os.getcwd()
open('a', 'w').write('content')
path = pathlib.Path('a').absolute()
os.makedirs('full/inner'); open('full/inner/f', 'w').write('1'); os.mkdir('empty')
made = sqlite3.connect('w.db'); made.execute('create table t(n)'); made.commit(); made.close()
temporary = tempfile.mkstemp()[1]
folder = tempfile.mkdtemp(); open(f'{folder}/f', 'w').write('1')
"""


@pytest.mark.parametrize("change", CHANGES)
def test_a_path_of_the_original_cannot_be_changed(original: Session, change: str) -> None:
    ok(original, PREPARE + STATE)
    before = ok(original, "state()")
    with original.branch() as branch:
        ok(branch, "open('own', 'w').write('own')")
        outcome = branch.run(CHANGES[change])
        assert isinstance(outcome, Raised)
        if change in ("written", "made", "database"):
            assert f"{ok(branch, 'os.getcwd()')[1:-1]} (the working" in outcome.error.traceback
        assert ok(branch, "open('a').read(), os.path.exists('full/inner/f')") == "('content', True)"
        with branch.branch() as inner:
            assert not inner.run(CHANGES[change]).ok
            assert not inner.run("open(f'{own}/own', 'w')").ok
    assert ok(original, "state()") == before


WAL = """
import sqlite3
c = sqlite3.connect('w.db')
c.execute('pragma journal_mode=wal')
c.execute('create table t(n)')
c.executemany('insert into t values(?)', [(n,) for n in range(5)])
c.commit()
"""


@pytest.mark.parametrize("deep", [1, 3])
def test_a_database_in_wal_mode_survives_its_branches(original: Session, deep: int) -> None:
    ok(original, WAL)
    branches = [original.branch()]
    for _ in range(deep - 1):
        branches.append(branches[-1].branch())
    for branch in reversed(branches):
        assert any("sqlite database" in name and "w.db" in name for name in branch.lost)
        branch.run("c.execute('insert into t values(100)'); c.commit()")
        branch.run("c.execute('pragma wal_checkpoint(truncate)')")
        branch.run("c.close()")
        ok(branch, "d = sqlite3.connect('w.db')")
        assert ok(branch, "d.execute('select min(n) from t').fetchall()") == "[(0,)]"
        ok(branch, "d.execute('insert into t values(7)'); d.commit(); d.close()")
        branch.close()
    count = "execute('select count(*) from t').fetchone()[0]"
    assert ok(original, f"c.{count}, sqlite3.connect('w.db').{count}") == "(5, 5)"
    assert ok(original, f"c.execute('insert into t values(5)'); c.commit()\nc.{count}") == "6"
    assert ok(original, "c.execute('pragma integrity_check').fetchone()") == "('ok',)"


@pytest.mark.parametrize("ends", ["rollback", "commit", "close"])
def test_an_open_transaction_survives_its_branch(original: Session, ends: str) -> None:
    ok(original, WAL.replace("wal", "delete"))
    ok(original, "c.execute('update t set n = n + 10')")
    with original.branch() as branch:
        branch.run(f"c.{ends}()")
    ok(original, "c.commit()")
    assert ok(original, "c.execute('select min(n), count(*) from t').fetchone()") == "(10, 5)"
    assert ok(original, "c.execute('pragma integrity_check').fetchone()") == "('ok',)"


def test_temporary_directories_and_files_of_a_branch_are_its_own(original: Session) -> None:
    ok(
        original,
        "import os, tempfile\nd = tempfile.TemporaryDirectory()\n"
        "here = tempfile.TemporaryDirectory(dir='.')\n"
        "f = tempfile.NamedTemporaryFile('w+'); f.write('text'); f.flush()\n"
        "u = tempfile.TemporaryFile('w+'); u.write('text'); u.flush()\n"
        "names = [d.name, here.name, f.name]\nopen(f'{d.name}/x', 'w').write('1')",
    )
    with original.branch() as branch:
        assert ok(branch, "u.seek(0)\nu.read(), u.write('more'), u.flush()") == "('text', 4, None)"
        assert ok(branch, "open(f'{d.name}/x').read(), f.write('more')") == "('1', 4)"
        ok(branch, "import gc\nd.cleanup(); f.close(); u.close(); del here; gc.collect()")
        assert ok(branch, "tempfile.gettempdir() == os.environ['TMPDIR']") == "True"
        ok(branch, "tempfile.NamedTemporaryFile().close()")
    assert ok(original, "[os.path.exists(name) for name in names]") == "[True, True, True]"
    assert ok(original, "u.seek(0); f.seek(0)\nu.read(), f.read()") == "('text', 'text')"
    ok(original, "d.cleanup(); here.cleanup(); f.close()")


def test_log_handlers_of_a_branch_write_to_its_own_file(original: Session) -> None:
    ok(
        original,
        "import logging, logging.handlers, os\nlog = logging.getLogger('x')\n"
        "log.addHandler(logging.FileHandler(os.path.abspath('plain.log')))\n"
        "log.addHandler(logging.handlers.RotatingFileHandler(\n"
        "    os.path.abspath('turn.log'), maxBytes=40, backupCount=3))\nlog.warning('original')",
    )
    with original.branch() as branch:
        assert branch.run("for _ in range(5): log.warning('branch ' * 4)").stderr == ""
        assert ok(branch, "'branch' in open('plain.log').read(), os.path.exists('turn.log.1')") == (
            "(True, True)"
        )
    ok(original, "log.warning('again')")
    assert ok(original, "open('plain.log').read()") == r"'original\nagain\n'"
    assert "branch" not in ok(original, "open('turn.log').read()")


def test_a_mapped_file_of_a_branch_is_its_copy(original: Session) -> None:
    ok(
        original,
        "import mmap\nfile = open('mapped', 'w+b')\nfile.write(b'0' * 10)\nfile.flush()\n"
        "mapped = mmap.mmap(file.fileno(), 0)\nread = open('mapped', 'rb')\n"
        "shown = mmap.mmap(read.fileno(), 0, access=mmap.ACCESS_READ)",
    )
    with original.branch() as branch, branch.branch() as inner:
        if any("cannot see its own mappings" in name for name in inner.lost):
            pytest.skip("a branch in this tier cannot see its mappings")
        for each, mark in ((branch, "1"), (inner, "2")):
            assert not any("shared memory" in name for name in each.lost)
            ok(each, f"mapped[0:1] = b'{mark}'")
        ok(original, "mapped[9:10] = b'9'")
        for each, mark in ((branch, "1"), (inner, "2")):
            assert ok(each, "mapped[:], shown[:]") == f"(b'{mark}000000000', b'{mark}000000000')"
            assert ok(each, "open('mapped', 'rb').read()") == f"b'{mark}000000000'"
    assert ok(original, "mapped[:], open('mapped', 'rb').read()") == (
        "(b'0000000009', b'0000000009')"
    )


def test_a_restarted_branch_is_kept_off_too(original: Session) -> None:
    ok(original, PREPARE)
    home = ok(original, "home")
    with original.branch() as branch:
        assert branch.run("os._exit(1)").state in ("restarted", "rolled_back")
        branch.run("import os; os._exit(1)")
        assert not branch.run(f"open({home} + '/a', 'w')").ok
        assert not branch.run(f"import os; os.remove({home} + '/a')").ok
        ok(branch, "open('mine', 'w').write('1')")
    assert ok(original, "open('a').read()") == "'content'"


@pytest.mark.parametrize("tier", ["jailed", "confined"])
def test_branches_of_branches_beyond_the_rulesets_of_the_kernel(
    tier: str, open_python: str
) -> None:
    """Sixteen is the most that the kernel stacks."""
    python = None if tier == "jailed" else open_python
    with (
        Sandbox(isolation=tier, python=python, limits=LIMITS, branches=20) as sandbox,
        sandbox.session() as session,
    ):
        ok(session, PREPARE)
        branches = [session]
        for n in range(17):
            ok(branches[-1], f"here = os.getcwd(); open('level', 'w').write('{n}')")
            branch = branches[-1].branch()
            branches.append(branch)
            assert any("write protection" in name for name in branch.lost) == (n >= 12)
            assert ok(branch, "open('level').read()") == f"'{n}'"
            assert not branch.run("open(f'{home}/a', 'w')").ok
            assert branch.run("open(f'{here}/other', 'w').close()").ok == (n >= 12)
        for branch in branches[5:2:-1]:  # their own branches are below their directories
            branch.close()
        assert ok(branches[-1], "open('level', 'a').write('x')\nopen('level').read()") == "'16x'"
        for branch in branches[:5:-1]:
            branch.close()
        ok(session, "open('/tmp/x', 'w').close()" if tier == "jailed" else "")
        assert ok(session, "open('a').read(), open('level').read()") == "('content', '0')"


def test_common_directories_are_written_while_they_are_empty(original: Session) -> None:
    if original.isolation.tier != "jailed":
        pytest.skip("this tier has none")
    ok(original, "import os")
    with original.branch() as branch:
        ok(branch, "open('/tmp/x', 'w').write('1'); os.remove('/tmp/x')")
        ok(branch, "import multiprocessing; multiprocessing.Lock()")
    ok(original, "open('/tmp/x', 'w').write('1')")
    with original.branch() as branch:
        outcome = branch.run("open('/tmp/y', 'w')")
        assert not outcome.ok
        assert ok(branch, "import tempfile\nopen(tempfile.gettempdir() + '/x').read()") == "'1'"
        ok(branch, "import multiprocessing; multiprocessing.Lock()")
    assert ok(original, "os.listdir('/tmp')") == "['x']"


NAMED = """
import os, multiprocessing, mmap, sys, subprocess
from multiprocessing import shared_memory
from _multiprocessing import SemLock
kept = SemLock(1, 1, 1, "/kept", False)
memory = shared_memory.SharedMemory("named", create=True, size=100)
memory.buf[0] = 1
"""
FULL = '''
value = multiprocessing.Value("i", 1)
with multiprocessing.Pool(1) as pool:
    assert pool.map(abs, [-1]) == [1]
with multiprocessing.Lock(), multiprocessing.get_context("spawn").Lock():
    pass
again = SemLock(1, 1, 1, "/again", False)
fresh = shared_memory.SharedMemory("fresh", create=True, size=10)
program = """
from multiprocessing import resource_tracker, shared_memory
seen = shared_memory.SharedMemory("fresh")
seen.buf[1] = 7
resource_tracker.unregister(seen._name, "shared_memory")  # which would remove it at the end
"""
subprocess.run([sys.executable, "-c", program], check=True, stderr=subprocess.DEVNULL)
seen = fresh.buf[1]
'''


def test_a_branch_has_locks_and_segments_beside_those_of_its_original(original: Session) -> None:
    """With names, also those that the original has; what the branch does to them is its own."""
    ok(original, NAMED)
    with original.branch() as branch:
        ok(branch, FULL)
        assert ok(branch, "seen") == "7"
        ok(
            branch,
            "other = shared_memory.SharedMemory('named'); other.buf[1] = 2; memory.buf[0] = 3",
        )
        assert ok(branch, "other.buf[0], memory.buf[1]") == "(3, 2)"
        assert ok(branch, "SemLock._rebuild(0, 1, 1, '/kept').acquire(), kept.acquire(False)") == (
            "(True, False)"
        )
        with branch.branch() as inner:
            ok(
                inner,
                "fresh.close(); fresh.unlink(); import _multiprocessing as _unlink",
            )
            ok(inner, "_unlink.sem_unlink('/again'); _unlink.sem_unlink('/kept')")
            ok(inner, FULL)
        ok(branch, "other.buf[1]; shared_memory.SharedMemory('fresh')")
        branch.run("os._exit(1)")
        branch.run("import os; os._exit(1)")
        ok(branch, "import multiprocessing; multiprocessing.Lock(); multiprocessing.Value('i', 1)")
        branch.run("memory.unlink()")
    assert ok(original, "memory.buf[0], memory.buf[1], kept.acquire(False)") == "(1, 0, True)"
    assert ok(original, "same = shared_memory.SharedMemory('named')\nsame.buf[0]") == "1"
    assert not original.run("shared_memory.SharedMemory('fresh')").ok
    ok(original, "memory.unlink()")


def test_a_branch_changes_no_shared_memory_by_its_path(original: Session) -> None:
    ok(original, NAMED)
    ok(
        original,
        "folder = '/dev/shm' if os.path.isdir('/workspace') else os.environ['TMPDIR'] + '/.shm'",
    )
    assert ok(original, "sorted(os.listdir(folder))") == "['named', 'sem.kept']"
    with original.branch() as branch:
        for name in ("named", "sem.kept"):
            for attempt in (
                f"open(f'{{folder}}/{name}', 'r+b')",
                f"os.remove(f'{{folder}}/{name}')",
            ):
                outcome = branch.run(attempt)
                assert isinstance(outcome, Raised) and outcome.error.type == "PermissionError"
    assert ok(original, "sorted(os.listdir(folder))") == "['named', 'sem.kept']"


def test_shared_memory_of_a_branch_is_a_copy(original: Session) -> None:
    """Anonymous, by name, of a file without a name, and locks in it."""
    ok(
        original,
        "import mmap, multiprocessing\nfrom multiprocessing import shared_memory\n"
        "mapped = mmap.mmap(-1, 8192); value = multiprocessing.Value('i', 1)\n"
        "lock = multiprocessing.Lock()\n"
        "memory = shared_memory.SharedMemory(create=True, size=100)\nmemory.buf[0] = 1",
    )
    ok(original, "import os, tempfile\nunnamed = tempfile.TemporaryFile()\nunnamed.truncate(10)")
    ok(original, "of_file = mmap.mmap(unnamed.fileno(), 10)\nmapped[8191] = of_file[9] = 1")
    with original.branch() as branch:
        assert not any("shared memory" in name for name in branch.lost)
        assert ok(branch, "mapped[8191], of_file[9]") == "(1, 1)"
        ok(branch, "mapped[8191] = of_file[9] = 2")
        ok(branch, "unnamed.seek(0); unnamed.write(b'2'); unnamed.flush()")
        ok(branch, "value.value = 2; lock.acquire(); memory.buf[0] = 2")
        branch.run("memory.close(); memory.unlink()")
        code = "import os\npid = os.fork()\nif pid == 0: value.value = 3; os._exit(0)\n"
        assert ok(branch, code + "os.waitpid(pid, 0)\nvalue.value") == "3"
    assert ok(original, "mapped[8191], of_file[9], of_file[0]") == "(1, 1, 0)"
    assert ok(original, "value.value, lock.acquire(timeout=1), memory.buf[0]") == "(1, True, 1)"
    ok(original, "memory.close(); memory.unlink()")


def test_a_link_in_the_place_of_a_branch_leads_the_host_nowhere(
    open_python: str, tmp_path: Path
) -> None:
    """The directories above a branch's files are the code's, which can replace them."""
    for name in ("workspace", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "workspace/secret").write_text("secret")
    (tmp_path / "tmp/secret").write_text("secret")
    (tmp_path / "empty/workspace").mkdir(parents=True)
    (tmp_path / "empty/tmp").mkdir()
    with (
        Sandbox(isolation="confined", python=open_python, limits=LIMITS) as sandbox,
        sandbox.session() as session,
    ):
        for target in (tmp_path, tmp_path / "empty", tmp_path / "none"):
            branch = session.branch()
            home = json.loads(ok(branch, "import json, os\njson.dumps(os.getcwd())")[1:-1])
            above = str(Path(home).parent)
            ok(session, f"import os\nos.rename({above!r}, 'moved')")
            ok(session, f"os.symlink({str(target)!r}, {above!r})")
            with pytest.raises(OSError):
                branch.files.get("secret")
            with pytest.raises(OSError):
                branch.files.put("put", b"content")
            branch.run("import os; os._exit(1)")
            branch.run("import os; os._exit(1)")
            branch.close()
            ok(session, f"os.remove({above!r}); import shutil; shutil.rmtree('moved')")
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert found == [
        *("empty", "empty/tmp", "empty/workspace", "tmp", "tmp/secret"),
        *("workspace", "workspace/secret"),
    ]
