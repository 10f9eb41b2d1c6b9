"""Checkpoints of other processes and versions, their limits, and hostile payloads."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from repl_sandbox import (
    CheckpointError,
    CheckpointInfo,
    Limits,
    Manifest,
    Policy,
    Sandbox,
    SessionClosed,
    read_manifest,
)
from repl_sandbox.protocol.checkpoints import pack_checkpoint
from tests.sandbox.shown_value import value
from tests.sandbox.worker.checkpoint.conftest import LIMITS, VERSION, saved

# ── another process, another build, another version ───────────────────────────────────────────

PROGRAM = """
import sys
from repl_sandbox import Sandbox
with Sandbox(isolation="jailed") as sandbox, sandbox.session() as session:
    session.run("class A:\\n    def get(self): return base\\nbase = 5\\na = A()")
    sys.stdout.buffer.write(session.checkpoint())
"""


def test_a_checkpoint_of_another_process_is_restored(sandbox):
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    with sandbox.restore(done.stdout) as session:
        assert value(session, "a.get()") == "5"


def test_a_checkpoint_of_another_build_of_this_version_is_restored(sandbox, other_python):
    with Sandbox(isolation="jailed", python=other_python, limits=LIMITS) as other:
        data = saved(other, "def f(n): return n + base\nbase = 1\nvalues = [f]")
    manifest = read_manifest(data)
    if manifest.python.split(".")[:2] != VERSION.split(".")[:2] or manifest.python == VERSION:
        pytest.skip(f"the other Python of this system is {manifest.python}, this one {VERSION}")
    with sandbox.restore(data) as session:
        assert value(session, "f(1), values[0] is f") == "(2, True)"


def manifest(**fields: Any) -> Manifest:
    """Return a manifest of one variable `x`."""
    given: dict[str, Any] = {
        "python": VERSION,
        "implementation": sys.implementation.name,
        "packages": {},
        "variables": (),
        "missing": (),
        "state": (),
        "cell": 1,
    }
    return Manifest(**{**given, **fields})


def test_another_minor_version_is_refused_and_both_are_named(sandbox):
    major, minor = sys.version_info[:2]
    other = f"{major}.{minor + 1}.0"
    with pytest.raises(CheckpointError) as caught:
        sandbox.restore(pack_checkpoint(manifest(python=other), b""))
    assert other in str(caught.value) and VERSION in str(caught.value)
    with pytest.raises(CheckpointError, match="pypy"):
        sandbox.restore(pack_checkpoint(manifest(implementation="pypy"), b""))


def test_a_sandbox_with_a_policy_restores_none():
    with Sandbox(isolation="jailed", policy=Policy("lint", calls_denied=["eval"])) as sandbox:
        with pytest.raises(CheckpointError, match=r"policy: .*lint"):
            sandbox.restore(pack_checkpoint(manifest(), b""))


def test_without_cloudpickle_the_error_says_what_to_install(open_python):
    python = Path("/usr/bin/python3")
    check = [str(python), "-I", "-c", "import cloudpickle"]
    if (
        not python.exists()
        or subprocess.run(check, capture_output=True, check=False).returncode == 0
    ):
        pytest.skip("no Python here that lacks cloudpickle")
    with Sandbox(isolation="jailed", python=str(python), limits=LIMITS) as sandbox:
        with sandbox.session() as session:
            session.run("x = 1")
            with pytest.raises(CheckpointError, match="pip install 'cloudpickle"):
                session.checkpoint()
            assert value(session, "x") == "1"


# ── bounds, and payloads that attack ──────────────────────────────────────────────────────────


class Call:
    """An object whose unpickling calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


def forged(*values: Any, **fields: Any) -> bytes:
    """Return a checkpoint whose variables x0, x1, ... are these pickles, or pickled values."""
    rows, pieces = [], []
    for number, each in enumerate(values):
        piece = each if type(each) is bytes else pickle.dumps([f"x{number}", each], 3)
        rows.append(CheckpointInfo(f"x{number}", "object", len(piece)))
        pieces.append(piece)
    return pack_checkpoint(manifest(variables=tuple(rows), **fields), b"".join(pieces))


def test_too_many_names_for_a_checkpoint_are_an_error_without_side_effects(
    sandbox: Sandbox,
) -> None:
    with sandbox.session() as session:
        session.run("x = 1")
        session.run("for i in range(80_000): globals()[str(i).zfill(150).join('v_')] = i")
        with pytest.raises(CheckpointError, match=r"names of its variables take .* 4,194,304"):
            session.checkpoint()
        assert session.run("x").value == "1"


def test_a_namespace_over_the_limit_is_refused_and_kept(sandbox):
    with sandbox.session() as session:
        session.run("small = 1\nlarge = bytes(3_000_000)")
        with pytest.raises(CheckpointError, match=r"1,000,000 bytes.*'large'"):
            session.checkpoint(limit=1_000_000)
        assert value(session, "small, len(large)") == "(1, 3000000)"
        assert len(session.checkpoint(limit="4MB")) > 3_000_000


def test_the_size_of_the_sessions_own_files_does_not_bound_it(sandbox):
    with sandbox.session(limits=Limits(timeout=60, file_size="1MiB")) as session:
        session.run("large = bytes(3_000_000)")
        assert len(session.checkpoint()) > 3_000_000


def test_arguments_are_checked_by_name(sandbox):
    with sandbox.session() as session:
        with pytest.raises(ValueError, match="limit"):
            session.checkpoint(limit=0)
        with pytest.raises(TypeError, match="timeout"):
            session.checkpoint(timeout="1")
    with pytest.raises(SessionClosed):
        session.checkpoint()
    with pytest.raises(TypeError, match="data"):
        sandbox.restore("text")
    with pytest.raises(TypeError, match="data"):
        read_manifest(None)


