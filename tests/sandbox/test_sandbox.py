"""Templates: preloaded modules, mounts, limits, interpreters, and bad arguments."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import repl_sandbox
from repl_sandbox import Finished, Killed, Limits, Sandbox, SandboxError
from tests.internals import set_watchdog_period
from tests.waiting import LONG


def test_preloaded_modules_are_there_at_once() -> None:
    with Sandbox(preload=["decimal"]) as sandbox, sandbox.session() as session:
        outcome = session.run("import sys\nsys.modules['decimal'].Decimal('1.5') * 2")
    assert outcome.value == "Decimal('3.0')"


@pytest.mark.parametrize("isolation", ["auto", "process"])
def test_modules_that_write_files_as_they_are_imported_can_be_preloaded(isolation: str) -> None:
    """Like matplotlib, which must not be imported where the folder is read-only."""
    mounted = "len(open('/proc/self/mountinfo').readlines())"
    listed = "import os; os.listdir('/tmp')"  # where a checkout may be
    with (
        Sandbox(isolation=isolation) as plain,
        plain.session() as other,
        Sandbox(isolation=isolation, preload=["matplotlib.pyplot"]) as sandbox,
        sandbox.session() as session,
    ):
        outcome = session.run(
            "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nNone", timeout=300
        )
        assert outcome.figures and outcome.stderr == ""
        if session.isolation.tier == "jailed":
            # Files written by the import are in no session, and the mount for them is gone.
            assert session.run(listed).value == other.run(listed).value
            assert session.run(mounted).value == other.run(mounted).value


@pytest.mark.parametrize("module", ["numpy", "numpy.linalg"])
def test_numpy_comes_with_its_random_numbers(
    module: str,
) -> None:
    # Objects that a template has loaded are frozen, so the collector does not look at them.
    own = "any(each is sys.modules['numpy.random'].__dict__ for each in gc.get_objects())"
    with Sandbox(preload=[module]) as sandbox, sandbox.session() as session:
        assert session.run(f"import gc, sys\n{own}").value == "False"


def test_numpy_and_figures_work_in_a_session() -> None:
    with (
        Sandbox(preload=["numpy"], limits=Limits(timeout=300)) as sandbox,
        sandbox.session() as session,
    ):
        outcome = session.run("import numpy\na = numpy.arange(6).reshape(2, 3)\nint(a.sum())")
        assert outcome.value == "15"
        previews = {change.name: change.preview for change in outcome.changes}
        assert "(2, 3)" in previews["a"]

        outcome = session.run("import matplotlib.pyplot as plt\nplt.plot(a)\nNone")
        assert isinstance(outcome, Finished), outcome.error
        (figure,) = outcome.figures
        assert figure.startswith(b"\x89PNG")
        assert session.run("plt.get_fignums()").value == "[]"


@pytest.mark.parametrize("tier", ["jailed", "confined", "process"])
def test_the_umask_of_the_host_closes_no_folder_to_its_sessions(
    tier: str, open_python: str
) -> None:
    mask = os.umask(0o077)
    try:
        with (
            Sandbox(isolation=tier, python=open_python, preload=["json"]) as sandbox,
            sandbox.session() as session,
        ):
            outcome = session.run("import tempfile\ntempfile.TemporaryFile().write(b'x')")
            assert (outcome.value, session.isolation.tier) == ("1", tier)
    finally:
        os.umask(mask)


def test_a_module_that_cannot_be_preloaded_is_named() -> None:
    with pytest.raises(SandboxError, match="preload: no_such_module: ModuleNotFoundError"):
        Sandbox(preload=["no_such_module"])


def test_mounts_are_shown_read_only(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("from the host")
    tmp_path.chmod(0o755)  # sessions are other users: what is mounted must be readable by all
    with Sandbox(mounts={"/data": str(tmp_path)}) as sandbox, sandbox.session() as session:
        assert session.run("open('/data/data.txt').read()").value == "'from the host'"
        outcome = session.run("open('/data/new', 'w')")
        assert outcome.error is not None
        assert "Read-only file system" in outcome.error.message
    assert [path.name for path in tmp_path.iterdir()] == ["data.txt"]


def test_a_mount_may_lie_in_another_that_has_its_name(tmp_path: Path) -> None:
    """Wherever it stands in the mapping."""
    (tmp_path / "here").mkdir()
    tmp_path.chmod(0o755)
    mounts = {"/data/here": "/usr/share", "/data": str(tmp_path)}
    with Sandbox(mounts=mounts) as sandbox, sandbox.session() as session:
        assert session.run("import os; 'zoneinfo' in os.listdir('/data/here')").value == "True"


@pytest.mark.parametrize("preload", [[], ["json"]], ids=str)
@pytest.mark.parametrize("place", ["/tmp/deep/data", "/workspace/data", "/dev/shm/data"])
def test_mounts_may_lie_in_a_folder_that_is_private_to_each_session(
    tmp_path: Path, place: str, preload: list[str]
) -> None:
    """Like a virtual environment or a checkout under /tmp."""
    (tmp_path / "data.txt").write_text("from the host")
    tmp_path.chmod(0o755)
    with (
        Sandbox(mounts={place: str(tmp_path)}, preload=preload) as sandbox,
        sandbox.session() as session,
    ):
        assert session.run(f"open('{place}/data.txt').read()").value == "'from the host'"
        outcome = session.run(f"open('{place}/new', 'w')")
        assert outcome.error is not None
        assert "Read-only file system" in outcome.error.message
        assert session.run("open('/tmp/own', 'w').write('x')").value == "1"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that every user may list. Other users cannot list the directories of pytest."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_an_interpreter_that_is_known_by_a_link_can_be_jailed(open_folder: Path) -> None:
    """Like the interpreters of uv and pyenv, and a home directory that is a symbolic link."""
    link, environment = open_folder / "link", open_folder / "environment"
    link.symlink_to(sys.base_prefix)
    python = link / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
    with (
        Sandbox(isolation="jailed", python=str(environment / "bin/python")) as sandbox,
        sandbox.session() as session,
    ):
        outcome = session.run("import decimal, sys; sys.base_prefix")
        assert outcome.value == repr(str(link))
        assert session.run("import colorsys; colorsys.__file__").value.startswith(f"'{link}/")


def test_a_program_behind_several_links_runs_in_a_session() -> None:
    """As where an operator's own link leads to the interpreter of virtual environments."""
    outside = Path(__file__).parent  # of the folders that a session has for itself
    with tempfile.TemporaryDirectory(dir=outside) as folder:
        os.chmod(folder, 0o755)
        (operators := Path(folder, "operator")).mkdir()
        (Path(folder) / "current").symlink_to("operator")
        program = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        (operators / program).symlink_to(Path(sys.base_prefix, "bin", program))
        environment = Path(folder, "environment")
        python = Path(folder, "current", program)
        subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
        with (
            Sandbox(isolation="jailed", python=str(environment / "bin/python")) as sandbox,
            sandbox.session() as session,
        ):
            session.run("import subprocess, sys")
            outcome = session.run("subprocess.check_output([sys.executable, '-c', 'print(7)'])")
            assert outcome.value == r"b'7\n'"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"isolation": "vm"}, ValueError, "isolation"),
        ({"require": "vm"}, ValueError, "require"),
        ({"isolation": "process", "require": "jailed"}, ValueError, "require"),
        ({"limits": {"memory": 1}}, TypeError, "limits"),
        ({"preload": "numpy"}, TypeError, "preload"),
        ({"mounts": {"data": "/usr"}}, ValueError, "mounts"),
        ({"mounts": {"/data": "/no/such/place"}}, ValueError, "mounts"),
        *(
            ({"mounts": {place: "/usr/share"}}, ValueError, f"mounts: '{place}'")
            for place in ("/proc", "/proc/self", "/dev", "/dev/x", "/dev/shm", "/tmp", "/workspace")
        ),
        (
            {"mounts": {"/a": "/usr", "/a/none": "/usr"}},
            ValueError,
            "mounts: '/a/none' lies in '/a'",
        ),
        ({"mounts": {"/usr/none": "/usr"}}, ValueError, "'/usr/none' lies in '/usr'"),
        ({"mounts": ["/usr"]}, TypeError, "mounts"),
        ({"mounts": {"/data": 5}}, TypeError, "mounts"),
        ({"mounts": {"/da\0ta": "/usr"}}, ValueError, "mounts"),
        ({"preload": 5}, TypeError, "preload"),
        ({"python": "/no/such/python"}, SandboxError, "python"),
        ({"python": 3}, TypeError, "python"),
        ({"ready": -1}, ValueError, "ready"),
        ({"ready": "2"}, TypeError, "ready"),
        ({"max_sessions": 0}, ValueError, "max_sessions"),
        ({"max_sessions": "1"}, TypeError, "max_sessions"),
    ],
)
def test_bad_arguments_are_named(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Sandbox(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"memory": "lots"}, ValueError),
        ({"memory": 0}, ValueError),
        ({"workspace": 1.5}, TypeError),
        ({"timeout": -1}, ValueError),
        ({"timeout": float("nan")}, ValueError),
        ({"grace": True}, TypeError),
        ({"processes": 0}, ValueError),
        ({"open_files": "many"}, TypeError),
        ({"file_size": 1 << 70}, ValueError),
        ({"workspace": "9999999GiB"}, ValueError),
        ({"processes": 1 << 40}, ValueError),
        ({"memory": -1}, ValueError),
        ({"memory": (16 << 20) - 1}, ValueError),
        ({"memory": "1KiB"}, ValueError),
        ({"open_files": 15}, ValueError),
        ({"output": "0"}, ValueError),
        ({"cpu_seconds": -1}, ValueError),
    ],
)
def test_bad_limits_are_named(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(arguments))):
        Limits(**arguments)


