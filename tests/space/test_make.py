"""`repl-env space make`: the folder of a Space, whole and checked."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import typer
import yaml

import repl_env
from repl_env.cli.main import build
from repl_env.integrations.space import SpaceConfig, make_space
from repl_server.auth import TrustedProxies
from repl_server.cli_options import of_variables
from tests.repl_env.cli.calls import Call, caller
from tests.space.image import Image

GIB = 1 << 30

# The files that `openenv push` requires, and the wheel with its installer.
FILES = {
    "Dockerfile", "README.md", "__init__.py", "client.py", "models.py", "openenv.yaml",
    "openenv_repl_env-0.1.0-py3-none-any.whl", "pyproject.toml", "requirements.lock",
    "session.lock", "wheel_backend.py",
}  # fmt: skip


@pytest.fixture
def make(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    call = caller("space", capsys, monkeypatch)
    return lambda *arguments: call("make", *map(str, arguments))


def front_matter(folder: Path):
    _, matter, _ = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(matter)


@pytest.mark.parametrize("keyed", [False, True])
def test_a_whole_space(make: Call, tmp_path: Path, keyed: bool) -> None:
    folder = tmp_path / "new" / "space"
    done = make(folder, "--json", *(["--keyed"] if keyed else []))

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"] == sorted(FILES)
    assert {each.name for each in folder.iterdir()} == FILES
    matter = front_matter(folder)
    assert (matter["sdk"], matter["app_port"], matter["tags"]) == ("docker", 8000, ["openenv"])
    assert matter["base_path"] == "/"
    dockerfile = (folder / "Dockerfile").read_text()
    wheel = f"openenv_repl_env-{repl_env.__version__}-py3-none-any.whl"
    assert f"COPY requirements.lock session.lock {wheel} /opt/" in dockerfile
    assert "pip install --no-cache-dir --require-hashes --requirement" in dockerfile
    assert "--requirement /opt/session.lock" in dockerfile
    assert f'pip install --no-cache-dir --no-deps "/opt/{wheel}[server]"' in dockerfile
    assert ("REPL_ENV_NO_AUTH=1" in dockerfile) != keyed
    assert ("api_key=" in (folder / "README.md").read_text()) == keyed
    assert "`confined`, not `jailed`" in (folder / "README.md").read_text()
    assert yaml.safe_load((folder / "openenv.yaml").read_text())["port"] == 8000
    for file in folder.iterdir():
        if file.suffix != ".whl":
            assert "@{" not in file.read_text(), file
    assert tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"] == (
        "openenv-repl-env"
    )


@pytest.mark.parametrize(
    "title",
    ["REPL", 'a "b" \\ c', "colon: # no", "@{base} $HOME", "- ü 🐍", "'", "[x]", "{x: 1}", "yes"],
)
def test_a_title_is_that_text_in_the_front_matter(tmp_path: Path, title: str) -> None:
    make_space(tmp_path, SpaceConfig(title=title))

    assert front_matter(tmp_path)["title"] == title


def test_the_readme_names_the_space_that_it_is_for(make: Call, tmp_path: Path) -> None:
    assert make(tmp_path, "--repo", "Ann/My_Repl.v2").returncode == 0
    text = (tmp_path / "README.md").read_text()

    assert 'REPLEnv("https://ann-my-repl-v2.hf.space")' in text
    assert "spaces/Ann/My_Repl.v2 " in text


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--title", ""), ("--title", " "), ("--title", "a\nsdk: static"), ("--title", "x" * 101),
        ("--title", "a\u2028b"), ("--base", ""), ("--base", "python:3.12\nRUN id"),
        ("--base", "python 3"), ("--base", "$(id)"), ("--base", "--platform=x"),
        ("--repo", "ann"), ("--repo", "ann/a/b"), ("--repo", "ann/../x"), ("--repo", "-a/b"),
        ("--repo", "ann/a\n"), ("--repo", "ann/" + "a" * 97),
    ],
)  # fmt: skip
def test_a_value_that_would_break_a_file_is_refused(
    make: Call, tmp_path: Path, option: str, value: str
) -> None:
    done = make(tmp_path / "space", option, value)

    assert done.returncode == 2, done.stdout
    assert not (tmp_path / "space").exists()


def test_a_folder_with_files_is_replaced_only_when_forced(make: Call, tmp_path: Path) -> None:
    outside = tmp_path / "outside.md"
    outside.write_text("precious")
    folder = tmp_path / "space"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "README.md").symlink_to(outside)
    (folder / "openenv_repl_env-0.0.1-py3-none-any.whl").touch()
    refused = make(folder)

    assert refused.returncode == 2 and "--replace" in refused.stderr
    assert outside.read_text() == "precious" and not (folder / "Dockerfile").exists()
    assert make(folder, "--replace").returncode == 0
    assert {each.name for each in folder.iterdir()} == FILES | {"notes.txt"}
    assert (outside.read_text(), (folder / "notes.txt").read_text()) == ("precious", "mine")


@pytest.mark.parametrize("place", ["/proc/space", "file", "file/space"])
def test_an_unwritable_folder_is_an_error(make: Call, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    done = make(tmp_path / place)

    assert done.returncode in (1, 2)
    assert place in done.stderr and "Traceback" not in done.stderr


def test_a_partly_written_folder_is_removed(make: Call, tmp_path: Path) -> None:
    """As on a full disk: the wheel does not fit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        done = make(tmp_path / "space")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert done.returncode == 1, done.stderr
    assert "space" in done.stderr and "Traceback" not in done.stderr
    assert not list((tmp_path / "space").iterdir())


