"""Decode large uploads for a template, in a separate process (`decoder_main.py`)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import repl_env
import repl_sandbox
import repl_server
from repl_env.episode.contexts import ContextPart, StoredContext, preview_share
from repl_env.episode.previews import Preview
from repl_sandbox.types import JSON
from repl_sandbox.zygote.client import shared_objects
from repl_sandbox.zygote.client.shared_objects import SharedObjects

from ..protocol.request_error import RequestError
from ..protocol.upload_decoding import Type, decoded
from .spool import Spool, UploadDropped

# The slowest content, JSON of small objects, is decoded at 15 MB per second; a busy machine may
# take four times as long.
_SECONDS = 30.0
_BYTES_PER_SECOND = 4 << 20
# Upper bound of the memory of a value in this process, per byte of its upload.
_MOST_PER_BYTE = {"text": 4, "bytes": 1, "json": 32}


@dataclass(frozen=True, slots=True)
class UploadedVariable:
    """A variable, and the upload that holds its value."""

    name: str
    type: Type
    content: Spool

    @property
    def max_bytes(self) -> int:
        """Upper bound of the memory of the value in this process."""
        return self.content.size * _MOST_PER_BYTE[self.type]

    def decoded(self) -> str | bytes | JSON:
        """Decode the value in this process.

        Raises:
            RequestError: VALIDATION_ERROR, the upload is of another type; UNKNOWN_CONTEXT, the
                upload was dropped.
        """
        try:
            return decoded(self.content.read(), self.type)
        except ValueError as error:
            raise invalid_content_error(self.name, str(error)) from None
        except UploadDropped:
            raise _dropped_error() from None


@dataclass(frozen=True, slots=True)
class DecodedVariables:
    """Decoded variables in a parcel. `bytes`: their memory in a template."""

    parcel: SharedObjects
    parts: tuple[ContextPart, ...]
    bytes: int


@asynccontextmanager
async def decode_uploads(
    items: Sequence[UploadedVariable],
    *,
    mode: Preview,
    length: int,
    memory: int,
    spend: Callable[[float], None],
) -> AsyncIterator[DecodedVariables]:
    """Decode `items` in a separate process; the parcel is closed at the end of the block.

    `length`: characters of all previews together. `memory`: bytes that the values may take. `spend`
    gets the CPU seconds of the process, also after an error.

    Raises:
        RequestError: VALIDATION_ERROR, naming the variable; TOO_LARGE; UNKNOWN_CONTEXT, an upload
            was dropped.
    """
    with ExitStack() as files:
        parcel = files.enter_context(shared_objects.empty())
        try:
            fds = [files.enter_context(item.content.file()) for item in items]
        except UploadDropped:
            raise _dropped_error() from None
        job = {
            "memory": memory,
            "preview": mode,
            "each": preview_share([item.name for item in items], length),
            "parcel": parcel.fd,
            "objects": [
                (item.name, item.type, fd, item.content.size)
                for item, fd in zip(items, fds, strict=True)
            ],
        }
        size = sum(item.content.size for item in items)
        seconds = _SECONDS + size / _BYTES_PER_SECOND
        answer = await _ask(job, (parcel.fd, *fds), seconds, spend)
        parcel.manifest = tuple(answer["manifest"])
        parcel.names = tuple(item.name for item in items)
        parts = tuple(
            _part(item, described) for item, described in zip(items, answer["parts"], strict=True)
        )
        yield DecodedVariables(parcel, parts, answer["bytes"])


def _part(item: UploadedVariable, described: dict[str, Any]) -> ContextPart:
    def read() -> Any:
        return decoded(item.content.read(), item.type)

    value = StoredContext(described["type"], described["shown"], read)
    return ContextPart(item.name, value, described["length"], described["unit"])


async def _ask(
    job: dict[str, Any], fds: tuple[int, ...], seconds: float, spend: Callable[[float], None]
) -> dict[str, Any]:
    began, spent = time.monotonic(), None
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-s", "-S", "-P", "-m", "repl_server.uploads.decoder_main"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=fds,
        env={"PYTHONPATH": os.pathsep.join(_roots())},
    )
    try:
        async with asyncio.timeout(seconds):
            text, _ = await process.communicate(json.dumps(job).encode())
        if process.returncode:
            # Killed by the kernel for its memory: the process reports every other error itself.
            raise RequestError("TOO_LARGE", "the uploads could not be decoded")
        answer = json.loads(text)
        spent = answer["cpu_seconds"]
        return _checked(answer)
    except TimeoutError:
        raise RequestError("TOO_LARGE", "decoding the uploads takes too long") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        spend(time.monotonic() - began if spent is None else spent)


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if answer.get("too_large"):
        raise RequestError("TOO_LARGE", "the decoded uploads take too much memory")
    if "wrong" in answer:
        raise invalid_content_error(answer["wrong"], answer["problem"])
    return answer


def invalid_content_error(variable: str, problem: str) -> RequestError:
    """The error for an upload that is not of its type."""
    place = ["data", "uploads", variable]
    errors = [{"type": "value_error", "loc": place, "msg": problem}]
    return RequestError("VALIDATION_ERROR", f"{'.'.join(place)}: {problem}", errors=errors)


def _dropped_error() -> RequestError:
    """The error for an upload that was dropped before it was read."""
    return RequestError("UNKNOWN_CONTEXT", "the upload was dropped")


def _roots() -> list[str]:
    """Directories of the project's packages, for an interpreter without site-packages."""
    packages = (repl_server, repl_env, repl_sandbox)
    return [str(Path(package.__file__ or "").parents[1]) for package in packages]
