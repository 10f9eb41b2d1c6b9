"""One sandbox for each file, a fresh session for each test, and a second user to be.

Guarantees must hold for sandboxes of root and of ordinary users. `user` runs a script as one, with
a copy of the engine that this user can read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import repl_sandbox
from repl_sandbox import Finished, Limits, Sandbox, Session
from tests import internals
from tests.waiting import LONG, PATIENCE

# No account has this uid on common systems; the uid of nobody (65534) may own files. The kernel
# limits the processes of a user: each worker of the suite has a user of its own, and the corpus of
# abuse has another, so that no fork bomb takes the processes of another test.
ORDINARY_UID = 64331 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))

_LACKING = """
from repl_sandbox.host import template, zygote
zygote.BOOT = {boot!r}
template.confirm = lambda tier, seen: None
"""

_NAMESPACES_ALLOWED = """
from repl_sandbox.native import libc
try:
    libc.unshare(libc.CLONE_NEWUSER)
except OSError as error:
    print(error)
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module that names `TIERS` is run for each of them, but for tests that name their own."""
    tiers = getattr(metafunc.module, "TIERS", ())
    marks = metafunc.definition.iter_markers("parametrize")
    own = any(mark.args[0] == "sandbox" for mark in marks)
    if tiers and "sandbox" in metafunc.fixturenames and not own:
        metafunc.parametrize("sandbox", tiers, indirect=True, scope="module")


@pytest.fixture(autouse=True, scope="session")
def _without_a_layer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """With REPL_TEST_WITHOUT all sandboxes lack that layer, and start nevertheless.

    So tests of a layer can be seen to fail: `test_layers.py` has the list.
    """
    layer = os.environ.get("REPL_TEST_WITHOUT")
    if not layer:
        yield
        return
    folder = tmp_path_factory.mktemp("without")
    boot = folder / f"{layer}.py"
    boot.symlink_to(Path(__file__).parent / "without_layer.py")
    lacking = _LACKING.format(boot=str(boot))
    # Programs that tests start as hosts read it too; templates read nothing of the environment.
    (folder / "sitecustomize.py").write_text(lacking)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(folder))
        exec(lacking, {})
        yield


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    tier = getattr(request, "param", "jailed")
    python = None if tier == "jailed" else request.getfixturevalue("open_python")
    with Sandbox(isolation=tier, python=python, limits=Limits(timeout=PATIENCE)) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    with sandbox.session() as session:
        yield session


@pytest.fixture
def seen(session: Session) -> Callable[[str], Any]:
    """Runs code in the session and returns the value of its variable `seen`."""

    def run(code: str) -> Any:
        outcome = session.run(code)
        assert isinstance(outcome, Finished), outcome
        return session.get("seen")

    return run


@pytest.fixture(scope="session")
def user() -> Iterator[Callable[[str], Any]]:
    """Runs a script as an ordinary user and returns the JSON that it prints last."""
    # Not under /tmp: mounts below it would have to appear in each session's own /tmp.
    with tempfile.TemporaryDirectory(prefix="repl-user-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        library = Path(folder)
        for package in (repl_sandbox, psutil):
            source = Path(str(package.__file__)).parent
            shutil.copytree(source, library / source.name, ignore=_without_caches)
        checks = Path(__file__).parents[1] / "conformance"
        shutil.copytree(checks, library / "tests" / checks.name, ignore=_without_caches)
        shutil.copy(internals.__file__, library / "tests")
        run = _Runner(library)
        refusal = run.text(_NAMESPACES_ALLOWED)
        if refusal:
            pytest.skip(f"the kernel refuses user namespaces to an ordinary user: {refusal}")
        yield run


def _without_caches(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name in ("__pycache__", "tests")}


class _Runner:
    """Runs scripts as the ordinary user, with the packages of `library`."""

    uid = ORDINARY_UID

    def __init__(self, library: Path) -> None:
        self._library = library
        self._python = self._interpreter()
        # The user cannot write there: otherwise each process would compile the modules that it
        # imports.
        compiling = [self._python, "-I", "-m", "compileall", "-q", str(library)]
        subprocess.run(compiling, cwd="/", check=True)

    def __call__(self, script: str) -> Any:
        return json.loads(self.text(script).splitlines()[-1])

    def text(self, script: str) -> str:
        done = self._start(self._python, script)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _interpreter(self) -> str:
        # The suite's own interpreter may be readable for its owner alone.
        for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
            try:
                done = self._start(
                    path, "import sys, repl_sandbox; print(sys.version_info >= (3, 11))"
                )
            except OSError:
                continue
            if done.stdout.strip() == "True":
                return path
        pytest.skip("no Python of at least 3.11 that another user may run")

    def start(self, script: str) -> subprocess.Popen[str]:
        """The script as a process that reads its standard input."""
        return subprocess.Popen(
            [self._python, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **self._circumstances(),
        )

    def _start(self, python: str, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-c", script],
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
            **self._circumstances(),
        )

    def _circumstances(self) -> dict[str, Any]:
        identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            identity = {"user": ORDINARY_UID, "group": ORDINARY_UID, "extra_groups": []}
        env = {"PYTHONPATH": str(self._library), "PATH": "/usr/bin:/bin"}
        return {"env": env, "cwd": "/", **identity}
