"""`repl-env keys`: keys are listed, expired and revoked, also under a server that runs."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repl_env.cli.main import build
from repl_server.auth import APIKeys, configured_keys, expiry_of, new_key
from repl_server.settings import Settings
from repl_server.tenants import Tenant
from tests.server.conftest import ask, peer
from tests.server.serve_process import ADDRESS, child
from tests.waiting import eventually


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A key file that does not exist yet."""
    return tmp_path / "keys.txt"


def keys(file: Path, *arguments: str, status: int = 0) -> str:
    """The output of the command, or its error in one line."""
    done = CliRunner().invoke(build(), ["keys", *arguments, "--file", str(file)])
    assert done.exit_code == status, done.output
    return done.stdout if status == 0 else " ".join(done.stderr.replace("│", " ").split())


def made(file: Path, *names: str) -> list[str]:
    """Keys with these names in the file."""
    return [keys(file, name).strip() for name in names]


def test_the_list_has_names_and_expiry_and_no_key_or_hash_in_full(file) -> None:
    keys_made = made(file, "alice", "bob")
    keys(file, "expire", "bob", "2020-01-31T12:00Z")
    keys(file, "carol", "--expires", "2099-12-31")
    lines = keys(file, "list").splitlines()

    assert [line.split()[0] for line in lines] == ["NAME", "alice", "bob", "carol"]
    assert lines[1].endswith("never")
    assert lines[2].endswith("expired 2020-01-31T12:00:00Z")
    assert lines[3].endswith("  2099-12-31T00:00:00Z")
    listed = json.loads(keys(file, "list", "--json"))
    assert [(each["name"], each["expired"]) for each in listed] == [
        ("alice", False),
        ("bob", True),
        ("carol", False),
    ]
    digests = [key.digest.hex() for key in APIKeys.read(file).stored.values()]
    assert [each["sha256"] for each in listed] == [digest[:12] for digest in digests]
    for secret in (*keys_made, *digests):
        assert secret not in "\n".join(lines) + json.dumps(listed)


def test_a_name_without_a_command_creates_a_key_and_so_does_create(file) -> None:
    made(file, "alice")
    keys(file, "create", "list")
    assert set(APIKeys.read(file).stored) == {"alice", "list"}

    done = CliRunner().invoke(build(), ["keys", "--file", str(file), "bob"])
    assert done.exit_code == 0
    assert "bob" in APIKeys.read(file)


def test_revoke_removes_one_line_and_leaves_the_others_in_the_same_file(file) -> None:
    (_, alice), (_, bob) = new_key("alice"), new_key("bob")
    file.write_text(f"\ufeff# team one\n{alice} # lent\n\n{bob}  # ours\n", encoding="utf-8")
    file.chmod(0o640)
    before = file.stat()
    assert "alice is revoked" in keys(file, "revoke", "alice")

    assert file.read_text() == f"# team one\n\n{bob}  # ours\n"
    assert (file.stat().st_ino, file.stat().st_mode) == (before.st_ino, before.st_mode)


