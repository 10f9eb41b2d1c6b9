"""Types as the schemas of answers: what pydantic makes of them.

Apart from `answers`, because the client of a server needs it and nothing of sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ForwardRef

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def type_adapter(schema: Any) -> TypeAdapter[Any]:
    """pydantic's adapter of a type; TypeError for what is none, a text above all.

    pydantic takes a text for the name of a type, and evaluates it; a schema may be a stranger's.
    """
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    if isinstance(schema, (str, ForwardRef)):
        kind = type(schema).__name__
        raise TypeError(f"answer_schema must be a JSON schema as a dict, or a type, not {kind}")
    try:
        return TypeAdapter(schema)
    except PydanticUserError as error:
        # Behind its first line pydantic tells how to write types of one's own.
        told = str(error).partition("\n")[0]
        raise TypeError(f"answer_schema must be a JSON schema or a type: {told}") from error
