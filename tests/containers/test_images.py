"""The images of docker/: built without network by either builder, run as they are meant to be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from repl_sandbox import Finished, Sandbox
from tests.containers import built
from tests.containers.built import ROOT, SERVER, SESSION, Engine
from tests.containers.ready import IMAGE
from tests.waiting import eventually

HERE = Path(__file__).parent
# Options that compose.yaml gives its servers.
CONFINED = (
    "--init",
    "--read-only",
    "--tmpfs=/tmp",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
)
# Exit statuses of what SIGTERM has ended; 137 is that of SIGKILL, when an engine has waited enough.
ENDED = {"0", "143"}
IMPORTED = (
    *("numpy", "pandas", "scipy.stats", "sklearn.linear_model", "statsmodels.api", "sympy"),
    *("matplotlib.pyplot", "PIL.Image", "networkx", "lxml.etree", "bs4", "openpyxl", "yaml"),
    *("regex", "tabulate", "tqdm", "cloudpickle", "RestrictedPython"),
)


@pytest.fixture(scope="module")
def engine(client: list[str], tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return built.engine(tuple(client), IMAGE, tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def server(engine: Engine) -> str:
    return built.server_image(engine)


@pytest.fixture(scope="module")
def session(engine: Engine) -> str:
    return engine.build("repl-env-session-of-tests", SESSION)


@contextmanager
def serving(engine: Engine, image: str, *options: str) -> Iterator[str]:
    """A server in a container without network, as soon as the engine finds it healthy."""
    name = engine("run", "--detach", "--network=none", *options, image).split()[-1]
    try:
        state = ("inspect", "--format={{.State.Status}} {{.State.Health.Status}}", name)
        eventually(
            lambda: engine(*state).split() == ["running", "healthy"],
            lambda: engine(*state) + engine("logs", name),
        )
        yield name
    finally:
        engine("rm", "--force", "--volumes", name)


def status(engine: Engine, name: str) -> str:
    return engine("inspect", "--format={{.State.ExitCode}}", name).strip()


def pinned(lock: str) -> set[tuple[str, str]]:
    rows = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / lock).read_text(), re.MULTILINE)
    return {(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in rows}


def test_the_server_image_is_small_and_runs_as_an_unprivileged_user(
    engine: Engine, server: str
) -> None:
    (seen,) = json.loads(engine("image", "inspect", server))

    assert seen["Size"] <= 250_000_000
    assert seen["Config"]["User"] == "10001:10001"
    assert seen["Config"]["Healthcheck"]["Test"][0] == "CMD"


def test_images_have_the_pinned_versions_and_no_other(
    engine: Engine, server: str, session: str
) -> None:
    base = set(json.loads(engine.program(IMAGE, HERE / "inside" / "versions.py")).items())
    own = set(json.loads(engine.program(server, HERE / "inside" / "versions.py")).items())
    rich = set(json.loads(engine.program(session, HERE / "inside" / "versions.py")).items())

    assert {name for name, _ in own - base - pinned("requirements.lock")} == {"repl-env"}
    assert rich - base <= pinned("docker/session.lock")


@pytest.mark.parametrize("file", [SERVER, SESSION])
def test_the_same_inputs_make_the_same_files_by_each_builder(
    engine: Engine, server: str, session: str, file: str
) -> None:
    first = {SERVER: server, SESSION: session}[file]
    again = engine.build("again-of-tests", file, "--no-cache", kit=engine.has_kit())

    assert engine.files(again) == engine.files(first)


def test_a_server_without_keys_does_not_start(engine: Engine, server: str) -> None:
    said = engine("run", "--rm", "--network=none", "--env=COLUMNS=500", server, status=2)

    assert "repl-env keys" in said


def test_a_server_in_a_container_is_healthy_isolates_sessions_and_drains(
    engine: Engine, server: str
) -> None:
    with serving(engine, server, *CONFINED, "--env=REPL_ENV_NO_AUTH=1") as name:
        with (HERE / "inside" / "asking.py").open("rb") as program:
            asked = engine("exec", "--interactive", name, "python", "-", stdin=program)
        with (ROOT / "examples" / "remote.py").open("rb") as example:
            address = ("-", "http://127.0.0.1:8000", "20")
            engine("exec", "--interactive", name, "python", *address, stdin=example)
        engine("stop", "--time=100", name)

        assert json.loads(asked) == {"tier": "confined", "uid": 10001, "value": "42"}
        assert status(engine, name) in ENDED
        assert "server_stopped" in engine("logs", name)


def test_a_server_that_starts_can_be_stopped(engine: Engine, server: str) -> None:
    name = engine("run", "--detach", "--init", "--network=none", server, "serve", "--no-auth")
    name = name.split()[-1]
    try:
        engine("stop", "--time=100", name)
        assert status(engine, name) in ENDED
    finally:
        engine("rm", "--force", name)


def test_the_health_check_fails_where_nothing_answers(engine: Engine, server: str) -> None:
    check = ("--entrypoint=python", server, "-I", "/opt/repl-env/healthy.py")

    assert "127.0.0.1:8000" in engine("run", "--rm", "--network=none", *check, status=1)


def test_the_session_image_has_its_declared_modules(engine: Engine, session: str) -> None:
    engine.program(session, HERE / "inside" / "imports.py", *IMPORTED)


def test_a_host_outside_uses_the_session_image(daemon: None, session: str) -> None:
    with Sandbox(isolation="container", image=session) as sandbox, sandbox.session() as inside:
        outcome = inside.run("import pandas; int(pandas.Series([40, 2]).sum())", timeout=100)

        assert isinstance(outcome, Finished) and outcome.value == "42"
        assert inside.isolation.tier == "container"


def test_a_server_on_the_session_image_has_its_modules(engine: Engine, session: str) -> None:
    rich = engine.build("repl-env-rich-of-tests", SERVER, base=session)
    settings = ("--env=REPL_ENV_NO_AUTH=1", "--env=REPL_ENV_PRELOAD=numpy pandas")

    with serving(engine, rich, *CONFINED, *settings) as name:
        with (HERE / "inside" / "asking.py").open("rb") as program:
            command = (
                "exec",
                "--interactive",
                name,
                "python",
                "-",
                "import pandas, sklearn; 6 * 7",
            )
            asked = engine(*command, stdin=program)
        assert json.loads(asked)["value"] == "42"
