"""Files of a reset that were uploaded: what a session has, what is refused, what they cost."""

from __future__ import annotations

from typing import Any

import pytest

from repl_env import REPLEnv
from repl_env.models import Action
from repl_sandbox import Limits
from repl_server.contexts import SharedTemplates, TenantUploads
from repl_server.quotas import QuotaRegistry
from repl_server.settings import Settings
from repl_server.tenants import RequestError, Tenant
from repl_server.uploads import UploadQuota, UploadStore
from tests.server.conftest import serving
from tests.server.uploads.upload_clients import ME, OTHER, Foreign, Told, send, session, shown
from tests.server.uploads.upload_data import name
from tests.waiting import PATIENCE

MIB = 1 << 20
DATA = b"\x00\xff" * MIB


@pytest.fixture(scope="module")
def server():
    with serving({"max_sessions": 4}) as server:
        yield server


def test_uploaded_files_are_in_the_working_directory(server) -> None:
    upload = {"$upload": send(server, DATA)}
    with session(server) as one:
        told = one.reset(files={"a/b": upload, "c": upload, "note.txt": "ä"}, context="x")
        assert "observation" in told
        code = "[open(p, 'rb').read() == b'\\x00\\xff' * (1 << 20) for p in ('a/b', 'c')]"
        assert shown(one, code) == "[True, True]"
        assert shown(one, "open('note.txt').read(), context") == "('ä', 'x')"


def test_uploaded_files_combine_with_uploaded_contexts(server) -> None:
    reference = {"sha256": send(server, b"text"), "type": "text"}
    with session(server) as one:
        one.reset(files={"a": {"$upload": send(server, DATA)}}, uploads={"context": reference})
        assert shown(one, "context, len(open('a', 'rb').read())") == f"('text', {len(DATA)})"


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"$upload": name(b"of nobody")}, "UNKNOWN_CONTEXT"),
        ({"$upload": "../x"}, "UNKNOWN_CONTEXT"),
        ({"$upload": 7}, "VALIDATION_ERROR"),
        ({"$upload": name(DATA), "more": 1}, "VALIDATION_ERROR"),
        ([], "VALIDATION_ERROR"),
    ],
)
def test_an_invalid_upload_is_refused(server, value: Any, code: str) -> None:
    with session(server) as one:
        assert one.reset(files={"a": value})["code"] == code


def test_another_tenant_s_upload_is_no_file(server) -> None:
    files = {"a": {"$upload": send(server, b"mine", ME)}}
    with session(server) as mine, session(server, OTHER) as theirs:
        assert "observation" in mine.reset(files=files)
        assert theirs.reset(files=files)["code"] == "UNKNOWN_CONTEXT"


def test_the_client_of_this_package_uploads_files_over_the_limit_of_a_message(tmp_path) -> None:
    (tmp_path / "big").write_bytes(DATA)
    told = []
    with (
        serving({"message_bytes": MIB}) as server,
        REPLEnv(server.url, connect_timeout_s=PATIENCE).sync() as env,
    ):
        files = {"big": tmp_path / "big", "text": "é" * MIB, "small": b"1"}
        env.reset(files=files, on_upload=lambda *far: told.append(far))
        code = "[len(open(each, 'rb').read()) for each in ('big', 'text', 'small')]"
        assert env.execute(code).observation.result.value == f"[{2 * MIB}, {2 * MIB}, 1]"

    assert told[-1] == (4 * MIB, 4 * MIB)


def test_an_environment_of_another_kind_is_given_the_bytes() -> None:
    with serving(environment=Foreign, action=Action, observation=Told) as server:
        with session(server) as one:
            told = one.reset(files={"a": {"$upload": send(server, b"\xff")}, "b": "text"})
            assert told["observation"]["text"] == "[('files', {'a': b'\\xff', 'b': 'text'})]"


def test_a_file_that_does_not_fit_is_refused_by_its_path() -> None:
    with serving({"limits": Limits(file_size=MIB)}) as server, session(server) as one:
        told = one.ask("reset", {"files": {"a/b": "x" * (MIB + 1)}})["data"]
        assert told["code"] == "VALIDATION_ERROR"
        assert told["errors"][0]["loc"] == ["data", "files"]
        assert told["message"].startswith("data.files: 'a/b': File too large; the limit is")


async def test_an_upload_being_read_counts_and_is_not_evicted() -> None:
    settings = Settings(uploads_bytes=10 * MIB)
    room = UploadQuota(settings.uploads_bytes, QuotaRegistry(settings.quota).meter_of)
    uploads, tenant = UploadStore(settings, room), Tenant("key", "ann")
    owned = TenantUploads(tenant, uploads, SharedTemplates(room))

    async def put(data: bytes) -> str:
        async def body():
            yield data

        await uploads.put(tenant, name(data), None, None, body())
        return name(data)

    given = {"files": {"a": {"$upload": await put(b"1" * (3 * MIB))}}, "seed": 1}
    found = uploads.get(tenant, name(b"1" * (3 * MIB)))
    with uploads.hold(tenant, [found]):
        assert room.used == 6 * MIB
        with pytest.raises(RequestError, match="NO_ROOM"):
            await put(b"2" * (5 * MIB))
    assert await owned.decode_arguments(given) == {"files": {"a": b"1" * (3 * MIB)}, "seed": 1}
    assert room.used == 3 * MIB
    await put(b"2" * (8 * MIB))  # for which the idle upload goes
    with pytest.raises(RequestError, match="UNKNOWN_CONTEXT"):
        await owned.decode_arguments(given)
    given = {"files": {"a": {"$upload": name(b"2" * (8 * MIB))}}}
    with pytest.raises(RequestError, match="NO_ROOM"):
        await owned.decode_arguments(given)
    assert room.used == 8 * MIB
    uploads.close()
    assert room.used == 0
