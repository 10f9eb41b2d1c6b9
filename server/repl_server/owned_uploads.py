"""`OwnedUploads`: what one owner's sessions may do with uploads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repl_env import contexts, wire_values
from repl_env.environment import REPLEnvironment
from repl_env.models import REPLObservation

from .owners import Owner
from .references import Reference
from .shared_uploads import SharedUploads
from .texts import invalid


@dataclass(frozen=True, slots=True)
class OwnedUploads:
    """The uploads of `owner`, and resets that name them."""

    owner: Owner
    shared: SharedUploads

    async def reset(
        self, environment: REPLEnvironment, arguments: Mapping[str, Any]
    ) -> REPLObservation:
        """`environment.reset_async`, by arguments as they come over the wire.

        Raises:
            Refusal: as `SharedUploads.reset` and `UploadedFiles.read`; VALIDATION_ERROR, bytes that
                are none.
            Exception: what `reset_async` raises.
        """
        async with self.shared.files.read(self.owner, await _decoded(arguments)) as given:
            references: Mapping[str, Reference] = given.pop("uploads", None) or {}
            if not references:
                return await environment.reset_async(**given)
            return await self.shared.reset(environment, self.owner, references, given)

    async def plain(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments for an environment of another kind: for it, uploads are contexts.

        Raises:
            Refusal: as `SharedUploads.values` and `UploadedFiles.read`; VALIDATION_ERROR, bytes
                that are none.
        """
        async with self.shared.files.read(self.owner, await _decoded(arguments)) as given:
            values = await self.shared.values(self.owner, given.pop("uploads", None) or {})
        if contexts.NAME in values:
            given["context"] = values.pop(contexts.NAME)
        if values:
            given["contexts"] = {**(given.get("contexts") or {}), **values}
        return given


async def _decoded(arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return await wire_values.decode_aside(arguments)
    except wire_values.WireValueError as error:
        raise invalid(".".join(("data", *error.place)), error.problem) from None
