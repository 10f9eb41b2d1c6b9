"""The command of a Space's Dockerfile, with its settings and the wheel that it carries.

There is no container here: what `RUN` installs lies in a folder, or, in the slow form, in a virtual
environment made by that line itself. The command runs as on the hub, where no user namespaces are
had (`as_on_the_hub.sh`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from repl_env import AuthenticationFailed, REPLEnv, __version__
from repl_env.integrations.space import SpaceConfig, make_space
from repl_server.auth import new_key
from tests.space.image import Image
from tests.waiting import PATIENCE

AS_ON_THE_HUB = Path(__file__).parent / "as_on_the_hub.sh"


def in_a_folder(image: Image, folder: Path) -> dict[str, str]:
    """The wheel beside the libraries of the tests: their versions are not its matter."""
    (wheel,) = re.findall(r'"([^"\[]+)\[server\]"', image.run)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        folder,
        wheel,
    ]
    subprocess.run(pip, check=True)
    return {"PATH": f"{folder}/bin:{os.environ['PATH']}", "PYTHONPATH": str(folder)}


def in_an_environment(image: Image, folder: Path) -> dict[str, str]:
    """As in the image: a Python without packages, and the line of the Dockerfile."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    variables = {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", image.run], env=os.environ | variables, check=True)
    return variables


@pytest.fixture(
    scope="module",
    params=[in_a_folder, pytest.param(in_an_environment, marks=pytest.mark.slow)],
    ids=lambda place: place.__name__,
)
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The environment variables of a process that uses the installed wheel."""
    folder = tmp_path_factory.mktemp("installed")
    make_space(folder / "space", SpaceConfig())
    variables: dict[str, str] = request.param(Image.of(folder / "space"), folder / "site")
    return variables


@pytest.fixture(scope="module")
def there() -> list[str]:
    """The prefix of a command that runs as on the hub."""
    done = subprocess.run([AS_ON_THE_HUB, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no user 1000 without namespaces can be had here: {done.stderr.strip()}")
    return [str(AS_ON_THE_HUB)]


@contextmanager
def running(image: Image, there: list[str], variables: dict[str, str]) -> Iterator[str]:
    """The server's address, on a free port rather than the Space's own."""
    plain = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    environment = plain | image.environment | {"REPL_ENV_PORT": "0"} | variables
    with subprocess.Popen(
        [*there, *image.command], env=environment, cwd="/", stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            told = process.stdout.readline()
            assert told.startswith("repl-env serves on http://0.0.0.0:"), told
            yield f"http://127.0.0.1:{told.rpartition(':')[2].strip()}"
        finally:
            process.terminate()
            process.wait(PATIENCE)


def get(url: str, **headers: str) -> tuple[int, dict[str, str]]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers)


def episode(url: str, key: str | None = None) -> tuple[float | None, str]:
    """The reward of a short one, and the tier that held it."""
    with REPLEnv(url, api_key=key).sync() as env:
        first = env.reset(context="one two three", expected_answer="3")
        done = env.execute("FINAL(len(context.split()))")
    return done.reward, first.metadata["isolation"]["tier"]


def test_the_installed_package_has_its_version(installed: dict[str, str]) -> None:
    command = ["repl-env", "--version"]
    done = subprocess.run(
        command, env=os.environ | installed, capture_output=True, text=True, check=True
    )

    assert done.stdout == f"repl-env {__version__}\n"


def test_a_public_space_serves_an_episode(
    installed: dict[str, str], there: list[str], tmp_path: Path
) -> None:
    make_space(tmp_path / "space", SpaceConfig())
    image = Image.of(tmp_path / "space")
    with running(image, there, installed | {"SPACE_HOST": "ann-repl.hf.space"}) as url:
        assert get(f"{url}/health")[0] == 200
        assert episode(url) == (1.0, "confined")
        framed = {"Host": "ann-repl.hf.space", "Sec-Fetch-Site": "cross-site"}
        visit = {"Sec-Fetch-Mode": "navigate", "Accept": "text/html"}
        assert get(f"{url}/", **framed, **visit)[0] == 200
        _, headers = get(f"{url}/health")
        assert headers["content-security-policy"] == "frame-ancestors https://huggingface.co"
        own = {"Host": "ann-repl.hf.space", "Origin": "https://ann-repl.hf.space"}
        assert get(f"{url}/schema", **own)[0] == 200
        assert get(f"{url}/schema", **own | {"Origin": "https://evil.example"})[0] == 403


def test_sessions_of_a_space_have_numpy_pandas_and_matplotlib_loaded(
    installed: dict[str, str], there: list[str], tmp_path: Path
) -> None:
    code = """
import sys
loaded = {"numpy", "pandas", "matplotlib.pyplot"} <= sys.modules.keys()
import numpy, pandas, matplotlib.pyplot as plt
table = pandas.DataFrame({"x": numpy.arange(3)})
table.plot()
plt.show()
print(loaded, int(table.x.sum()))
"""
    make_space(tmp_path / "space", SpaceConfig())
    with (
        running(Image.of(tmp_path / "space"), there, installed) as url,
        REPLEnv(url).sync() as env,
    ):
        env.reset()
        result = env.execute(code).observation.result
        with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE) as answer:
            (memory,) = re.findall(
                rb"^repl_sessions_memory_bytes (.*)$", answer.read(), re.MULTILINE
            )

    # Some six processes share the 80 MB of the packages.
    assert 50e6 < float(memory) < 300e6
    assert result.stdout == "True 3\n", result.stderr
    assert [figure[:5] for figure in result.figures] == ["iVBOR"]  # PNG in base64


def test_a_keyed_space_serves_those_with_a_key(
    installed: dict[str, str], there: list[str], tmp_path: Path
) -> None:
    make_space(tmp_path / "space", SpaceConfig(keyed=True))
    image = Image.of(tmp_path / "space")
    key, line = new_key("alice")
    with running(image, there, installed | {"REPL_ENV_API_KEYS": line}) as url:
        assert get(f"{url}/health")[0] == 200
        assert get(f"{url}/schema")[0] == 401
        assert get(f"{url}/", Accept="text/html")[0] == 200
        assert episode(url, key) == (1.0, "confined")
        with pytest.raises(AuthenticationFailed):
            episode(url)


def test_a_keyed_space_without_its_secret_does_not_start(
    installed: dict[str, str], tmp_path: Path
) -> None:
    make_space(tmp_path / "space", SpaceConfig(keyed=True))
    image = Image.of(tmp_path / "space")
    environment = os.environ | image.environment | installed
    environment.pop("REPL_ENV_API_KEYS", None)
    done = subprocess.run(
        image.command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert done.returncode == 2
    assert "repl-env keys" in done.stderr
