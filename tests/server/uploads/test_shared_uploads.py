"""Resets that name uploads: decoded once, in memory once, each tenant's own, gone when unused."""

from __future__ import annotations

import asyncio
import base64
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import psutil
import pytest

from repl_env import REPLEnv
from repl_env.env.environment import REPLEnvironment
from repl_env.episode.sandboxes import SandboxProvider
from repl_env.models import Action, REPLAction
from repl_sandbox import AsyncSandbox
from repl_server.contexts import SharedTemplates, TenantUploads, UploadedVariable, decode_uploads
from repl_server.protocol import UploadReference
from repl_server.quotas import QuotaRegistry
from repl_server.settings import Settings
from repl_server.tenants import RequestError, Tenant
from repl_server.uploads import UploadQuota, UploadStore
from tests.internals import zygote_pid
from tests.manual_clock import Clock
from tests.server.conftest import Peer, ask, peer, serving
from tests.server.uploads.upload_clients import OTHER, Foreign, Told, send, session, shown
from tests.server.uploads.upload_data import name
from tests.waiting import PATIENCE, until

MIB = 1 << 20

TEXT = "the quick brown fox jumps over the lazy dog, déjà vu\n" * (MIB // 50)
JSON = [{"id": i, "text": f"number {i}", "half": i / 2} for i in range(20_000)]
LARGE: dict[str, tuple[str, Any, bytes]] = {
    "text": ("text", TEXT, TEXT.encode()),
    "wide": ("text", "漢字😀" * 150_000, ("漢字😀" * 150_000).encode()),
    "bytes": ("bytes", b"\x00\xff" * MIB, b"\x00\xff" * MIB),
    "list": ("json", JSON, json.dumps(JSON).encode()),
    "dict": ("json", {"rows": JSON}, json.dumps({"rows": JSON}, indent=1).encode()),
    "string": ("json", 'a"\n' * 200_000, json.dumps('a"\n' * 200_000).encode()),
}
SMALL: dict[str, tuple[str, Any, bytes]] = {
    "text": ("text", "kurz: ü", "kurz: ü".encode()),
    "nothing": ("text", "", b""),
    "bytes": ("bytes", b"\xff", b"\xff"),
    "json": ("json", {"a": [1, None]}, b'{"a": [1, null]}'),
}


@pytest.fixture(scope="module")
def server():
    with serving({"max_sessions": 16, "recovery": "snapshot"}) as server:
        yield server


def named(server, **given: tuple[str, bytes]) -> dict[str, Any]:
    """References to these, which are uploaded."""
    return {
        variable: {"sha256": send(server, data), "type": kind}
        for variable, (kind, data) in given.items()
    }


# Type, length, and a part that distinguishes values.
ABOUT = "type(context).__name__, len(context), hashlib.sha256(repr(context).encode()).hexdigest()"


# ── what a session sees ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [*LARGE.values(), *SMALL.values()],
    ids=[*LARGE, *(f"small {each}" for each in SMALL)],
)
def test_an_uploaded_context_equals_one_in_the_request(
    server, kind: str, value: Any, data: bytes
) -> None:
    given = {"$bytes": base64.b64encode(value).decode()} if kind == "bytes" else value
    code = f"import hashlib\n{ABOUT}"
    with session(server) as one:
        uploaded = one.reset(uploads=named(server, context=(kind, data)), task_prompt="go")
        there = shown(one, code)
        inline = one.reset(context=given, task_prompt="go")

        for field in ("context_preview", "context_length", "available_variables", "result"):
            assert uploaded["observation"][field] == inline["observation"][field]
        assert shown(one, code) == there


def test_uploads_combine_with_inline_contexts(server) -> None:
    uploads = named(server, doc=("text", TEXT.encode()), table=("json", LARGE["list"][2]))
    with session(server) as one:
        told = one.reset(context="short", contexts={"more": [1]}, uploads=uploads)["observation"]

        assert told["available_variables"][:4] == ["context", "more", "doc", "table"]
        assert told["context_preview"].startswith("context: short\nmore: [1]\ndoc: the quick")
        assert len(told["context_preview"]) <= 500
        assert shown(one, "context, more, len(doc), len(table)") == (
            f"('short', [1], {len(TEXT)}, {len(JSON)})"
        )