def test_an_expiry_is_set_moved_and_removed_and_the_comment_stays(file) -> None:
    file.write_text(f"{new_key('alice')[1]} # lent\n")
    before = file.read_text()
    assert keys(file, "expire", "alice", "2099-01-31") == "alice expires at 2099-01-31T00:00:00Z\n"
    assert file.read_text() == before.replace(" #", " expires=2099-01-31T00:00:00Z #")
    keys(file, "expire", "alice")
    assert "alice" not in APIKeys.read(file)
    keys(file, "expire", "alice", "never")

    assert file.read_text() == before


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("never", None),
        ("2030-01-31", datetime(2030, 1, 31, tzinfo=UTC)),
        ("2030-01-31T12:00Z", datetime(2030, 1, 31, 12, tzinfo=UTC)),
        ("2030-01-31T12:00+02:00", datetime(2030, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_an_expiry_is_a_date_or_a_time(text, time) -> None:
    assert expiry_of(text) == time


def test_an_expiry_may_be_a_duration_from_now() -> None:
    before = datetime.now(UTC)
    later, now = expiry_of("90d"), expiry_of("now")

    assert later is not None and now is not None
    assert before <= now <= datetime.now(UTC)
    assert before <= later - timedelta(days=90) <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["revoke", "carol"], "no key is named 'carol'; there are: alice, bob"),
        (["expire", "carol"], "no key is named 'carol'; there are: alice, bob"),
        (["expire", "alice", "soon"], "'soon' is no time: write now, never, 12h, 30d"),
        (["dave", "--expires", "30"], "'30' is no time"),
        (["alice"], "a key named 'alice' exists already"),
    ],
    ids=" ".join,
)
def test_the_file_stays_as_it_was_if_a_command_fails(file, arguments, says) -> None:
    made(file, "alice", "bob")
    before = file.read_bytes()

    assert says in keys(file, *arguments, status=2)
    assert file.read_bytes() == before


@pytest.mark.parametrize("command", [["list"], ["revoke", "a"], ["expire", "a"]])
def test_a_file_that_is_missing_or_damaged_is_named(file, command) -> None:
    assert f"{file}: No such file" in keys(file, *command, status=2)
    assert not file.exists()
    file.write_text("a: not a hash\n")
    assert f"{file}, line 1: must be `name:hash`" in keys(file, *command, status=2)
    assert file.read_text() == "a: not a hash\n"


def test_a_disk_that_is_full_leaves_the_keys_as_they_were(file) -> None:
    made(file, *(f"user-{number}" for number in range(14)))  # 1,012 bytes, of 1,024 below
    before = file.read_bytes()
    command = f"ulimit -f 1; exec {sys.executable} -m repl_env keys expire user-0 30d --file {file}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "File too large" in " ".join(done.stderr.split())
    assert file.read_bytes() == before


def test_a_server_reads_no_file_that_a_command_is_changing(file, caplog) -> None:
    alice, bob = made(file, "alice", "bob")
    known = configured_keys(Settings(api_keys=file))
    whole = file.read_text()
    with file.open("r+") as changing:
        fcntl.flock(changing, fcntl.LOCK_EX)
        changing.truncate(0)
        changing.flush()
        assert [known.tenant(each) for each in (alice, bob)] == [
            Tenant("key", "alice"),
            Tenant("key", "bob"),
        ]
        changing.write(whole.splitlines()[1] + "\n")
    assert [known.tenant(each) for each in (alice, bob)] == [None, Tenant("key", "bob")]
    assert not [each for each in caplog.records if "cannot be read" in each.message]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["revoke", "alice"], "unknown API key"),
        (["expire", "alice"], "the API key has expired"),
        (["expire", "alice", "1s"], "the API key has expired"),
    ],
    ids=" ".join,
)
def test_a_running_server_refuses_the_key_and_ends_its_sessions(file, command, says) -> None:
    alice, bob = made(file, "alice", "bob")
    as_alice, as_bob = ({"additional_headers": {"X-API-Key": key}} for key in (alice, bob))
    with child("--recovery", "restart", "--api-keys", str(file)) as server:
        with (
            peer(server, host=ADDRESS, **as_alice) as one,
            peer(server, host=ADDRESS, **as_bob) as two,
        ):
            one.reset()
            two.reset()
            keys(file, *command)

            assert one.closed() == 4401
            told = eventually(
                lambda: (r := ask(server, "GET", "/ready", X_API_Key=alice))[0] == 401 and r
            )
            assert told[2]["message"] == says
            assert two.run("print(1)")["stdout"] == "1\n"
        (key,) = made(file, "carol")
        assert ask(server, "GET", "/ready", X_API_Key=key)[0] == 200
        if command[0] == "expire":
            keys(file, "expire", "alice", "never")
            assert ask(server, "GET", "/ready", X_API_Key=alice)[0] == 200
