"""Types as schemas of answers, through pydantic.

Separate from `answers`, because the client of a server needs this module and no session code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ForwardRef

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def type_adapter(schema: Any) -> TypeAdapter[Any]:
    """Return pydantic's adapter of a type; TypeError for anything else, above all text.

    pydantic evaluates text as the name of a type; a schema may come from a stranger.
    """
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    if isinstance(schema, (str, ForwardRef)):
        kind = type(schema).__name__
        raise TypeError(f"answer_schema must be a JSON schema as a dict, or a type, not {kind}")
    try:
        return TypeAdapter(schema)
    except PydanticUserError as error:
        # The first line suffices: the rest of pydantic's message explains custom types.
        message = str(error).partition("\n")[0]
        raise TypeError(f"answer_schema must be a JSON schema or a type: {message}") from error
