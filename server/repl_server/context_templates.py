"""`Templates`: the variables that uploads stand for, in memory once for all who begin with them.

From a mebibyte on, the uploads that a reset names together get a template of their own, made by the
first session that asks for them and shared by all that do. Less is decoded once and copied into
each session, which takes less time than a template.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from repl_env import contexts
from repl_env.contexts import Part
from repl_env.previews import Preview
from repl_env.sandboxes import Source
from repl_sandbox import AsyncSandbox

from .half import Clock
from .owners import Owner
from .packing import Item, Packed, packed
from .references import Reference
from .refusal import draining
from .room import Room
from .uploads import Upload

# Bytes of uploads, by type, that are worth a process and a template. JSON takes as long to parse as
# four times the text takes to copy, and holds the interpreter for that long.
WORTH_SHARING = {"text": 1 << 20, "bytes": 1 << 20, "json": 1 << 18}
# What a template takes beside its objects: page tables, and what it touches of what it was forked
# with.
_TEMPLATE_BYTES = 4 << 20
# Seconds that it is kept without a user: an episode of the next group may want it.
_KEPT_S = 60.0
# Packed at the same time. Each takes a processor, and memory that no quota counts until it is done.
_AT_ONCE = 2

Named: TypeAlias = tuple[tuple[str, Reference], ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Equal for resets that can share a template."""

    owner: Owner
    source: Source
    references: Named
    mode: Preview
    preview_length: int


class Template:
    """The variables of `wanted`, decoded; in a sandbox of their own if that is worth it."""

    def __init__(self, wanted: Wanted, uploads: tuple[Upload, ...], templates: Templates) -> None:
        self.wanted = wanted
        self.uploads: tuple[Upload, ...] = ()
        self.made_of(uploads)
        self.parts: tuple[Part, ...] = ()
        self.sandbox: AsyncSandbox | None = None
        self.users = 0  # resets that are under way
        self.at = 0.0  # it was used
        self._templates = templates
        self.holding = templates.room.hold(wanted.owner, self)
        self.making = asyncio.create_task(templates.make(self))
        # Whoever waits may have left.
        self.making.add_done_callback(lambda made: made.cancelled() or made.exception())

    def made_of(self, uploads: tuple[Upload, ...]) -> None:
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

    @property
    def large(self) -> bool:
        """Whether a template is worth what it takes."""
        named = zip(self.wanted.references, self.uploads, strict=True)
        return sum(each.size / WORTH_SHARING[ref.type] for (_, ref), each in named) >= 1

    def items(self) -> list[Item]:
        """What is to be decoded."""
        named = zip(self.wanted.references, self.uploads, strict=True)
        return [Item(name, ref.type, upload.content) for (name, ref), upload in named]

    def forget(self) -> None:
        """Close it. May be called twice."""
        self._templates.drop(self)


class Templates:
    """The templates of all owners, in `room`.

    They are closed with it, and by `sweep` a while after the last session that used them.
    """

    def __init__(self, room: Room, clock: Clock = time.monotonic) -> None:
        self.room = room
        self._clock = clock
        self.made = 0  # so far
        self._templates: dict[Wanted, Template] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        # One of an owner's at a time, so that nobody's keep all others waiting.
        self._turns: WeakValueDictionary[Owner, asyncio.Lock] = WeakValueDictionary()

    def __iter__(self) -> Iterator[Template]:
        return iter(tuple(self._templates.values()))

    def __len__(self) -> int:
        return len(self._templates)

    @asynccontextmanager
    async def used(self, wanted: Wanted, uploads: tuple[Upload, ...]) -> AsyncIterator[Template]:
        """The template of `wanted`, made of `uploads` if it is not there.

        Raises:
            Refusal: VALIDATION_ERROR, UNKNOWN_CONTEXT, TOO_LARGE, QUOTA_EXCEEDED, NO_ROOM,
                DRAINING.
        """
        template = self._templates.get(wanted)
        if template is None:
            template = self._templates[wanted] = Template(wanted, uploads, self)
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
                self.room.touch(holding)

    async def make(self, template: Template) -> None:
        """Decode the uploads of a template, and grow it."""
        try:
            await (self._share(template) if template.large else self._decode(template))
        except BaseException:
            template.forget()
            raise

    async def _decode(self, template: Template) -> None:
        items, wanted = template.items(), template.wanted
        self.room.take(template.holding, sum(item.at_most for item in items))
        values: dict[str, Any] = {item.name: item.decoded() for item in items}
        template.parts = contexts.resolve(
            None, values, None, mode=wanted.mode, preview_length=wanted.preview_length
        ).parts

    async def _share(self, template: Template) -> None:
        wanted, size = template.wanted, sum(each.size for each in template.uploads)
        # It takes at least what was sent; what more, is known when it is there.
        self.room.take(template.holding, size + _TEMPLATE_BYTES)
        turn = self._turns.setdefault(wanted.owner, asyncio.Lock())
        async with turn, self._slots, self._packed(template, size) as found:
            self.room.take(template.holding, max(0, found.bytes - size))
            template.parts = found.parts
            template.sandbox = await wanted.source.make_async(
                lambda sandbox: sandbox.with_parcel(found.parcel)
            )
            self.made += 1

    def _packed(self, template: Template, size: int) -> AbstractAsyncContextManager[Packed]:
        wanted = template.wanted
        return packed(
            template.items(),
            mode=wanted.mode,
            length=wanted.preview_length,
            memory=size + self.room.left(wanted.owner, template.holding),
            spend=self.room.allowance(wanted.owner).spend_cpu,
        )

    def drop(self, template: Template) -> None:
        """Forget a template, and end its processes."""
        if self._templates.get(template.wanted) is template:
            del self._templates[template.wanted]
        template.made_of(())
        self.room.give_back(template.holding)
        sandbox, template.sandbox = template.sandbox, None
        if sandbox is not None:
            closing = asyncio.create_task(sandbox.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def sweep(self) -> None:
        """Close what nobody has used for a while."""
        now = self._clock()
        for template in list(self._templates.values()):
            if template.busy:
                template.at = now
            elif now - template.at > _KEPT_S:
                template.forget()

    async def close(self) -> None:
        """End everything; no session on a template may be begun any more."""
        making = [template.making for template in self._templates.values()]
        for each in making:
            each.cancel()
        await asyncio.gather(*making, return_exceptions=True)
        for template in list(self._templates.values()):
            template.forget()
        await asyncio.gather(*self._closing)


async def _made(template: Template) -> None:
    try:
        await asyncio.shield(template.making)
    except asyncio.CancelledError:
        if template.making.cancelled():
            raise draining() from None
        raise
