"""Uploads as contexts: decoded in a process of their own, shared by sessions in templates."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import repl_env
import repl_sandbox
import repl_server
from repl_env.common import binary_json
from repl_env.env.environment import REPLEnvironment
from repl_env.env.options import check_name
from repl_env.episode import contexts
from repl_env.episode.contexts import ContextPart, Preview, StoredContext, preview_share
from repl_env.episode.sandboxes import SandboxProvider, SandboxSettings
from repl_env.models import REPLObservation
from repl_sandbox import AsyncSandbox
from repl_sandbox.errors import SandboxClosed
from repl_sandbox.host import shared_objects
from repl_sandbox.host.shared_objects import SharedObjects

from .decoder_main import Type, decoded
from .protocol import UploadReference, validation_error
from .quotas import Clock
from .tenants import RequestError, Tenant, draining_error
from .uploads import (
    PartialUpload,
    Spool,
    UploadDropped,
    UploadQuota,
    UploadStore,
    unknown_upload_error,
)

# Decode large uploads for a template, in a separate process (`decoder_main.py`).

# The slowest content, JSON of small objects, is decoded at 15 MB per second; a busy machine may
# take four times as long.
_SECONDS = 30.0
_BYTES_PER_SECOND = 4 << 20
# Upper bound of the memory of a value in this process, per byte of its upload.
_MOST_PER_BYTE = {"text": 4, "bytes": 1, "json": 32, "table": 1}


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

    def decoded(self) -> contexts.Value:
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
        *("-s", "-S", "-P", "-m", "repl_server.decoder_main"),
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


# `SharedTemplates`: decoded uploads in template processes that sessions share.
#
# Uploads of a mebibyte or more, which one reset names together, get a template process. The first
# session with these uploads starts the template, and later ones are forked from it.

# Bytes of uploads, by type, that justify a process and a template. Smaller uploads are decoded in
# this process and copied into each session. Parsing JSON takes as long as copying four times the
# text.
WORTH_SHARING = {"text": 1 << 20, "bytes": 1 << 20, "json": 1 << 18}
# Memory of a template beside its objects: page tables, and pages copied after the fork.
_TEMPLATE_BYTES = 4 << 20
# Seconds that an unused template is kept: an episode of the next group may use it.
_IDLE_S = 60.0
# Concurrent decoder processes. Each takes a processor, and memory outside all quotas until it ends.
_MAX_CONCURRENT = 2

Named: TypeAlias = tuple[tuple[str, UploadReference], ...]


def worth_sharing(named: Iterable[tuple[UploadReference, PartialUpload]]) -> bool:
    """Return whether these uploads together justify a template.

    A template has no library that could read a table, so tables are read by each session.
    """
    found = tuple(named)
    if any(each.type == "table" for each, _ in found):
        return False
    return sum(upload.size / WORTH_SHARING[each.type] for each, upload in found) >= 1


@dataclass(frozen=True, slots=True)
class TemplateKey:
    """Identifies a template: resets with equal keys share one."""

    tenant: Tenant
    source: SandboxProvider
    references: Named
    mode: Preview
    preview_length: int


class SharedTemplate:
    """A sandbox whose sessions begin with the decoded variables of `key`."""

    def __init__(
        self, key: TemplateKey, uploads: tuple[PartialUpload, ...], templates: SharedTemplates
    ) -> None:
        self.key = key
        self.uploads: tuple[PartialUpload, ...] = ()
        self.set_uploads(uploads)
        self.parts: tuple[ContextPart, ...] = ()
        self.sandbox: AsyncSandbox | None = None
        self.users = 0  # resets in progress
        self.at = 0.0  # time of the last use
        self._templates = templates
        self.reservation = templates.quota.reserve(key.tenant, self)
        self.creation = asyncio.create_task(templates.make(self))
        # Retrieves the exception even if every reset that waited has been cancelled.
        self.creation.add_done_callback(lambda made: made.cancelled() or made.exception())

    def set_uploads(self, uploads: tuple[PartialUpload, ...]) -> None:
        """Use these uploads from now on: a deleted upload may have been sent again."""
        for upload in self.uploads:
            upload.users.discard(self)
        self.uploads = uploads
        for upload in uploads:
            upload.users.add(self)

    @property
    def busy(self) -> bool:
        """True if the template is being created, or has resets or sessions."""
        if self.users or not self.creation.done():
            return True
        return self.sandbox is not None and self.sandbox.statistics().open > 0

    def evict(self) -> None:
        """Close the template. Idempotent."""
        self._templates.drop(self)


class SharedTemplates:
    """The templates of all tenants, accounted in `quota`; `sweep` closes unused ones."""

    def __init__(self, quota: UploadQuota, clock: Clock = time.monotonic) -> None:
        self.quota = quota
        self._clock = clock
        self.made = 0  # templates created so far
        self._templates: dict[TemplateKey, SharedTemplate] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        # One creation per tenant at a time, so that one tenant does not delay all others.
        self._tenant_locks: WeakValueDictionary[Tenant, asyncio.Lock] = WeakValueDictionary()

    def __iter__(self) -> Iterator[SharedTemplate]:
        return iter(tuple(self._templates.values()))

    def __len__(self) -> int:
        return len(self._templates)

    @asynccontextmanager
    async def lease(
        self, key: TemplateKey, uploads: tuple[PartialUpload, ...]
    ) -> AsyncIterator[SharedTemplate]:
        """The template of `key`, created from `uploads` if it does not exist.

        Raises:
            RequestError: VALIDATION_ERROR, UNKNOWN_CONTEXT, TOO_LARGE, QUOTA_EXCEEDED, NO_ROOM,
                DRAINING.
        """
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = SharedTemplate(key, uploads, self)
        template.set_uploads(uploads)
        template.users += 1
        try:
            await _made(template)
            yield template
        finally:
            template.users -= 1
            template.at = self._clock()
            # Touched first, so evicted first: a template can be made again, its uploads cannot.
            for reservation in (template.reservation, *(each.reservation for each in uploads)):
                self.quota.touch(reservation)

    async def make(self, template: SharedTemplate) -> None:
        """Decode the uploads of a template, and start its process."""
        key, size = template.key, sum(each.size for each in template.uploads)
        try:
            # The values take at least the size of the uploads; the rest is known after decoding.
            self.quota.grow(template.reservation, size + _TEMPLATE_BYTES)
            turn = self._tenant_locks.setdefault(key.tenant, asyncio.Lock())
            async with turn, self._slots, self._decode(template, size) as found:
                self.quota.grow(template.reservation, max(0, found.bytes - size))
                template.parts = found.parts
                template.sandbox = await key.source.make_async(
                    lambda sandbox: sandbox.with_parcel(found.parcel)
                )
                self.made += 1
        except BaseException:
            template.evict()
            raise

    def _decode(
        self, template: SharedTemplate, size: int
    ) -> AbstractAsyncContextManager[DecodedVariables]:
        key = template.key
        named = zip(key.references, template.uploads, strict=True)
        return decode_uploads(
            [UploadedVariable(name, each.type, upload.content) for (name, each), upload in named],
            mode=key.mode,
            length=key.preview_length,
            memory=size + self.quota.available(key.tenant, template.reservation),
            spend=self.quota.allowance(key.tenant).spend_cpu,
        )

    def drop(self, template: SharedTemplate) -> None:
        """Forget a template, and close its sandbox."""
        if self._templates.get(template.key) is template:
            del self._templates[template.key]
        template.set_uploads(())
        self.quota.shrink(template.reservation)
        sandbox, template.sandbox = template.sandbox, None
        if sandbox is not None:
            closing = asyncio.create_task(sandbox.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def sweep(self) -> None:
        """Close templates that have been unused for _IDLE_S."""
        now = self._clock()
        for template in self:
            if template.busy:
                template.at = now
            elif now - template.at > _IDLE_S:
                template.evict()

    async def close(self) -> None:
        """Close all templates, and cancel the creation of others."""
        creations = [template.creation for template in self]
        for creation in creations:
            creation.cancel()
        await asyncio.gather(*creations, return_exceptions=True)
        for template in self:
            template.evict()
        await asyncio.gather(*self._closing)


async def _made(template: SharedTemplate) -> None:
    try:
        await asyncio.shield(template.creation)
    except asyncio.CancelledError:
        if template.creation.cancelled():
            raise draining_error() from None
        raise


# `TenantUploads`: performs resets that name uploads of a tenant as contexts or files.

_References: TypeAlias = Mapping[str, UploadReference]


@dataclass(frozen=True, slots=True)
class TenantUploads:
    """The uploads of `tenant`, for resets of its sessions."""

    tenant: Tenant
    uploads: UploadStore
    templates: SharedTemplates

    async def reset(
        self, environment: REPLEnvironment, arguments: Mapping[str, Any]
    ) -> REPLObservation:
        """Call `environment.reset_async` with decoded arguments.

        Raises:
            RequestError: UNKNOWN_CONTEXT; VALIDATION_ERROR, naming the variable or the field;
                TOO_LARGE, QUOTA_EXCEEDED or NO_ROOM.
            Exception: any error of `reset_async`.
        """
        async with self._given(arguments) as given:
            references: _References = given.pop("uploads", None) or {}
            _check(references, environment.settings.tools)
            if not worth_sharing(self._named(references)):
                return await environment.reset_async(**await self._inline(references, given))
            try:
                return await self._shared(environment, references, given)
            except SandboxClosed:
                # The template died since its last use; the retry creates another one.
                return await self._shared(environment, references, given)

    async def decode_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Decode reset arguments for a custom environment, with uploads among the contexts.

        Raises:
            RequestError: as `reset`.
        """
        async with self._given(arguments) as given:
            return await self._inline(given.pop("uploads", None) or {}, given)

    async def _shared(
        self, environment: REPLEnvironment, references: _References, given: Mapping[str, Any]
    ) -> REPLObservation:
        """Reset in a session that is forked from the template of these uploads."""
        settings = environment.settings
        key = TemplateKey(
            self.tenant,
            environment.sandbox_provider,
            tuple(references.items()),
            settings.preview,
            settings.context_preview_length,
        )
        uploads = tuple(upload for _, upload in self._named(references))
        async with self.templates.lease(key, uploads) as template:
            rest = {name: value for name, value in given.items() if name != "contexts"}
            rest["context"] = _context(template, given, settings.context)
            try:
                return await environment.reset_async(**rest)
            except SandboxClosed:
                template.evict()
                raise

    async def _inline(self, references: _References, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, with the uploads decoded into the contexts."""
        items = [
            UploadedVariable(name, reference.type, upload.content)
            for name, (reference, upload) in zip(references, self._named(references), strict=True)
        ]
        self.uploads.quota.check(self.tenant, sum(item.max_bytes for item in items))
        values = {item.name: await asyncio.to_thread(item.decoded) for item in items}
        named = given.get("contexts") or {}
        here = {*named, contexts.NAME} if given.get("context") is not None else {*named}
        for twice in values.keys() & here:
            raise validation_error(f"data.uploads.{twice}", "a context has the same name")
        found = dict(given)
        if contexts.NAME in values:
            found["context"] = values.pop(contexts.NAME)
        if values:
            found["contexts"] = {**named, **values}
        return found

    def _named(self, references: _References) -> list[tuple[UploadReference, PartialUpload]]:
        return [(each, self.uploads.get(self.tenant, each.sha256)) for each in references.values()]

    @asynccontextmanager
    async def _given(self, arguments: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The arguments, with bytes in place of the uploads that files name.

        Inside the block the files count twice: as uploads, and as bytes.
        """
        given = await _decoded(arguments)
        named = _files(given.get("files"))
        found = {sha256: self.uploads.get(self.tenant, sha256) for sha256 in set(named.values())}
        with self.uploads.hold(self.tenant, found.values()):
            data = {sha256: await _read(upload) for sha256, upload in found.items()}
            if named:
                files = {path: data[sha256] for path, sha256 in named.items()}
                given["files"] = {**given["files"], **files}
            yield given


async def _decoded(arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return await binary_json.decode_async(arguments)
    except binary_json.WireValueError as error:
        raise validation_error(".".join(("data", *error.position)), error.problem) from None


def _check(references: _References, tools: Mapping[str, object]) -> None:
    try:
        for name in references:
            check_name(name, "uploads", tools)
    except ValueError as error:
        raise validation_error("data.uploads", str(error).removeprefix("uploads: ")) from None


def _context(
    template: SharedTemplate, given: Mapping[str, Any], default: contexts.Given | None
) -> contexts.Context:
    """The context of a reset in a session of `template`."""
    key, sandbox = template.key, template.sandbox
    resolve = partial(contexts.resolve, mode=key.mode, preview_length=key.preview_length)
    return resolve(
        given.get("context"),
        given.get("contexts"),
        default,
        sandbox_provider=None if sandbox is None else SandboxProvider(sandbox, SandboxSettings()),
        preset=template.parts,
    )


def _files(files: object) -> dict[str, str]:
    """Hashes of uploads, by the path of the file that names them."""
    if not isinstance(files, Mapping):
        return {}
    hashes = {path: binary_json.upload_of(value) for path, value in files.items()}
    return {path: sha256 for path, sha256 in hashes.items() if sha256 is not None}


async def _read(upload: PartialUpload) -> bytes:
    try:
        return await asyncio.to_thread(upload.content.read)
    except UploadDropped:
        raise unknown_upload_error(upload.key[1]) from None
