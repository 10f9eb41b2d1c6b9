"""Keys identify their tenants; errors in key files name the line; only hashes are stored."""

from __future__ import annotations

import fcntl
import hashlib
import stat
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from typer.testing import CliRunner
from websockets.exceptions import InvalidStatus

from repl_env.cli.main import build
from repl_server.auth import APIKeys, configured_keys, lines_of, new_key
from repl_server.cli import append
from repl_server.settings import Settings
from repl_server.tenants import Tenant
from tests.server.conftest import peer, serving
from tests.server.toy_environments import Add, Adder, Sum

HASH = "0" * 63


def test_a_key_is_256_bits_and_its_line_only_the_hash() -> None:
    key, line = new_key("alice")

    assert len(key.removeprefix("repl_")) == 43  # 256 bits in base64
    assert line == f"alice:{hashlib.sha256(key.encode()).hexdigest()}"
    assert new_key("alice")[0] != key


def test_a_key_identifies_its_tenant_and_no_other_text_does() -> None:
    made = [new_key(f"user-{number}") for number in range(5)]
    known = APIKeys.parse(line for _, line in made)

    for number, (key, line) in enumerate(made):
        assert known.tenant(key) == Tenant("key", f"user-{number}")
        digest = line.partition(":")[2]
        for wrong in ("", key[:-1], key + " ", key.upper(), digest, line, "\udcff", "ключ"):
            assert known.tenant(wrong) is None


def test_a_file_of_many_keys_is_read_in_linear_time() -> None:
    lines = [f"user-{number}:{number:064x}" for number in range(50_000)]
    one, other = APIKeys.parse(lines[:25_000]), APIKeys.parse(lines[25_000:])

    assert len(one | other) == 50_000
    with pytest.raises(ValueError, match="line 50001: the key of 'again'"):
        APIKeys.parse([*lines, f"again:{7:064x}"])


def test_without_keys_no_client_is_admitted() -> None:
    assert APIKeys.parse([]).tenant("") is None


def test_lines_may_have_comments_and_space() -> None:
    key, line = new_key("alice")

    assert APIKeys.parse(["# keys", "", f"  {line} # made today\r\n"]).tenant(key)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("alice", "line 2: must be `name:hash`"),
        ("alice:" + HASH, "line 2: must be `name:hash`"),
        ("alice:" + HASH + "g", "line 2: must be `name:hash`"),
        (":" + HASH + "1", "line 2: must be `name:hash`"),
        ("al ice:" + HASH + "1", "line 2: must be `name:hash`"),
        ("-rf:" + HASH + "1", "line 2: must be `name:hash`"),
        ("a" * 65 + ":" + HASH + "1", "line 2: must be `name:hash`"),
        ("bob:" + HASH + "1", "line 2: a key named 'bob' exists already"),
        ("bo:" + HASH + "1 expires=soon", "line 2: `expires=` must be a time such as"),
        ("bo:" + HASH + "1 expires=2030-01-31", "line 2: `expires=` must be a time such as"),
        ("carol:" + HASH + "0", "line 2: the key of 'carol' has another name already"),
    ],
)
def test_a_wrong_line_is_named_and_not_repeated(tmp_path, line, message) -> None:
    file = tmp_path / "keys"
    file.write_text(f"bob:{HASH}0\n{line}\n")

    with pytest.raises(ValueError, match=message) as error:
        APIKeys.read(file)
    assert str(file) in str(error.value)
    assert HASH not in str(error.value)


def test_a_file_that_is_no_text_is_named(tmp_path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"bob:\xff\xfe\n")
    with pytest.raises(ValueError, match=f"^{file} is not a text file"):
        APIKeys.read(file)
    status, _, err = run("alice", "--file", str(file))
    assert status == 2 and "not a text file" in " ".join(err.replace("│", " ").split())


def test_a_file_that_everybody_may_write_to_is_refused(tmp_path) -> None:
    file = tmp_path / "keys"
    file.write_text(new_key("alice")[1])
    file.chmod(0o666)

    with pytest.raises(ValueError, match="chmod o-w"):
        APIKeys.read(file)


