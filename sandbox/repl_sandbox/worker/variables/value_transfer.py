"""Values of variables that the host sets or gets, as text, bytes or JSON."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable
from typing import Any

from ...protocol.frames import MAX_BLOB
from ...protocol.messages import Assign, Failed, Value
from ...protocol.values.json_text import dump_json
from ..display.tracebacks import describe


def read(assign: Assign, memfd: Callable[[], int]) -> object:
    """Return the value in `assign`, from a separate file if it is large.

    Raises:
        MemoryError, RecursionError, ValueError, OSError: the value is more than this process can
            hold.
    """
    if assign.size is None:
        return _CONVERT[assign.kind](assign.data)
    fd = memfd()
    try:
        data = mmap.mmap(fd, assign.size, mmap.MAP_PRIVATE, mmap.PROT_READ)
    finally:
        os.close(fd)
    with data:
        return _CONVERT[assign.kind](data)


def write(value: object) -> Value | Failed:
    """Return the reply to a request for `value`."""
    try:
        data = dump_json(value)
    except (TypeError, ValueError) as error:
        return Failed("not json", str(error))
    except MemoryError:
        return Failed("too large", "the session has no room for it as JSON")
    # Boundary: classes of the user's may raise anything when they are read.
    except Exception as error:  # noqa: BLE001
        problem = describe(error, 0)
        return Failed("not json", f"{problem.type}: {problem.message}")
    if len(data) > MAX_BLOB:
        return Failed("too large", f"{len(data):,} bytes of JSON; the limit is {MAX_BLOB:,}")
    return Value(data)


def unknown(name: str) -> Failed:
    """Return the reply to a request for a missing variable."""
    return Failed("unknown", f"no variable {name!r}")


def _to_text(data: bytes | mmap.mmap) -> str:
    return str(memoryview(data), "utf-8", "surrogatepass")


_CONVERT: dict[str, Callable[[Any], object]] = {
    "str": _to_text,
    "bytes": bytes,
    "json": lambda data: json.loads(_to_text(data)),
}
