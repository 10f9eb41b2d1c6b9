"""Uploaded bytes as the values that sessions begin with.

Standard library only: `decoder_main.py` decodes large uploads in its own process.
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

# Deeper values can be made, and then neither be shown, copied nor saved: each of these asks for
# several of the thousand calls that the interpreter nests.
MAX_DEPTH = 200


def decoded(data: Data, kind: Type) -> str | bytes | JSON:
    """The value of type `kind` that `data` stands for.

    Raises:
        ValueError: it stands for none; says where in `data`, and nothing of what is there.
    """
    value: str | bytes | JSON = _DECODE[kind](data)
    return value


def _text(data: Data) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"no UTF-8 at byte {error.start:,}: {error.reason}") from None


def _json(data: Data) -> JSON:
    try:
        value: Any = json.loads(_text(data), parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"this is nested deeper than {MAX_DEPTH}") from None
    if not isinstance(value, (str, list, dict)):
        raise ValueError(f"JSON of {type(value).__name__}, not an object, an array or a string")
    if not isinstance(value, str) and (problem := explain_not_json(value, MAX_DEPTH)):
        raise ValueError(problem)
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODE: dict[str, Callable[[Data], Any]] = {"text": _text, "bytes": bytes, "json": _json}
