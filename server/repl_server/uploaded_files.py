"""`UploadedFiles`: uploads that a reset names as files, in memory while it writes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from repl_env import wire_values

from .arriving import Forgotten
from .owners import Owner
from .refusal import Refusal
from .room import Room
from .uploads import Upload, Uploads


@dataclass(frozen=True, slots=True)
class UploadedFiles:
    """Reads files out of `uploads`, counted in `room`."""

    uploads: Uploads
    room: Room

    @asynccontextmanager
    async def read(self, owner: Owner, given: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The arguments of a reset, with the bytes in place of the uploads that its files name.

        They count twice while this goes on: as they were sent, and as they are read. Each is read
        once, whatever number of paths it has.

        Raises:
            Refusal: UNKNOWN_CONTEXT; QUOTA_EXCEEDED or NO_ROOM.
        """
        named = _named(given.get("files"))
        if not named:
            yield dict(given)
            return
        found = {sha256: self.uploads.get(owner, sha256) for sha256 in set(named.values())}
        reading = _Reading()
        holding = self.room.hold(owner, reading)
        try:
            reading.begin(found)
            self.room.take(holding, sum(upload.size for upload in found.values()))
            data = {name: await _read(upload) for name, upload in found.items()}
            files = {path: data[sha256] for path, sha256 in named.items()}
            yield {**given, "files": {**given["files"], **files}}
        finally:
            reading.end(found)
            self.room.give_back(holding)


class _Reading:
    """Uses uploads, so that they are not given up, and is not given up itself."""

    busy = True

    def begin(self, uploads: Mapping[str, Upload]) -> None:
        for upload in uploads.values():
            upload.users.add(self)

    def end(self, uploads: Mapping[str, Upload]) -> None:
        for upload in uploads.values():
            upload.users.discard(self)

    def forget(self) -> None:
        raise AssertionError("what is busy is not given up")


def _named(files: object) -> dict[str, str]:
    """The hashes of uploads by the paths of files."""
    if not isinstance(files, Mapping):
        return {}
    hashes = {path: wire_values.upload_of(value) for path, value in files.items()}
    return {path: sha256 for path, sha256 in hashes.items() if sha256 is not None}


async def _read(upload: Upload) -> bytes:
    try:
        return await asyncio.to_thread(upload.content.read)
    except Forgotten:
        raise Refusal(
            "UNKNOWN_CONTEXT", "The upload was forgotten.", sha256=upload.key[1]
        ) from None
