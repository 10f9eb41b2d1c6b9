"""`repl-env space push`, against a stand-in of the hub on loopback (`hub.py`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from repl_env.integrations.space import SpaceConfig, make_space
from repl_env.integrations.space_push import credential_in
from tests.repl_env.cli.calls import Call, caller
from tests.space.hub import TOKEN, Hub, Space

# `huggingface_hub` sends files in a way that its library of HTTP will give up.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")

FILES = {
    ".gitattributes", "Dockerfile", "README.md", "__init__.py", "client.py", "models.py",
    "openenv.yaml", "openenv_repl_env-0.1.0-py3-none-any.whl", "pyproject.toml",
    "requirements.lock", "session.lock", "wheel_backend.py",
}  # fmt: skip
HASH = "alice:" + "0a" * 32


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    # Read when the library is imported, which another test may have done.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with Hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


@pytest.fixture
def push(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    call = caller("space", capsys, monkeypatch)
    return lambda *arguments: call("push", *arguments)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("space")
    make_space(folder, SpaceConfig())
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A Space that a test may break."""
    return Path(shutil.copytree(made, tmp_path / "space"))


def test_a_separate_process_makes_a_space(tmp_path: Path) -> None:
    """All that users set are variables; the token is that of a login, as was asked for."""
    (tmp_path / "token").write_text(TOKEN)
    with Hub() as hub:
        settings = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path)}
        plain = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        command = [sys.executable, "-m", "repl_env", "space", "push", "ann/My_Repl", "--json"]
        refused, done = (
            subprocess.run(
                [*command, *more],
                env=plain | settings,
                capture_output=True,
                text=True,
                check=False,
            )
            for more in ([], ["--login", "--private"])
        )

        assert refused.returncode == 2 and "--login" in refused.stderr
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["created"] and told["changed"]
        assert told["url"] == "https://ann-my-repl.hf.space"
        space = hub.spaces["ann/My_Repl"]
        assert (
            space.created_with["sdk"] == "docker" and space.created_with["visibility"] == "private"
        )
        assert space.files.keys() == FILES and len(space.commits) == 1
        assert b"https://ann-my-repl.hf.space" in space.files["README.md"]
        (large,) = (each["value"] for each in space.commits[0] if each["key"] == "lfsFile")
        assert large["path"].endswith(".whl")


def test_a_space_that_is_there_is_updated(hub: Hub, push: Call) -> None:
    assert push("ann/repl", "--title", "One").returncode == 0
    hub.spaces["ann/repl"].files |= {
        "openenv_repl_env-0.0.9-py3-none-any.whl": b"old",
        "notes.txt": b"somebody's",
        "old/openenv_repl_env-0.0.9-py3-none-any.whl": b"somebody's",
    }
    done = push("ann/repl", "--title", "Two")
    again = push("ann/repl", "--title", "Two")

    assert (done.returncode, again.returncode) == (0, 0)
    assert "updated" in done.stdout and "already" in again.stdout
    space = hub.spaces["ann/repl"]
    kept = {"notes.txt", "old/openenv_repl_env-0.0.9-py3-none-any.whl"}
    assert space.files.keys() == FILES | kept
    assert len(space.commits) == 2
    sent = {(each["key"], each["value"].get("path")) for each in space.commits[1]}
    assert sent == {
        ("header", None),
        ("file", "README.md"),
        ("deletedFile", "openenv_repl_env-0.0.9-py3-none-any.whl"),
    }
    assert hub.asked.count("POST /api/repos/create") == 1


def test_a_failed_commit_is_repeated(hub: Hub, push: Call) -> None:
    hub.failing["/commit/"] = (400, "no")
    assert push("ann/repl").returncode == 1
    hub.failing.clear()

    assert push("ann/repl").returncode == 0
    assert hub.spaces["ann/repl"].files.keys() == FILES


def test_another_space_of_that_name_is_left_alone_unless_asked(hub: Hub, push: Call) -> None:
    hub.spaces["ann/repl"] = Space(files={"README.md": b"---\n", "app.py": b"theirs"})
    refused = push("ann/repl")

    assert refused.returncode == 1
    assert "another Space" in refused.stderr and "--replace" in refused.stderr
    assert not hub.spaces["ann/repl"].commits
    assert push("ann/repl", "--replace").returncode == 0
    assert hub.spaces["ann/repl"].files.keys() == FILES - {".gitattributes"} | {"app.py"}


def test_a_space_made_on_the_website_is_adopted(hub: Hub, push: Call) -> None:
    hub.spaces["ann/repl"] = Space(files={".gitattributes": b"", "README.md": b"---\n"})

    assert push("ann/repl").returncode == 0
    assert hub.spaces["ann/repl"].files.keys() == FILES