def test_saving_has_a_time_limit_without_side_effects(sandbox):
    with sandbox.session() as session:
        session.run("x = 1\nclass Slow:\n    def __reduce__(self):\n        while True: pass")
        session.run("slow = Slow()")
        with pytest.raises(CheckpointError, match=r"time.*kept"):
            session.checkpoint(timeout=0.3)
        assert value(session, "x") == "1"


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (Call(os._exit, 0), "exit"),
        (Call(exec, "while True: pass"), "time"),
        (Call(exec, "import os\nos.kill(os.getpid(), 9)"), "signal"),
        (Call(exec, "import os\nos.closerange(0, 1 << 16)"), "exit|protocol|signal"),
    ],
)
def test_a_payload_that_exits_or_blocks_is_an_error(sandbox, payload, words):
    # A payload that ends by itself has the sandbox's time limit.
    seconds = 1 if words == "time" else None
    with pytest.raises(CheckpointError, match=words):
        sandbox.restore(forged(payload), timeout=seconds)
    assert sandbox.statistics().open == 0


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (Call(eval, "bytearray(1 << 40)"), "MemoryError"),
        (Call(exec, "l = []\nwhile True: l.append(bytearray(1 << 22))"), "MemoryError"),
        (Call(eval, "(lambda f: f(f))(lambda f: f(f))"), "RecursionError"),
        (Call(exec, "raise SystemExit(3)"), "SystemExit"),
        (Call(open, "/etc/shadow"), "FileNotFoundError|PermissionError"),
        (b"\x80\x03]q\x01.", "ValueError"),
        (b"", "one of 'x1'"),
        (b"\xff\xff\xff", "UnpicklingError"),
        (pickle.dumps(["another", 1], 3), "CheckpointError"),
        (b"\x80\x03(" + b"(" * 500_000, "one of 'x1'"),
    ],
)
def test_a_payload_that_fails_loses_its_own_variable_only(sandbox, payload, words):
    with sandbox.restore(forged(payload, 7)) as session:
        (lost,) = session.missing
        assert lost.name == "x0"
        assert any(word in lost.reason for word in words.split("|")), lost
        assert session.get("x1") == 7


def test_deep_nesting_is_saved_or_listed(sandbox):
    with sandbox.session() as session:
        session.run("deep = []\nfor _ in range(100_000): deep = [deep]\nx = 1")
        missing = read_manifest(session.checkpoint()).missing
        assert [row.name for row in missing] == ["deep"]
        assert value(session, "x") == "1"


def test_a_payload_is_subject_to_the_limits_of_its_session(sandbox):
    code = "import resource\nx = resource.getrlimit(resource.RLIMIT_NOFILE)[1]"
    payload = Call(exec, f"import sys\nexec({code!r}, vars(sys.modules['__main__']))")
    with sandbox.restore(forged(payload), limits=Limits(open_files=99)) as session:
        assert session.get("x") == 99


LIES = [
    "[" * 100_000,
    "{}",
    "null",
    '{"packages":{},"variables":[["x","t",1e9]],"missing":[],"state":[]}',
    '{"packages":{},"variables":[["x","t",-1]],"missing":[],"state":[]}',
    '{"packages":{},"variables":[["x","t",99999999999]],"missing":[],"state":[]}',
    '{"packages":{},"variables":[],"missing":[["x","t",7]],"state":[]}',
    '{"packages":[],"variables":[],"missing":[],"state":[]}',
    "x" * 10_000_000,
]


@pytest.mark.parametrize("lie", LIES, ids=range(len(LIES)))
def test_a_checkpoint_with_forged_contents_is_refused(sandbox, lie):
    with sandbox.session() as session:
        told = repr(lie) if len(lie) < 1000 else f"{lie[:100]!r} + {lie[:1]!r} * {len(lie)}"
        session.run(f"class json: dumps = staticmethod(lambda *_: {told})")
        session.run("import repl_sandbox.worker.checkpoint as saving\nsaving.json = json")
        with pytest.raises(CheckpointError):
            session.checkpoint()


@pytest.mark.parametrize("fails", [False, True])
def test_descriptors_of_a_session_cannot_grow_a_checkpoint_and_are_freed(sandbox, fails):
    """The session may keep the file open; the host frees its pages."""
    code = """
import os, mmap
class Holder:
    def __reduce__(self):
        global held, mapped
        for name in os.listdir("/proc/self/fd"):
            try:
                if "checkpoint" in os.readlink(f"/proc/self/fd/{name}"):
                    held = os.dup(int(name))
            except OSError:
                pass
        mapped = mmap.mmap(held, 1 << 20)
        mapped[:] = b"x" * (1 << 20)
        return int, ()
holder = Holder()
"""
    with sandbox.session() as session:
        assert session.run(code).ok
        if fails:
            assert session.run("large = bytes(3 << 20)").ok
            with pytest.raises(CheckpointError, match="limit"):
                session.checkpoint(limit="2MiB")
        else:
            session.checkpoint()
        assert value(session, "os.fstat(held).st_size, os.fstat(held).st_blocks") == "(0, 0)"
        grown = session.run("os.ftruncate(held, 1 << 20)").error
        assert grown is not None and grown.type == "PermissionError"
        grown = session.run("os.pwrite(held, b'x' * 10, 0)").error
        assert grown is not None and grown.type == "PermissionError"


def test_the_template_loads_no_module_of_checkpoints(sandbox):
    with sandbox.session() as session:
        found = value(session, "import sys\n[n for n in sys.modules if 'pickle' in n]")
        assert found == "[]"
