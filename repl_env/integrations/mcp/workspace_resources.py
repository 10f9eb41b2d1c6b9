"""Files of a session's workspace as resources of the Model Context Protocol.

A file `a/b.txt` is the resource `workspace:///a/b.txt`, percent-encoded byte by byte.
"""

from __future__ import annotations

import base64
import os
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from mcp_types import (
    INVALID_PARAMS,
    BlobResourceContents,
    ListResourcesResult,
    ReadResourceResult,
    Resource,
    TextResourceContents,
)

from repl_env.common.values import replace_surrogates
from repl_env.errors import NotReset
from repl_env.integrations.mcp.mcp_messages import BadMessage
from repl_env.integrations.mcp.tool_calls import ToolCalls

SCHEME = "workspace:///"
# Bytes of a file that is read: a message carries all of it, and as base64 a third more.
MAX_BYTES = 16 << 20
# Entries of a listing, directories included, and of one page of it.
MAX_ENTRIES, PAGE = 100_000, 1000


async def list_resources(calls: ToolCalls | None, cursor: str | None) -> ListResourcesResult:
    """Return a page of the regular files; none without an episode. `cursor`: of the page before.

    Raises:
        BadMessage: the cursor is of no page.
    """
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
        raise BadMessage(INVALID_PARAMS, "the cursor is unknown")
    first = int(cursor or 0)
    try:
        found = [] if calls is None else await calls.on_files(_list)
    except NotReset:
        found = []
    files = [file for file in found if file.kind == "file"]
    more = str(first + PAGE) if len(files) > first + PAGE else None
    return ListResourcesResult(
        resources=[_resource(file) for file in files[first : first + PAGE]], next_cursor=more
    )


async def _list(files: Any) -> Any:
    return await files.list(limit=MAX_ENTRIES)


def _resource(file: Any) -> Resource:
    return Resource(uri=_uri(file.path), name=replace_surrogates(file.path), size=file.size)


async def read_resource(calls: ToolCalls | None, uri: str) -> ReadResourceResult:
    """Return the content of a file: as text if it is UTF-8, else as base64.

    Raises:
        BadMessage: there is no such file, or it cannot be read.
    """
    if not uri.startswith(SCHEME):
        raise _unreadable(uri, f"resources begin with {SCHEME}")
    path = os.fsdecode(unquote_to_bytes(uri.removeprefix(SCHEME)))
    if calls is None:
        raise _unreadable(uri, "there is no session")
    try:
        content = await calls.on_files(lambda files: files.get(path, limit=MAX_BYTES))
    except NotReset:
        raise _unreadable(uri, "there is no session yet; call `execute` or `reset`") from None
    except OSError as error:
        # An error without the path of the workspace is the host's own.
        if not isinstance(error.filename, str):
            raise
        raise _unreadable(uri, error.strerror or "it cannot be read") from None
    except ValueError as error:
        raise _unreadable(uri, str(error)) from None
    return ReadResourceResult(contents=[_contents(uri, content)])


def _contents(uri: str, content: bytes) -> TextResourceContents | BlobResourceContents:
    # By the content, and never by the name, which the session chooses: a client shows no page.
    try:
        return TextResourceContents(uri=uri, mime_type="text/plain", text=content.decode())
    except UnicodeDecodeError:
        blob = base64.b64encode(content).decode()
        return BlobResourceContents(uri=uri, mime_type="application/octet-stream", blob=blob)


def _uri(path: str) -> str:
    return SCHEME + quote(os.fsencode(path))


def _unreadable(uri: str, reason: str) -> BadMessage:
    return BadMessage(INVALID_PARAMS, f"{uri[:200]} cannot be read: {reason[:500]}")