def test_a_session_on_an_upload_rolls_back_and_branches_as_any_other(server) -> None:
    uploads = named(server, context=("text", TEXT.encode()))
    with session(server) as one:
        one.reset(uploads=uploads, contexts={"small": "s"})
        one.run("mine = 1")
        branched = one.ask("branch", {})["data"]
        with peer(server, named=True) as other:
            assert other.resume(branched["token"])["resumed"]
            assert shown(other, "mine, len(context), small") == f"(1, {len(TEXT)}, 's')"
            one.run("mine = 2\nimport os\nos._exit(1)")
            assert shown(one, "mine, len(context), small") == f"(1, {len(TEXT)}, 's')"
            other.send("close", id="close")


async def test_the_client_of_this_package_uploads_large_values(server) -> None:
    heard: list[tuple[int, int]] = []
    async with REPLEnv(server.url, connect_timeout_s=PATIENCE) as env:
        given = {"doc": TEXT, "rows": JSON, "raw": b"\xff" * MIB}
        await env.reset(context="short", contexts=given, on_upload=lambda *sent: heard.append(sent))
        step = await env.execute("context, len(doc), rows[-1]['id'], set(raw)")
        told = f"('short', {len(TEXT)}, {len(JSON) - 1}, {{255}})"
        assert step.observation.result.value == told
    assert heard[-1][0] == heard[-1][1] > 2 * MIB


def test_a_reset_by_http_takes_uploads_as_well(server) -> None:
    uploads = named(server, context=("text", TEXT.encode()))
    status, headers, told = ask(server, "POST", "/reset", {"uploads": uploads}, X_Session_Id="new")
    assert (status, told["observation"]["context_length"]) == (200, len(TEXT))
    session = {"X_Session_Id": headers["X-Session-Id"]}
    action = {"action": {"code": "len(context)"}}
    told = ask(server, "POST", "/step", action, **session)[2]
    assert told["observation"]["result"]["value"] == str(len(TEXT))
    assert ask(server, "DELETE", "/session", **session)[0] == 204


# ── once ─────────────────────────────────────────────────────────────────────────────────────────


def private(process: psutil.Process) -> int:
    """Bytes that no other process maps (proc_pid_smaps(5)); none of one that has ended."""
    with (
        suppress(FileNotFoundError, ProcessLookupError),
        open(f"/proc/{process.pid}/smaps_rollup", encoding="ascii") as rollup,
    ):
        return 1024 * sum(int(row.split()[1]) for row in rollup if row.startswith("Private_"))
    return 0


def test_concurrent_sessions_share_one_template_and_its_memory(server) -> None:
    size = 40 * MIB
    uploads = named(server, context=("text", b"x" * size))
    before = {each.pid for each in psutil.Process().children(recursive=True)}
    made = server.manager.templates.made

    def use(one: Peer) -> Any:
        one.reset(uploads=uploads)
        return shown(one, "context.count('y') + len(context)")

    with ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        peers = [stack.enter_context(session(server)) for _ in range(8)]
        assert list(threads.map(use, peers)) == [str(size)] * 8
        assert server.manager.templates.made == made + 1
        processes = [
            each for each in psutil.Process().children(recursive=True) if each.pid not in before
        ]
        # All sessions' processes, and the template's, which has what was never written to.
        assert len(processes) > 8
        assert sum(map(private, processes)) < 2 * size


def test_a_template_that_died_is_replaced(server) -> None:
    uploads = named(server, context=("text", b"another\n" * MIB))
    with session(server) as one:
        one.reset(uploads=uploads)
        (template,) = [
            each
            for each in server.manager.templates
            if each.parts[0].length == 8 * MIB and each.busy
        ]
        zygote = psutil.Process(zygote_pid(template.sandbox.plain))
        sessions = zygote.children(recursive=True)
        zygote.kill()
        assert sessions and psutil.wait_procs(sessions, timeout=PATIENCE)[1] == []
        assert one.refusal("step", {"code": "1"}) == "EPISODE_ABORTED"
        one.reset(uploads=uploads)
        assert shown(one, "len(context)") == str(8 * MIB)


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────

