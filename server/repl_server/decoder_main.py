"""Uploaded bytes as values; the main module of the process that decodes large uploads."""

from __future__ import annotations

import gc
import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from repl_env.common.values import explain_not_json
from repl_env.episode import contexts
from repl_sandbox.host.shared_objects import SharedObjects, fill
from repl_sandbox.tables import Table

if TYPE_CHECKING:
    from repl_sandbox.types import JSON


# Decode uploaded bytes to the values of session variables.
#
# Little is imported, and no library: the process of a large upload starts anew for each.

Type: TypeAlias = Literal["text", "bytes", "json", "table"]
Data: TypeAlias = "bytes | mmap.mmap"

# Deeper values could be built, but not shown, copied or checkpointed: each of these needs several
# of the thousand nested calls that the interpreter allows.
MAX_DEPTH = 200


def decoded(data: Data, kind: Type) -> contexts.Value:
    """Decode `data` as a value of type `kind`.

    Raises:
        ValueError: the data is not of this type. The message gives a position and no content.
    """
    value: contexts.Value = _DECODE[kind](data)
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


_DECODE: dict[str, Callable[[Data], Any]] = {
    "text": _text,
    "bytes": bytes,
    "json": _json,
    # The session reads the table; here its description is.
    "table": lambda data: Table.from_bytes(bytes(data)),
}


# Main module of the process that decodes uploads: `python -m repl_server.decoder_main`.
#
# Decoding holds the GIL, and may need many times the memory of the upload, so it runs in a
# separate process with a memory limit. The job arrives on standard input, the answer goes to
# standard output, and the files are inherited. Uploads are untrusted: nothing in them is
# executed, and errors quote nothing of them.

_PAGE = resource.getpagesize()
# Memory beside the values: the interpreter's own, and the texts that are being written.
_OWN_BYTES = 32 << 20


def main() -> None:
    """Run one job."""
    job = json.load(sys.stdin)
    limit = _data_bytes() + _OWN_BYTES + job["memory"]
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    # The values have no cycles, and the search for cycles would take half of the time.
    gc.disable()
    try:
        answer = _pack(job)
    except MemoryError:
        answer = {"too_large": True}
    json.dump({**answer, "cpu_seconds": time.process_time()}, sys.stdout)


def _pack(job: dict[str, Any]) -> dict[str, Any]:
    values, parts, size = {}, [], 0
    for name, kind, fd, length in job["objects"]:
        before = _resident_bytes()
        try:
            value = _read(fd, length, kind)
        except ValueError as error:
            return {"wrong": name, "problem": str(error)}
        # Text and bytes take the same memory in a template as in the parcel.
        size += 0 if isinstance(value, (str, bytes)) else max(0, _resident_bytes() - before)
        values[name] = value
        parts.append(_described(name, value, job["preview"], job["each"]))
    parcel = SharedObjects(job["parcel"])
    fill(parcel, values, arrays=False, parsed=True)
    size += os.fstat(parcel.fd).st_size
    return {"parts": parts, "manifest": parcel.manifest, "bytes": size}


def _read(fd: int, length: int, kind: Type) -> Any:
    if not length:
        return decoded(b"", kind)
    with mmap.mmap(fd, length, prot=mmap.PROT_READ) as data:
        return decoded(data, kind)


def _described(name: str, value: Any, mode: contexts.Preview, each: int) -> dict[str, Any]:
    length, unit = contexts.measured(value)
    shown = contexts.preview(value, mode, each)
    return {
        "name": name,
        "type": type(value).__name__,
        "length": length,
        "unit": unit,
        "shown": shown,
    }


def _data_bytes() -> int:
    """The memory that RLIMIT_DATA limits."""
    return _statm(5) * _PAGE


def _resident_bytes() -> int:
    """Private memory of this process, without mapped files."""
    return (_statm(1) - _statm(2)) * _PAGE


def _statm(field: int) -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[field])


if __name__ == "__main__":
    main()
