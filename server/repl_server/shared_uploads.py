"""`SharedUploads`: episodes on uploaded contexts, each of which is in memory once for its owner."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from repl_env import contexts
from repl_env.contexts import Context
from repl_env.environment import REPLEnvironment
from repl_env.models import REPLObservation
from repl_env.sandboxes import SandboxSettings, Source
from repl_env.settings import check_name
from repl_sandbox.errors import SandboxClosed

from .context_templates import Template, Templates, Wanted
from .half import Clock
from .owners import Owner
from .packing import Item
from .references import Reference
from .refusal import Refusal
from .room import Room
from .uploaded_files import UploadedFiles
from .uploads import Uploads


class SharedUploads:
    """Resets that name `uploads`, counted in `room`.

    Attributes:
        templates: what they begin with.
        files: reads the uploads that they name as files.
    """

    def __init__(self, uploads: Uploads, room: Room, clock: Clock = time.monotonic) -> None:
        self.templates = Templates(room, clock)
        self.files = UploadedFiles(uploads, room)
        self._uploads = uploads
        self._room = room

    async def reset(
        self,
        environment: REPLEnvironment,
        owner: Owner,
        references: Mapping[str, Reference],
        arguments: Mapping[str, Any],
    ) -> REPLObservation:
        """`environment.reset_async(**arguments)`, with the uploads as further contexts.

        Raises:
            Refusal: UNKNOWN_CONTEXT; VALIDATION_ERROR, naming the variable; TOO_LARGE,
                QUOTA_EXCEEDED or NO_ROOM.
            Exception: what `reset_async` raises.
        """
        try:
            return await self._reset(environment, owner, references, arguments)
        except SandboxClosed:
            # The template died since it was last used. There is another in its place.
            return await self._reset(environment, owner, references, arguments)

    async def values(self, owner: Owner, references: Mapping[str, Reference]) -> dict[str, Any]:
        """The uploads as values in this process, for an environment of another kind.

        Raises:
            Refusal: UNKNOWN_CONTEXT; VALIDATION_ERROR, naming the variable; QUOTA_EXCEEDED or
                NO_ROOM: they may take more memory than there is.
        """
        items = [
            Item(name, ref.type, self._uploads.get(owner, ref.sha256).content)
            for name, ref in references.items()
        ]
        self._room.check(owner, sum(item.at_most for item in items))
        return {item.name: await asyncio.to_thread(item.decoded) for item in items}

    async def _reset(
        self,
        environment: REPLEnvironment,
        owner: Owner,
        references: Mapping[str, Reference],
        arguments: Mapping[str, Any],
    ) -> REPLObservation:
        settings = environment.settings
        wanted = Wanted(
            owner,
            environment.source,
            tuple(references.items()),
            settings.preview,
            settings.context_preview_length,
        )
        _check(references, settings.tools)
        uploads = tuple(self._uploads.get(owner, each.sha256) for each in references.values())
        async with self.templates.used(wanted, uploads) as template:
            context = _context(template, arguments, settings.context)
            given = {**arguments, "context": context}
            given.pop("contexts", None)
            try:
                return await environment.reset_async(**given)
            except SandboxClosed:
                template.forget()
                raise

    def sweep(self) -> None:
        """Close what nobody has used for a while."""
        self.templates.sweep()

    async def close(self) -> None:
        """End everything; no session on an upload may be begun any more."""
        await self.templates.close()


def _check(references: Mapping[str, Reference], tools: Mapping[str, object]) -> None:
    try:
        for name in references:
            check_name(name, "uploads", tools)
    except ValueError as error:
        raise Refusal("VALIDATION_ERROR", str(error)) from None


def _context(
    template: Template, arguments: Mapping[str, Any], default: contexts.Given | None
) -> Context:
    """The context of a reset with these arguments."""
    wanted, sandbox = template.wanted, template.sandbox
    resolve = partial(contexts.resolve, mode=wanted.mode, preview_length=wanted.preview_length)
    return resolve(
        arguments.get("context"),
        arguments.get("contexts"),
        default,
        source=None if sandbox is None else Source(sandbox, SandboxSettings()),
        held=template.parts,
    )
