"""`SharedTemplates`: the variables that uploads stand for, in memory once for all sessions with
them.

From a mebibyte on, the uploads that a reset names together get a template process of their own,
made by the first session that asks for them and shared by all that do.
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
from .decoder_process import DecodedVariables, UploadedVariable, packed
from .partial_upload import PartialUpload
from .upload_quota import UploadQuota

# Bytes of uploads, by type, that are worth a process and a template. Less is decoded in place and
# copied into each session. JSON takes as long to parse as four times the text takes to copy.
WORTH_SHARING = {"text": 1 << 20, "bytes": 1 << 20, "json": 1 << 18}
# What a template takes beside its objects: page tables, and what it touches of what it was forked
# with.
_TEMPLATE_BYTES = 4 << 20
# Seconds that it is kept without a user: an episode of the next group may want it.
_KEPT_S = 60.0
# Packed at the same time. Each takes a processor, and memory that no quota counts until it is done.
_AT_ONCE = 2

Named: TypeAlias = tuple[tuple[str, UploadReference], ...]


def worth_sharing(named: Iterable[tuple[UploadReference, PartialUpload]]) -> bool:
    """Whether these uploads together are worth a template."""
    return sum(upload.size / WORTH_SHARING[each.type] for each, upload in named) >= 1


@dataclass(frozen=True, slots=True)
class TemplateKey:
    """Equal for resets that can share a template."""

    owner: Tenant
    source: SandboxProvider
    references: Named
    mode: Preview
    preview_length: int


class SharedTemplate:
    """The variables of `wanted`, decoded, in a sandbox of their own."""

    def __init__(
        self, wanted: TemplateKey, uploads: tuple[PartialUpload, ...], templates: SharedTemplates
    ) -> None:
        self.wanted = wanted
        self.uploads: tuple[PartialUpload, ...] = ()
        self.made_of(uploads)
        self.parts: tuple[ContextPart, ...] = ()
        self.sandbox: AsyncSandbox | None = None
        self.users = 0  # resets that are under way
        self.at = 0.0  # it was used
        self._templates = templates
        self.holding = templates.quota.hold(wanted.owner, self)
        self.making = asyncio.create_task(templates.make(self))
        # All resets that wait for it may be gone.
        self.making.add_done_callback(lambda made: made.cancelled() or made.exception())

    def made_of(self, uploads: tuple[PartialUpload, ...]) -> None:
        """Keep these while it is used: deleted ones may have been sent again meanwhile."""
        for upload in self.uploads:
            upload.users.discard(self)
        self.uploads = uploads
        for upload in uploads:
            upload.users.add(self)

    @property
    def busy(self) -> bool:
        """Whether it is being made, begun on, or has sessions, branches among them."""
        if self.users or not self.making.done():
            return True
        return self.sandbox is not None and self.sandbox.statistics().open > 0

    def forget(self) -> None:
        """Close it. May be called twice."""
        self._templates.drop(self)


class SharedTemplates:
    """The templates of all owners, counted in `quota`.

    They are closed with it, and by `sweep` a while after the last session that used them.
    """

    def __init__(self, quota: UploadQuota, clock: Clock = time.monotonic) -> None:
        self.quota = quota
        self._clock = clock
        self.made = 0  # so far
        self._templates: dict[TemplateKey, SharedTemplate] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        # One of an owner's at a time, so that nobody's keep all others waiting.
        self._turns: WeakValueDictionary[Tenant, asyncio.Lock] = WeakValueDictionary()

    def __iter__(self) -> Iterator[SharedTemplate]:
        return iter(tuple(self._templates.values()))

    def __len__(self) -> int:
        return len(self._templates)

    @asynccontextmanager
    async def used(
        self, wanted: TemplateKey, uploads: tuple[PartialUpload, ...]
    ) -> AsyncIterator[SharedTemplate]:
        """The template of `wanted`, made of `uploads` if it is not there.

        Raises:
            Refusal: VALIDATION_ERROR, UNKNOWN_CONTEXT, TOO_LARGE, QUOTA_EXCEEDED, NO_ROOM,
                DRAINING.
        """
        template = self._templates.get(wanted)
        if template is None:
            template = self._templates[wanted] = SharedTemplate(wanted, uploads, self)
        template.made_of(uploads)
        template.users += 1
        try:
            await _made(template)
            yield template
        finally:
            template.users -= 1
            template.at = self._clock()
            # The template first: it can be made again, and what it was made of cannot.
            for holding in (template.holding, *(each.holding for each in uploads)):
                self.quota.touch(holding)

    async def make(self, template: SharedTemplate) -> None:
        """Decode the uploads of a template, and start its process."""
        wanted, size = template.wanted, sum(each.size for each in template.uploads)
        try:
            # It takes at least what was sent; what more, is known when it is there.
            self.quota.take(template.holding, size + _TEMPLATE_BYTES)
            turn = self._turns.setdefault(wanted.owner, asyncio.Lock())
            async with turn, self._slots, self._packed(template, size) as found:
                self.quota.take(template.holding, max(0, found.bytes - size))
                template.parts = found.parts
                template.sandbox = await wanted.source.make_async(
                    lambda sandbox: sandbox.with_parcel(found.parcel)
                )
                self.made += 1
        except BaseException:
            template.forget()
            raise

    def _packed(
        self, template: SharedTemplate, size: int
    ) -> AbstractAsyncContextManager[DecodedVariables]:
        wanted = template.wanted
        named = zip(wanted.references, template.uploads, strict=True)
        return packed(
            [UploadedVariable(name, each.type, upload.content) for (name, each), upload in named],
            mode=wanted.mode,
            length=wanted.preview_length,
            memory=size + self.quota.left(wanted.owner, template.holding),
            spend=self.quota.allowance(wanted.owner).spend_cpu,
        )

    def drop(self, template: SharedTemplate) -> None:
        """Forget a template, and end its processes."""
        if self._templates.get(template.wanted) is template:
            del self._templates[template.wanted]
        template.made_of(())
        self.quota.give_back(template.holding)
        sandbox, template.sandbox = template.sandbox, None
        if sandbox is not None:
            closing = asyncio.create_task(sandbox.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def sweep(self) -> None:
        """Close templates that nobody has used for a while."""
        now = self._clock()
        for template in self:
            if template.busy:
                template.at = now
            elif now - template.at > _KEPT_S:
                template.forget()

    async def close(self) -> None:
        """End everything; no session on a template may be begun any more."""
        making = [template.making for template in self]
        for each in making:
            each.cancel()
        await asyncio.gather(*making, return_exceptions=True)
        for template in self:
            template.forget()
        await asyncio.gather(*self._closing)


async def _made(template: SharedTemplate) -> None:
    try:
        await asyncio.shield(template.making)
    except asyncio.CancelledError:
        if template.making.cancelled():
            raise draining_error() from None
        raise