PAD = b'["' + b"x" * MIB + b'", '


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize(
    ("kind", "data", "problem"),
    [
        ("text", b"ab\xff", "not UTF-8 at byte 2: invalid start byte"),
        ("text", b"\xed\xa0\x80", "not UTF-8 at byte 0: invalid continuation byte"),
        ("json", b"[\xff]", "not UTF-8 at byte 1: invalid start byte"),
        ("json", b"", "not JSON: Expecting value"),
        ("json", b"[1,", "not JSON: Expecting value"),
        ("json", b"[1] 2", "not JSON: Extra data"),
        ("json", b"[NaN]", "NaN is not JSON"),
        ("json", b"[-Infinity]", "-Infinity is not JSON"),
        ("json", b"[1e999]", "a number is too large"),
        ("json", b"[" + b"1" * 5000 + b"]", "Exceeds the limit"),
        ("json", b"[" * 201 + b"]" * 201, "this is nested deeper than 200"),
        ("json", b"[" * 100_000, "this is nested deeper than 200"),
        ("json", b"42", "JSON of int, not an object, an array or a string"),
    ],
)
def test_an_upload_of_another_type_is_refused_by_name(
    server, kind: str, data: bytes, problem: str, large: bool
) -> None:
    if large:
        padding = b" " * MIB
        data, problem = (data + padding, problem.replace("not JSON: Expecting value", "not JSON"))
    with session(server) as one:
        told = one.reset(uploads=named(server, odd=(kind, data)))
        assert told["code"] == "VALIDATION_ERROR"
        assert told["errors"][0]["loc"] == ["data", "uploads", "odd"]
        assert told["errors"][0]["msg"].startswith(problem)
        assert one.reset(context="x")["observation"]["context_length"] == 1


@pytest.mark.parametrize(
    "uploads",
    [
        {"context": {"sha256": "x", "type": "text"}},
        {"context": {"sha256": "0" * 64}},
        {"context": {"sha256": "0" * 64, "type": "int"}},
        {"context": {"sha256": "0" * 64, "type": "text", "more": 1}},
        {"context": "0" * 64},
        {"no name": {"sha256": "0" * 64, "type": "text"}},
        {"FINAL": {"sha256": "0" * 64, "type": "text"}},
        {"_": {"sha256": "0" * 64, "type": "text"}},
        {f"v{i}": {"sha256": "0" * 64, "type": "text"} for i in range(257)},
        [],
    ],
    ids=lambda given: str(given)[:60],
)
def test_invalid_references_are_refused(server, uploads: Any) -> None:
    with session(server) as one:
        assert one.reset(uploads=uploads)["code"] == "VALIDATION_ERROR"


@pytest.mark.parametrize("data", [b"x", b"x" * MIB], ids=["small", "large"])
def test_a_variable_that_is_given_twice_is_refused(server, data: bytes) -> None:
    uploads = named(server, context=("text", data))
    with session(server) as one:
        for more in ({"context": "y"}, {"contexts": {"context": "y"}}):
            assert one.reset(uploads=uploads, **more)["code"] == "VALIDATION_ERROR"


@pytest.mark.parametrize("data", [b"mine", b"mine\n" * MIB], ids=["small", "large"])
def test_another_tenant_s_upload_is_unknown(server, data: bytes) -> None:
    uploads = named(server, context=("text", data))
    with session(server) as mine, session(server, OTHER) as theirs:
        assert "observation" in mine.reset(uploads=uploads)
        assert theirs.reset(uploads=uploads)["code"] == "UNKNOWN_CONTEXT"
        send(server, data, OTHER)
        there = set(server.manager.templates)
        assert "observation" in theirs.reset(uploads=uploads)
        # Tenants share no templates: a large upload makes a template for each tenant.
        assert len(set(server.manager.templates) - there) == (len(data) > MIB)


def test_invalid_bytes_are_refused_with_their_position(server) -> None:
    with session(server) as one:
        told = one.reset(files={"a/b": {"$bytes": "x"}})
        assert told["code"] == "VALIDATION_ERROR"
        assert told["errors"][0]["loc"] == ["data", "files", "a/b"]
        one.reset(files={"f": {"$bytes": "/w=="}}, context={"$json": {"$bytes": 1}})
        assert shown(one, "open('f', 'rb').read(), context") == "(b'\\xff', {'$bytes': 1})"