@pytest.mark.parametrize(
    "least",
    [
        {"memory": "16MiB"},
        {"open_files": 16},
        {"workspace": 1},
        {"file_size": 1},
        {"processes": 1},
        {"output": 1},
        {"cpu_seconds": 0.001},
    ],
)
def test_the_least_of_each_limit_is_enough_for_a_session(
    least: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A session may exceed its CPU time before it is measured.
    set_watchdog_period(monkeypatch, 60)
    with Sandbox(limits=Limits(**least)) as sandbox, sandbox.session() as session:
        assert session.run("x = 1").ok


ORDINARY = """
import json, subprocess, threading
thread = threading.Thread(target=json.dumps, args=(list(range(10_000)),))
thread.start()
thread.join()
status = subprocess.run("true").returncode
block = bytearray(1 << 20)
"""


@pytest.mark.parametrize("cgroup", ["auto", "off"])
def test_ordinary_cells_work_in_the_least_memory(cgroup: str) -> None:
    """A module, a thread, a child, a death and what was there before it."""
    limits = Limits(memory="16MiB", timeout=LONG)
    with Sandbox(limits=limits, cgroup=cgroup) as sandbox, sandbox.session() as session:
        assert session.run(ORDINARY).ok
        assert isinstance(session.run("import os\nos._exit(1)"), Killed)
        assert session.run("status, len(block)").value == "(0, 1048576)"
        error = session.run("bytearray(64 << 20)").error
        assert error is not None and error.type == "MemoryError"
        assert session.run("6 * 7").value == "42"


def test_sizes_may_be_written_as_text() -> None:
    assert Limits(memory="1.5 GiB").memory == 3 << 29
    assert Limits(output="10kB").output == 10_000
    assert Limits(memory="1 TiB").memory == 1 << 40


def test_a_hash_seed_makes_hashes_the_same_in_every_template():
    code = "import sys, subprocess\nhash('text'), list({'a', 'b', 'c', 'd', 'e'})"
    with Sandbox(hash_seed=0) as one, Sandbox(hash_seed=0) as two, Sandbox(hash_seed=1) as other:
        values = []
        for sandbox in (one, one, two, other):
            with sandbox.session() as session:
                values.append(session.run(code).value)
    assert values[0] == values[1] == values[2] != values[3]


def test_without_a_hash_seed_hashes_are_random():
    with Sandbox() as one, Sandbox() as two:
        with one.session() as first, two.session() as second:
            assert first.run("hash('text')").value != second.run("hash('text')").value


def test_a_hash_seed_adds_no_other_environment_variables(monkeypatch, tmp_path):
    """The interpreter is started without -E, in a constructed environment."""
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.taken = 1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    with Sandbox(hash_seed=0) as sandbox, sandbox.session() as session:
        assert session.run("import builtins, sys\nhasattr(builtins, 'taken')").value == "False"
        assert session.run("sys.flags.optimize, sys.flags.safe_path").value == "(0, True)"
        found = session.run("import os\nsorted(n for n in os.environ if n[:2] == 'PY')").value
        assert found == "['PYTHONDONTWRITEBYTECODE', 'PYTHONHASHSEED']"


def test_pip_does_not_wait_for_a_network_in_a_session(session):
    code = "[sys.executable, '-m', 'pip', 'install', 'no-such-package-here'], capture_output=True"
    outcome = session.run(f"import subprocess, sys\nb'Retrying' in subprocess.run({code}).stderr")
    assert outcome.value == "False"


@pytest.mark.parametrize("seed", [-1, 1 << 32, True, "1", 1.0])
def test_a_hash_seed_is_checked_by_name(seed):
    with pytest.raises((TypeError, ValueError), match="hash_seed"):
        Sandbox(hash_seed=seed)


@pytest.mark.parametrize("program", ["/bin/true", "/bin/cat"])
def test_an_invalid_python_is_named(program: str) -> None:
    with pytest.raises(
        SandboxError, match=f"python: {program} ended .* before it was ready as a template"
    ):
        Sandbox(python=program)


def test_an_interpreter_that_dies_while_preloading_is_named_with_its_modules(
    tmp_path: Path,
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(SandboxError, match=r"exit status 3 .*\(preload: json, decimal\)"):
        Sandbox(python=str(python), preload=["json", "decimal"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("preload", ["m" * 100 + str(n) for n in range(800)]),
        ("mounts", {f"/data/{'x' * 100}{n}": "/etc/hostname" for n in range(800)}),
    ],
)
def test_a_setting_that_is_too_long_for_a_template_is_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"{name}: .* bytes; the limit .* 65,280"):
        Sandbox(**{name: value})


def test_the_dynamic_loader_of_programs_is_not_changed() -> None:
    """The template looks up all functions of libraries at once; what is loaded so is its own."""
    with Sandbox() as sandbox, sandbox.session() as session:
        shown = session.run("import subprocess\nsubprocess.run(['env'], check=True)\nNone").stdout
        assert "HOME=" in shown
        assert "LD_BIND_NOW" not in shown and "GLIBC_TUNABLES" not in shown


SIGNALS = """
import signal
from repl_sandbox import Sandbox

numbers = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
%s
with Sandbox(isolation=%r, python=%r) as sandbox, sandbox.session() as session:
    outcome = session.run("x = 1\\nwhile True: pass", timeout=0.1)
    print(type(outcome).__name__, outcome.state, session.run("x").value)
    code = "import subprocess as s; p = s.Popen(['sleep', '60']); p.terminate(); p.wait(30)"
    print(session.run(code).value)
"""


@pytest.mark.parametrize("tier", ["jailed", "confined", "process"])
@pytest.mark.parametrize(
    "taken",
    [
        "signal.pthread_sigmask(signal.SIG_BLOCK, numbers)",
        "for each in numbers:\n    signal.signal(each, signal.SIG_IGN)",
    ],
    ids=["blocked", "ignored"],
)
def test_sessions_do_not_inherit_the_signal_handling_of_the_host(
    taken: str, tier: str, open_python: str
) -> None:
    program = SIGNALS % (taken, tier, open_python)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG, check=False
    )
    assert (done.stdout, done.stderr) == ("TimedOut kept 1\n-15\n", "")


