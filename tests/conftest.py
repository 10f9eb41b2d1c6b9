"""Shared fixtures: settings, an interpreter for all users, endpoints."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distributions.building import build
from repl_sandbox.native import build as native
from repl_sandbox.native.library import file_name
from tests.security.abuse.interpreters import open_to_all

if TYPE_CHECKING:
    from tests.repl_env.llm.endpoint import Answers, Endpoint

with suppress(ModuleNotFoundError):  # the environment of TorchRL's tests has none
    from hypothesis import HealthCheck, settings

    # Load may stop a machine for seconds, which is no failure. The same examples run each time;
    # `--hypothesis-profile=random` tries others.
    settings.register_profile(
        "random", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
    )
    settings.register_profile("same", settings.get_profile("random"), derandomize=True)
    settings.load_profile("same")


# Of all files; its cases use ports that are fixed, so they run one after the other.
LONGEST = "tests/security/test_corpus.py"


def pytest_configure() -> None:
    """Report one error in place of one for each session that a test opens."""
    machine = os.uname().machine
    why = native.refusal(native.FOLDER / file_name(machine), machine)
    if why is not None:
        raise pytest.UsageError(f"{why}\nRun `make native` first")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """End the output, which has the names of what failed, with how to run one of these."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    stats = {} if reporter is None else reporter.stats  # a worker of pytest-xdist has no terminal
    failed = [each.nodeid for kind in ("failed", "error") for each in stats.get(kind, ())]
    if failed:
        python = Path(sys.executable)
        python = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
        reporter.write_line(f"one of them alone: {python} -m pytest {shlex.quote(failed[0])}")
        reporter.write_line(f"all of them again: {python} -m pytest --lf")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the file that takes minutes, or the other workers wait for it at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_collection_finish() -> None:
    """Exclude existing objects from garbage collection.

    Libraries hold hundreds of thousands of objects until the end of the process, and some tests run
    the collector often.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def open_python() -> str:
    """An interpreter that every user may run: without a view of its own, a session needs one."""
    if (path := open_to_all()) is None:
        pytest.skip("no Python of at least 3.11, or no checkout, that every user may read")
    return path


@pytest.fixture(scope="session")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build("wheel", folder)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture
def endpoint() -> Iterator[Callable[[Answers], Endpoint]]:
    """Starts fake endpoints of models; tests/repl_env/llm/endpoint.py says what they can do."""
    from tests.repl_env.llm.endpoint import Endpoint

    with ExitStack() as stack:
        yield lambda answers="ok": stack.enter_context(Endpoint(answers))