# ── without a server ─────────────────────────────────────────────────────────────────────────────


class Bench:
    """Uploads and templates, with environments to use them."""

    def __init__(self, sandbox: AsyncSandbox, **limits: Any) -> None:
        self.sandbox, self.clock = sandbox, Clock()
        settings = Settings(**limits)
        self.room = UploadQuota(settings.uploads_bytes, QuotaRegistry(settings.quota).meter_of)
        self.uploads = UploadStore(settings, self.room, self.clock)
        self.templates = SharedTemplates(self.room, self.clock)
        self.tenant = Tenant("key", "ann")
        self.owned = TenantUploads(self.tenant, self.uploads, self.templates)

    async def put(self, data: bytes) -> dict[str, UploadReference]:
        async def body():
            yield data

        await self.uploads.put(self.tenant, name(data), None, None, body())
        return {"context": UploadReference(sha256=name(data), type="text")}

    async def begin(self, references: dict[str, UploadReference]) -> REPLEnvironment:
        environment = REPLEnvironment(sandbox=self.sandbox)
        try:
            await self.owned.reset(environment, {"uploads": references})
        except BaseException:
            await environment.close_async()
            raise
        return environment

    async def close(self) -> None:
        await self.templates.close()
        self.uploads.close()
        assert self.room.used == 0


@pytest.fixture
async def sandbox():
    async with AsyncSandbox() as sandbox:
        yield sandbox


def descendants() -> set[int]:
    return {each.pid for each in psutil.Process().children(recursive=True)}


async def test_a_template_is_kept_while_in_use_and_for_some_time_after(sandbox) -> None:
    bench = Bench(sandbox)
    references = await bench.put(b"x" * (2 * MIB))
    environment = await bench.begin(references)
    (template,) = bench.templates

    bench.clock.now += 1000
    bench.templates.sweep()
    assert template in bench.templates
    branch = await environment.branch_async()
    await environment.close_async()
    assert template.busy
    await branch.close_async()
    assert not template.busy
    bench.clock.now += 60
    bench.templates.sweep()
    assert template in bench.templates
    again = await bench.begin(references)
    assert list(bench.templates) == [template]
    await again.close_async()
    bench.clock.now += 60.1
    bench.templates.sweep()
    assert not bench.templates
    await bench.close()


async def test_uploads_in_use_are_not_evicted(sandbox) -> None:
    # Each takes its size twice: as it was sent, and in its template.
    bench = Bench(sandbox, uploads_bytes=25 * MIB)
    first, second = b"1" * (4 * MIB), b"2" * (4 * MIB)
    environment = await bench.begin(await bench.put(first))
    used = bench.room.used
    references = await bench.put(second)

    await (await bench.begin(references)).close_async()
    assert len(bench.templates) == 2
    await bench.put(
        b"3" * (4 * MIB)
    )  # the idle template is evicted for it, not the upload that it is made of
    assert len(bench.templates) == 1
    assert bench.uploads.find(bench.tenant, name(second)) is not None
    with pytest.raises(RequestError, match="NO_ROOM"):
        await bench.put(b"4" * (25 * MIB - used + 1))
    step = await environment.step_async(REPLAction(code="len(context)"))
    assert step.result.value == str(len(first))
    await environment.close_async()
    await bench.put(b"4" * (20 * MIB))
    assert not bench.templates
    await bench.close()


async def test_a_session_that_is_empty_after_a_death_has_the_context_again() -> None:
    async with AsyncSandbox(recovery="restart") as sandbox:
        bench = Bench(sandbox)
        references = await bench.put(b"x" * (2 * MIB))
        environment = REPLEnvironment(sandbox=sandbox)
        given = {"contexts": {"small": "s"}, "uploads": references}
        await bench.owned.reset(environment, given)

        await environment.step_async(REPLAction(code="mine = 1\nimport os\nos._exit(1)"))
        code = "'mine' in globals(), len(context), small"
        step = await environment.step_async(REPLAction(code=code))
        assert step.result.value == f"(False, {2 * MIB}, 's')"
        await environment.close_async()
        await bench.close()