def test_keys_of_the_environment_come_beside_those_of_the_file() -> None:
    (one, first), (two, second), (three, third) = (new_key(name) for name in "abc")
    both = APIKeys.parse([first]) | APIKeys.parse(lines_of(f"{second},{third}\n"))

    assert [both.tenant(key) for key in (one, two, three)] == [
        Tenant("key", name) for name in "abc"
    ]
    with pytest.raises(ValueError, match="'a' is in the key file and in REPL_ENV_API_KEYS"):
        APIKeys.parse([first]) | APIKeys.parse([first])


def test_neither_key_nor_hash_is_in_the_representation() -> None:
    _, line = new_key("alice")

    assert repr(APIKeys.parse([line])) == "APIKeys(alice)"


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(build(), ["keys", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_prints_the_key_alone_and_writes_its_hash(tmp_path) -> None:
    file = tmp_path / "keys"
    made = {}
    for name in ("alice", "bob"):
        status, out, err = run(name, "--file", str(file))
        assert status == 0
        made[name] = out.strip()
        assert made[name] not in err

    known = APIKeys.read(file)
    assert {name: known.tenant(key) for name, key in made.items()} == {
        name: Tenant("key", name) for name in made
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not any(key in file.read_text() for key in made.values())


def test_the_command_appends_on_a_new_line(tmp_path) -> None:
    file = tmp_path / "keys"
    file.write_text("\ufeff" + new_key("alice")[1])  # no line break at the end
    assert run("bob", "--file", str(file))[0] == 0

    assert len(APIKeys.read(file)) == 2


def test_two_commands_at_a_time_cannot_give_one_name_twice(tmp_path) -> None:
    file = tmp_path / "keys"
    with file.open("w") as other, ThreadPoolExecutor(1) as threads:
        fcntl.flock(other, fcntl.LOCK_EX)
        ours = threads.submit(append, file, new_key("alice")[1])
        assert not wait([ours], timeout=0.2).done  # it waits for the other one
        other.write(new_key("alice")[1] + "\n")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_UN)
        with pytest.raises(ValueError, match="already"):
            ours.result()


@pytest.mark.parametrize(
    ("name", "says"),
    [("alice", "alice"), ("no spaces", "a name must be"), ("", "a name must be")],
)
def test_the_command_leaves_the_file_as_it_was_if_it_cannot(tmp_path, name, says) -> None:
    file = tmp_path / "keys"
    run("alice", "--file", str(file))
    before = file.read_text()
    status, out, err = run(name, "--file", str(file))

    assert (status, out) == (2, "")
    assert says in err
    assert file.read_text() == before


def test_without_a_file_the_line_is_shown_for_one() -> None:
    status, out, err = run("alice")
    line = next(line for line in err.splitlines() if line.startswith("alice:"))

    assert status == 0
    assert APIKeys.parse([line]).tenant(out.strip()) == Tenant("key", "alice")


def test_a_key_file_is_read_again_when_it_changed(tmp_path, caplog) -> None:
    path, (key, line), (later, other) = tmp_path / "keys", new_key("first"), new_key("second")
    path.write_text(f"{line}\n")
    keys = configured_keys(Settings(api_keys=path))
    assert keys.tenant(key) == Tenant("key", "first")

    path.write_text(f"{other}\n")
    assert (keys.tenant(key), keys.tenant(later)) == (None, Tenant("key", "second"))
    assert "first" not in keys

    path.write_text("no line of a key file\n")
    assert keys.tenant(later) == Tenant("key", "second")
    path.unlink()
    assert [keys.tenant(later) for _ in range(3)] == [Tenant("key", "second")] * 3
    assert len([each for each in caplog.records if "its keys stay" in each.message]) == 2

    path.write_text("")
    assert len(keys) == 0


def test_a_revoked_key_ends_its_sessions_and_others_stay(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("repl_server.manager.SWEEP_S", 0.01)
    path, (key, line), (other, kept) = tmp_path / "keys", new_key("first"), new_key("second")
    path.write_text(f"{line}\n{kept}\n")
    headers = [{"additional_headers": {"X-API-Key": each}} for each in (key, other)]
    models = {"environment": Adder, "action": Add, "observation": Sum}
    with (
        serving({"api_keys": path}, **models) as server,
        peer(server, **headers[0]) as one,
        peer(server, **headers[1]) as two,
    ):
        for each in (one, two):
            assert each.ask("reset")["type"] == "observation"
        path.write_text(f"{kept}\n")

        assert one.closed() is not None
        assert two.ask("state")["type"] == "state"
        with pytest.raises(InvalidStatus), peer(server, **headers[0]):
            pass