def test_running_out_of_descriptors_is_one_error_with_a_remedy() -> None:
    program = (
        "from repl_sandbox import Sandbox, SandboxError\n"
        "try:\n    Sandbox()\nexcept SandboxError as error:\n    print(error)"
    )
    limited = ["sh", "-c", 'ulimit -n 30; exec "$@"', "sh", sys.executable, "-c", program]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "this process may open 30 files, and a sandbox needs 1024: "
        "raise the limit (ulimit -n 1024)\n"
    )


@pytest.mark.parametrize("closed", [[2], [0, 1], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("isolation", ["auto", "process"])
def test_a_daemon_without_standard_streams_has_sessions(
    isolation: str, closed: list[int], tmp_path: Path
) -> None:
    program = (
        "import os\n"
        "from pathlib import Path\n"
        "from repl_sandbox import Sandbox\n"
        f"for fd in {closed}:\n    os.close(fd)\n"
        f"with Sandbox(isolation={isolation!r}) as sandbox, sandbox.session() as session:\n"
        "    stdout = session.run('import os; os.system(\"echo said\")').stdout\n"
        f"    Path({str(tmp_path / 'out')!r}).write_text(stdout)\n"
    )
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (tmp_path / "out").read_text() == "said\n"


def test_importing_from_an_archive_is_refused_with_the_reason(tmp_path: Path) -> None:
    archive = tmp_path / "all.zip"
    package = Path(repl_sandbox.__file__).parent
    with zipfile.ZipFile(archive, "w") as file:
        for module in package.rglob("*.py"):
            file.write(module, module.relative_to(package.parent))
    program = "from repl_sandbox import Sandbox, SandboxError\ntry:\n    Sandbox()\n"
    program += "except SandboxError as error:\n    print(error)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "in a directory" in done.stdout and str(archive) in done.stdout
