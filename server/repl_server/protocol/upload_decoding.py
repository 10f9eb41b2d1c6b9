"""Decode uploaded bytes to the values of session variables.

Standard library only: large uploads are decoded in a separate process (`uploads/decoder_main.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from repl_env.common.json_values import explain_not_json

if TYPE_CHECKING:
    from mmap import mmap

    from repl_sandbox.types import JSON

Type: TypeAlias = Literal["text", "bytes", "json"]
Data: TypeAlias = "bytes | mmap"

# Deeper values could be built, but not shown, copied or checkpointed: each of these needs several
# of the thousand nested calls that the interpreter allows.
MAX_DEPTH = 200


def decoded(data: Data, kind: Type) -> str | bytes | JSON:
    """Decode `data` as a value of type `kind`.

    Raises:
        ValueError: the data is not of this type. The message gives a position and no content.
    """
    value: str | bytes | JSON = _DECODE[kind](data)
    return value


def _text(data: Data) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start:,}: {error.reason}") from None


def _json(data: Data) -> JSON:
    try:
        value: Any = json.loads(_text(data), parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"this is nested deeper than {MAX_DEPTH}") from None
    if not isinstance(value, (str, list, dict)):
        raise ValueError(f"JSON of {type(value).__name__}, not an object, an array or a string")
    if not isinstance(value, str) and (problem := explain_not_json(value, MAX_DEPTH)):
        raise ValueError(problem)
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODE: dict[str, Callable[[Data], Any]] = {"text": _text, "bytes": bytes, "json": _json}