def test_pip_installs_the_wheel_of_the_space(tmp_path: Path) -> None:
    """As AutoEnv runs the client, with the address of the Space; nothing is built or fetched."""
    make_space(tmp_path / "space", SpaceConfig())
    options = ["--quiet", "--no-deps", "--no-index", "--target", tmp_path / "site"]
    command = [sys.executable, "-m", "pip", "install", *options, tmp_path / "space"]
    subprocess.run(command, check=True)

    assert (tmp_path / "site" / "openenv_repl_env-0.1.0.dist-info" / "METADATA").exists()
    assert (tmp_path / "site" / "repl_env" / "openenv.yaml").exists()


def test_a_clone_without_git_lfs_says_what_is_missing(tmp_path: Path) -> None:
    make_space(tmp_path, SpaceConfig())
    (wheel,) = tmp_path.glob("*.whl")
    wheel.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert done.returncode != 0
    assert "git-lfs" in done.stderr + done.stdout


@pytest.mark.parametrize("keyed", [False, True])
def test_the_settings_are_the_server_s_and_fit_a_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    make_space(tmp_path, SpaceConfig(keyed=keyed))
    image = Image.of(tmp_path)
    for name, value in image.environment.items():
        monkeypatch.setenv(name, value)
    settings = of_variables("127.0.0.1")

    serve = typer.main.get_command(build()).commands["serve"]  # type: ignore[attr-defined]
    assert image.environment.keys() <= {f"REPL_ENV_{each.name.upper()}" for each in serve.params}
    assert (settings.host, settings.port, settings.no_auth) == ("0.0.0.0", 8000, not keyed)
    assert (settings.isolation, settings.require) == ("auto", "confined")
    assert settings.frame_ancestors == ("https://huggingface.co",)
    assert TrustedProxies(settings.trusted_proxies).trusts("10.16.3.80")
    memory, quota = settings.limits.memory, settings.quota
    assert isinstance(memory, int) and quota is not None and quota.sessions is not None
    sessions = 2 * settings.max_sessions * memory
    assert sessions + settings.uploads_bytes + settings.inbound_bytes + GIB < 16e9
    assert quota.sessions < settings.max_sessions
    told = (tmp_path / "README.md").read_text()
    assert f"{settings.max_sessions} sessions of 512 MiB" in told
    if not keyed:
        assert f"{quota.sessions} sessions, {quota.cpu_seconds_per_hour:g} seconds of CPU" in told


def test_the_wheel_holds_what_makes_the_next_space(tmp_path: Path) -> None:
    make_space(tmp_path, SpaceConfig())
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        names = set(archive.namelist())

    assert {"repl_env/integrations/space_files/Dockerfile.in", "repl_env/openenv.yaml"} <= names