async def test_a_deleted_upload_is_unknown_at_once_and_its_sessions_go_on(sandbox) -> None:
    bench = Bench(sandbox)
    references = await bench.put(b"x" * (2 * MIB))
    environment = await bench.begin(references)

    bench.uploads.delete(bench.tenant, references["context"].sha256)
    with pytest.raises(RequestError, match="UNKNOWN_CONTEXT"):
        await bench.begin(references)
    step = await environment.step_async(REPLAction(code="len(context)"))
    assert step.result.value == str(2 * MIB)
    await bench.put(b"x" * (2 * MIB))  # and there again, with the template that is there
    other = await bench.begin(references)
    assert bench.templates.made == 1
    for each in (environment, other):
        await each.close_async()
    await bench.close()


async def test_an_episode_on_an_upload_can_be_saved(sandbox, tmp_path) -> None:
    bench = Bench(sandbox)
    environment = await bench.begin(await bench.put("é".encode() * MIB))
    await environment.step_async(REPLAction(code="x = context[0]"))
    await environment.save_async(tmp_path / "episode")
    await environment.load_async(tmp_path / "episode")
    step = await environment.step_async(REPLAction(code="x, len(context)"))
    assert step.result.value == f"('é', {MIB})"
    await environment.close_async()
    await bench.close()


async def test_closing_ends_templates_in_preparation_and_leaves_nothing(sandbox) -> None:
    bench = Bench(sandbox)
    references = await bench.put(json.dumps(JSON * 20).encode())
    references = {"context": references["context"].model_copy(update={"type": "json"})}
    await sandbox.start()
    before = descendants()
    beginning = asyncio.create_task(bench.begin(references))
    while descendants() <= before and not beginning.done():
        await asyncio.wait([beginning], timeout=0.001)

    await bench.close()
    with pytest.raises(RequestError, match="DRAINING"):
        await beginning
    await until(lambda: descendants() <= before)


async def test_values_that_take_more_memory_than_there_is_are_refused(sandbox) -> None:
    bench = Bench(sandbox)
    references = await bench.put(b"[" + b"[]," * MIB + b"0]")
    content = bench.uploads.get(bench.tenant, references["context"].sha256).content
    spent: list[float] = []
    with pytest.raises(RequestError, match="TOO_LARGE"):
        async with decode_uploads(
            [UploadedVariable("context", "json", content)],
            mode="head",
            length=100,
            memory=20 * MIB,
            spend=spent.append,
        ):
            pass
    assert len(spent) == 1 and spent[0] > 0
    await bench.close()


async def test_an_upload_that_is_deleted_before_it_is_read_is_unknown(sandbox) -> None:
    """A client sends the upload again after this refusal alone."""
    bench = Bench(sandbox)
    references = await bench.put(b"x" * (2 * MIB))
    content = bench.uploads.get(bench.tenant, references["context"].sha256).content
    bench.uploads.delete(bench.tenant, references["context"].sha256)
    item = UploadedVariable("context", "text", content)
    with pytest.raises(RequestError, match="UNKNOWN_CONTEXT"):
        async with decode_uploads([item], mode="head", length=100, memory=8 * MIB, spend=print):
            pass
    with pytest.raises(RequestError, match="UNKNOWN_CONTEXT"):
        item.decoded()
    await bench.close()


def test_an_environment_of_another_kind_is_given_the_values() -> None:
    with serving(environment=Foreign, action=Action, observation=Told) as server:
        uploads = named(server, context=("text", b"abc"), rows=("json", b"[1]"))
        with session(server) as one:
            told = one.reset(uploads=uploads, contexts={"more": {"$bytes": "/w=="}})
            assert told["observation"]["text"] == (
                "[('context', 'abc'), ('contexts', {'more': b'\\xff', 'rows': [1]})]"
            )
            assert one.reset(uploads=uploads, context="y")["code"] == "VALIDATION_ERROR"
            refused = one.reset(uploads=named(server, context=("json", b"[")))
            assert refused["code"] == "VALIDATION_ERROR"


# With equal providers two environments of one server can share.
def test_environments_of_one_provider_share_templates() -> None:
    settings = REPLEnvironment().sandbox_provider.settings
    assert SandboxProvider(None, settings) == REPLEnvironment().sandbox_provider
    assert hash(SandboxProvider(None, settings)) == hash(REPLEnvironment().sandbox_provider)