def test_keys_become_a_secret_and_nothing_else(hub: Hub, push: Call, tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text(f"# whose\n{HASH}  # mine\n\nbob:{'1b' * 32}\n")
    done = push("ann/repl", "--keyed", "--api-keys", str(tmp_path / "keys.txt"))

    assert done.returncode == 0, done.stderr
    space = hub.spaces["ann/repl"]
    assert space.secrets == {"REPL_ENV_API_KEYS": f"{HASH},bob:{'1b' * 32}"}
    assert b"REPL_ENV_NO_AUTH" not in space.files["Dockerfile"]
    assert not any(HASH.encode() in data for data in space.files.values())


@pytest.mark.parametrize("text", ["", "repl_abc", "alice", f"{HASH}\nalice:key", "\0\xff"])
def test_an_invalid_key_file_is_refused_and_not_repeated(
    hub: Hub, push: Call, tmp_path: Path, text: str
) -> None:
    (tmp_path / "keys.txt").write_text(text, encoding="latin-1")
    done = push("ann/repl", "--api-keys", str(tmp_path / "keys.txt"))

    assert done.returncode == 2
    assert "keys.txt" in done.stderr and "repl_abc" not in done.stderr
    assert not hub.asked


STRAY = (
    ".env", ".env.local", ".git/config", ".hf/token", "secrets.toml", "keys.txt", "id_rsa", "token",
    "server.pem", "server.key", "credentials.json", "data/rows.csv", "__pycache__/client.pyc",
    "notes.md", "Dockerfile~", "openenv_repl_env-0.1.0-py3-none-any.whl.bak",
)  # fmt: skip


def test_only_the_files_of_a_space_are_uploaded(hub: Hub, push: Call, folder: Path) -> None:
    for name in STRAY:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("HF_TOKEN=x")
    done = push("ann/repl", "--folder", str(folder))

    assert done.returncode == 0, done.stderr
    assert hub.spaces["ann/repl"].files.keys() == FILES


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Dockerfile", f"ENV HF_TOKEN={TOKEN}"),
        ("Dockerfile", "ENV OPENAI_API_KEY=sk-proj-" + "a1" * 20),
        ("Dockerfile", 'ENV DB_PASSWORD="correct-horse-battery"'),
        ("README.md", "key: repl_" + "k" * 43),
        ("README.md", "github_pat_" + "A1" * 20),
        ("Dockerfile", f"ENV REPL_ENV_API_KEYS={HASH}"),
        ("README.md", f"\n{HASH}"),
        ("client.py", 'KEY = "AKIA' + "Q7" * 8 + '"'),
        ("pyproject.toml", "-----BEGIN OPENSSH PRIVATE KEY-----"),
        ("__init__.py", "AIza" + "b" * 35),
        ("openenv.yaml", "slack: xoxb-" + "1" * 20),
    ],
)
def test_a_file_with_a_credential_stops_the_upload(
    hub: Hub, push: Call, folder: Path, name: str, text: str
) -> None:
    with (folder / name).open("a") as file:
        file.write(f"\n# {text}\n")
    done = push("ann/repl", "--folder", str(folder))

    assert done.returncode == 1
    assert name in done.stderr and text[-12:] not in done.stderr
    assert not hub.asked


@pytest.mark.parametrize(
    "text",
    [
        "FROM python@sha256:" + "0a" * 32,
        "RUN pip install x --hash=sha256:" + "0a" * 32,
        "ENV HF_TOKEN=$(cat /run/secrets/token)",
        'REPLEnv(url, api_key="KEY")',
        "the token=that they have; hf_transfer, sk-learn, repl_env",
        f"repl_env/x.py,sha256={'a-sk-' + 'b' * 38},120\n",
    ],
)
def test_text_similar_to_a_credential_is_accepted(text: str) -> None:
    assert credential_in("Dockerfile", text.encode(), [TOKEN]) is None


def test_a_credential_in_the_wheel_stops_it_too(made: Path) -> None:
    wheel = next(made.glob("*.whl"))
    token = "no-form-that-anybody-knows"
    (made / "spoilt.whl").write_bytes(wheel.read_bytes())
    with zipfile.ZipFile(made / "spoilt.whl", "a") as archive:
        archive.writestr("repl_env/x.py", f"T = '{token}'")
    spoilt = (made / "spoilt.whl").read_bytes()
    (made / "spoilt.whl").unlink()

    assert credential_in(wheel.name, wheel.read_bytes(), [token]) is None
    assert "repl_env/x.py" in str(credential_in(wheel.name, spoilt, [token]))


