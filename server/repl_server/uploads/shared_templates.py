"""`SharedTemplates`: decoded uploads in template processes that sessions share.

Uploads of a mebibyte or more, which one reset names together, get a template process. The first
session with these uploads starts the template, and later ones are forked from it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakValueDictionary

from repl_env.episode.contexts import ContextPart
from repl_env.episode.previews import Preview
from repl_env.episode.sandbox_provider import SandboxProvider
from repl_sandbox import AsyncSandbox

from ..protocol.request_error import draining_error
from ..protocol.upload_reference import UploadReference
from ..quotas.token_bucket import Clock
from ..tenants.tenant import Tenant
from .decoder_process import DecodedVariables, UploadedVariable, decode_uploads
from .partial_upload import PartialUpload
from .upload_quota import UploadQuota

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
    """Return whether these uploads together justify a template."""
    return sum(upload.size / WORTH_SHARING[each.type] for each, upload in named) >= 1


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
        for each in creations:
            each.cancel()
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
