"""Files of a session as resources, through the SDK's own client and server."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from repl_env.env.environment import REPLEnvironment
from repl_env.integrations import mcp
from repl_env.integrations.mcp import EnvironmentToolSession, ToolCalls, server

CODE = r"""
import os
os.makedirs('d/e'); open('d/e/page.html', 'w').write('<script>'); open(b'\xff\n', 'w').write('odd')
open('raw', 'wb').write(b'\xff\x00'); open('empty', 'w').close(); os.symlink('/etc/passwd', 'link')
open('gr\u00fcn %', 'w').write('gr\u00fcn'); open('large', 'wb').truncate(17 << 20)
"""


@asynccontextmanager
async def client(sandbox) -> AsyncIterator[Client]:
    environment = REPLEnvironment(sandbox=sandbox)
    try:
        calls = ToolCalls(EnvironmentToolSession(environment))
        async with Client(server("what it is", calls)) as asking:
            yield asking
    finally:
        await environment.close_async()


async def test_regular_files_are_listed_and_read_by_their_content(sandbox) -> None:
    async with client(sandbox) as asking:
        assert (await asking.list_resources()).resources == []
        with pytest.raises(MCPError, match="no session yet"):
            await asking.read_resource("workspace:///d")
        assert not (await asking.call_tool("execute", {"code": CODE})).is_error
        found = (await asking.list_resources()).resources
        assert {each.uri: (each.name, each.size) for each in found} == {
            "workspace:///d/e/page.html": ("d/e/page.html", 8),
            "workspace:///empty": ("empty", 0),
            "workspace:///gr%C3%BCn%20%25": ("gr\u00fcn %", 5),
            "workspace:///large": ("large", 17 << 20),
            "workspace:///raw": ("raw", 2),
            "workspace:///%FF%0A": ("?\n", 3),
        }
        contents = {
            each.uri: (await asking.read_resource(each.uri)).contents[0]
            for each in found
            if each.name != "large"
        }
        texts = {uri: each.text for uri, each in contents.items() if hasattr(each, "text")}
        assert sorted(texts.values()) == ["", "<script>", "gr\u00fcn", "odd"]
        assert {each.mime_type for each in contents.values() if hasattr(each, "text")} == {
            "text/plain"
        }
        raw = contents["workspace:///raw"]
        assert base64.b64decode(raw.blob) == b"\xff\x00"
        assert raw.mime_type == "application/octet-stream"


URIS = [
    "workspace:///missing", "workspace:///d", "workspace:///link", "workspace:///../etc/passwd",
    "workspace:///%2e%2e/etc/passwd", "workspace:////etc/passwd", "file:///etc/passwd",
    "workspace://host/d", "/etc/passwd", "workspace:///", "workspace:///%00", "workspace:///large",
]  # fmt: skip


async def test_nothing_else_is_read(sandbox) -> None:
    async with client(sandbox) as asking:
        await asking.call_tool("execute", {"code": CODE})
        for uri in URIS:
            with pytest.raises(MCPError) as refused:
                await asking.read_resource(uri)
            assert refused.value.code == -32602, uri
            assert "root:" not in str(refused.value)


async def test_a_long_list_has_pages(sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "RESOURCES_PER_PAGE", 4)
    async with client(sandbox) as asking:
        await asking.call_tool("execute", {"code": "for n in range(9): open(f'{n}', 'w').close()"})
        names, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            page = await asking.list_resources(cursor=cursor)
            names += [each.name for each in page.resources]
            cursor, pages = page.next_cursor, pages + 1
        assert (names, pages) == (list("012345678"), 3)
        for wrong in ("x", "-1", "\u0663", "9" * 20):
            with pytest.raises(MCPError, match="cursor"):
                await asking.list_resources(cursor=wrong)
