"""`TenantUploads`: performs resets that name uploads of a tenant as contexts or files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from repl_env.common import binary_json
from repl_env.env.environment import REPLEnvironment
from repl_env.env.options import check_name
from repl_env.episode import contexts
from repl_env.episode.sandbox_provider import SandboxProvider, SandboxSettings
from repl_env.models import REPLObservation
from repl_sandbox.errors import SandboxClosed

from ..protocol.upload_reference import UploadReference
from ..protocol.validation import validation_error
from ..tenants.tenant import Tenant
from .decoder_process import UploadedVariable
from .partial_upload import PartialUpload, unknown_upload_error
from .shared_templates import SharedTemplate, SharedTemplates, TemplateKey, worth_sharing
from .spool import UploadDropped
from .upload_store import UploadStore

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