@pytest.mark.parametrize(
    ("part", "answer", "status", "told"),
    [
        ("whoami", (401, "bad"), 1, "does not accept the token"),
        ("whoami", (500, "down"), 5, "500"),
        ("/create", (402, "Subscribe to PRO"), 1, "Subscribe to PRO"),
        ("/create", (403, "no rights"), 1, "ann/repl"),
        ("/create", (409, "taken"), 1, "another name"),
        ("/create", (429, "slow down"), 5, "later"),
        ("/create", (503, "down"), 5, "503"),
        ("/validate-yaml", (400, "bad yaml"), 1, "README.md"),
        ("/preupload/", (403, "read token"), 1, "right to write"),
        ("/batch", (403, "storage is full"), 1, "storage is full"),
        ("/store/", (403, "expired"), 1, "expired"),
        ("/commit/", (412, "moved"), 1, "push again"),
        ("/commit/", (413, "large"), 1, "size"),
    ],
)
def test_a_refusal_of_the_hub_is_reported(
    hub: Hub, push: Call, made: Path, part, answer, status, told
) -> None:
    hub.failing[part] = answer
    done = push("ann/repl", "--folder", str(made))

    assert done.returncode == status, done.stderr
    assert told in done.stderr
    assert TOKEN not in done.stderr and "Traceback" not in done.stderr


def test_a_foreign_owner_is_reported_as_such(hub: Hub, push: Call) -> None:
    hub.spaces["bob/repl"] = Space(files={"openenv_repl_env-0.1.0-py3-none-any.whl": b"theirs"})
    for repo in ("bob/repl", "bob/new"):
        done = push(repo)
        assert done.returncode == 1 and repo in done.stderr
    assert not hub.spaces["bob/repl"].commits


@pytest.mark.parametrize(
    ("endpoint", "status", "told"),
    [
        ("http://127.0.0.1:9", 5, "not reached"),
        ("http://no-such-host.invalid", 5, "not reached"),
        ("huggingface.co", 2, "HF_ENDPOINT"),
        ("http://[::1", 2, "HF_ENDPOINT"),
        ("http://127.0.0.1:port", 2, "HF_ENDPOINT"),
        ("file:///etc/passwd", 2, "HF_ENDPOINT"),
        ("https://a.example/?x", 2, "HF_ENDPOINT"),
    ],
)
def test_an_unreachable_hub_is_reported(
    push: Call, hub: Hub, made: Path, monkeypatch, endpoint, status, told
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    done = push("ann/repl", "--folder", str(made))

    assert done.returncode == status, done.stderr
    assert told in done.stderr


@pytest.mark.parametrize("answer", ["<html>Sign in to this network</html>", "[]", "{}", "null"])
def test_a_server_that_answers_differently_is_no_hub(
    hub: Hub, push: Call, made: Path, answer: str
) -> None:
    hub.failing["/api/"] = (200, answer)
    done = push("ann/repl", "--folder", str(made))

    assert done.returncode == 5, done.stderr
    assert "no hub" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["repl"], "OWNER/NAME"),
        (["a/b/c"], "OWNER/NAME"),
        (["../x"], "OWNER/NAME"),
        (["ann/re pl"], "OWNER/NAME"),
        (["ann/repl\n"], "OWNER/NAME"),
        (["ann/repl", "--folder", "/nowhere"], "no Space"),
        (["ann/repl", "--folder", "/tmp", "--keyed"], "made now"),
        (["ann/repl", "--api-keys", "/nowhere"], "/nowhere"),
    ],
)
def test_usage(hub: Hub, push: Call, arguments, told) -> None:
    done = push(*arguments)

    assert done.returncode == 2
    assert told in done.stderr
    assert not hub.asked


@pytest.mark.parametrize("missing", ["Dockerfile", "client.py", "openenv.yaml", "*.whl"])
def test_an_incomplete_space_is_not_pushed(
    hub: Hub, push: Call, folder: Path, missing: str
) -> None:
    (gone,) = folder.glob(missing)
    gone.rename(folder / "elsewhere")
    gone.symlink_to("elsewhere")  # a link leads out of what was looked at
    done = push("ann/repl", "--folder", str(folder))

    assert done.returncode == 2
    assert "no Space" in done.stderr
    assert not hub.asked


@pytest.mark.parametrize("token", ["", " ", "hf_ä", "hf_a b", "hf_a\nX-Y: z"])
def test_without_a_token_nothing_is_requested(
    hub: Hub, push: Call, monkeypatch, token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    done = push("ann/repl")

    assert done.returncode == 2
    assert "token" in done.stderr and "hf_" not in done.stderr
    assert not hub.asked
