"""Contexts that several environments share, each in memory once.

A reset plans which of its contexts deserve their own template (`Sandbox.with_shared`), makes new
templates, and drops those without users. If a session on a template stays open longer, as a branch
does, the template ends with that session (`Sandbox.retire`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from repl_env.env.environment import REPLEnvironment
from repl_env.episode import contexts
from repl_env.episode.contexts import Context
from repl_env.episode.sandboxes import SandboxProvider, SandboxSettings
from repl_sandbox import AsyncSandbox, Sandbox
from repl_sandbox.tables import Table

# Characters or bytes, over all sessions that share the context. Smaller copies take less time than
# a template.
_WORTH_SHARING = 1 << 20

# A context by identity: texts and bytes by value, where comparing the same object is free.
Key: TypeAlias = tuple[tuple[str, str, "str | bytes"], ...]

# A context, None if the reset of its environment resolves it, and its template's key, if any.
Planned: TypeAlias = "tuple[Context | None, Key | None]"


class SharedContexts:
    """The contexts of a group of environments that are like `environment`."""

    def __init__(self, environment: REPLEnvironment) -> None:
        self._environment = environment
        self._templates: dict[Key, Context] = {}
        self._used_keys: dict[int, Key] = {}  # by the number of the environment
        self._retired: list[Sandbox | AsyncSandbox] = []
        self._pending: tuple[Key, Context] | None = None

    def plan(self, resets: Mapping[int, dict[str, Any]]) -> Iterator[None]:
        """Put resolved contexts into `resets`, shared if that saves memory.

        `resets` has the arguments by the number of the environment; other environments keep their
        contexts. The generator pauses whenever there is a template to `make`.

        Raises:
            TypeError, ValueError, OSError: as `contexts.resolve`, with the environment as a note.
        """
        found: dict[object, Planned] = {}
        identities = {number: _identity(each) for number, each in resets.items()}
        counts = Counter(identities.values())
        for number, each in resets.items():
            self._used_keys.pop(number, None)
            identity = identities[number]
            if each.get("context") is None and each.get("contexts") is None:
                continue
            if identity not in found:
                found[identity] = yield from self._plan_one(number, each, counts[identity])
            context, key = found[identity]
            if context is not None:
                each["context"] = context
                each.pop("contexts", None)
            if key is not None:
                self._used_keys[number] = key

    def _plan_one(
        self, number: int, request: Mapping[str, Any], count: int
    ) -> Generator[None, None, Planned]:
        """Return the context for `count` environments, one of them `number`, and its template."""
        if count < 2 and not self._templates:
            return None, None
        try:
            resolved = self._resolve(number, request)
        except (TypeError, ValueError, OSError):
            if count < 2:
                return None, None  # the reset of this environment alone fails on it
            raise
        key = self._key(resolved, count)
        if key is None:
            return resolved, None
        if key not in self._templates:
            self._pending = key, resolved
            yield
        return replace(resolved, sandbox_provider=self._templates[key].sandbox_provider), key

    def _key(self, context: Context, count: int) -> Key | None:
        """Return the template key for `count` sessions with this context.

        None for separate copies.
        """
        if any(isinstance(part.value, Table) for part in context.parts):
            return None  # a template has no library that could read a table
        is_worthwhile = count > 1 and context.length * count >= _WORTH_SHARING
        if not (is_worthwhile or self._templates):
            return None
        key = _key(context)
        return key if is_worthwhile or key in self._templates else None

    def _resolve(self, index: int, request: Mapping[str, Any]) -> Context:
        settings = self._environment.settings
        try:
            return contexts.resolve(
                request.get("context"),
                request.get("contexts"),
                settings.context,
                mode=settings.preview,
                preview_length=settings.context_preview_length,
            )
        except (TypeError, ValueError, OSError) as error:
            error.add_note(f"environment {index}")
            raise

    def make(self) -> None:
        """Make the template that `plan` paused for."""
        objects = self._objects()
        self._store(
            self._environment.sandbox_provider.make(lambda sandbox: sandbox.with_shared(**objects))
        )

    async def make_async(self) -> None:
        """`make` for an event loop."""
        objects, sandbox_provider = self._objects(), self._environment.sandbox_provider
        self._store(
            await sandbox_provider.make_async(lambda sandbox: sandbox.with_shared(**objects))
        )

    def _objects(self) -> dict[str, Any]:
        assert self._pending is not None
        return {part.name: part.value for part in self._pending[1].parts}

    def _store(self, sandbox: Sandbox | AsyncSandbox) -> None:
        assert self._pending is not None
        key, context = self._pending
        sandbox_provider = SandboxProvider(sandbox, SandboxSettings())
        self._templates[key], self._pending = (
            replace(context, sandbox_provider=sandbox_provider),
            None,
        )

    def clear(self) -> None:
        """Stop using these templates; the next `drop` removes them."""
        self._retired += map(_sandbox, self._templates.values())
        self._templates, self._used_keys = {}, {}

    def drop(self) -> None:
        """Remove the templates that no environment of the group uses.

        The group's own sessions on them are closed, unless their template failed; those sessions,
        and branches, stay open.
        """
        for sandbox in self._unused():
            assert isinstance(sandbox, Sandbox)
            sandbox.retire()

    async def drop_async(self) -> None:
        """`drop` for an event loop."""
        for sandbox in self._unused():
            assert isinstance(sandbox, AsyncSandbox)
            await sandbox.retire()

    def _unused(self) -> list[Sandbox | AsyncSandbox]:
        used = set(self._used_keys.values())
        unused = [key for key in self._templates if key not in used]
        self._retired += (_sandbox(self._templates.pop(key)) for key in unused)
        dropped, self._retired = self._retired, []
        return dropped


def _sandbox(context: Context) -> Sandbox | AsyncSandbox:
    assert context.sandbox_provider is not None
    assert context.sandbox_provider.given is not None
    return context.sandbox_provider.given


def _identity(request: Mapping[str, Any]) -> object:
    """Return a key of a request's context: texts, bytes and paths by value, other objects by
    identity.
    """
    several = request.get("contexts")
    named = {"": request.get("context"), **(several if isinstance(several, Mapping) else {})}
    return tuple(
        (name, type(value), value if isinstance(value, (str, bytes, Path)) else id(value))
        for name, value in named.items()
    )


def _key(context: Context) -> Key:
    return tuple((part.name, part.unit, _content(part.value)) for part in context.parts)


def _content(value: Any) -> str | bytes:
    if isinstance(value, (str, bytes)):
        return value
    # The caller may change the object before the next reset.
    return hashlib.blake2b(json.dumps(value).encode()).digest()
