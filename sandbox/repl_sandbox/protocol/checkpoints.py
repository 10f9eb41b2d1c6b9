"""Checkpoints: a manifest, which the host reads, and pickles, which the host never loads."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..display import set_module
from ..errors import CheckpointError, RemoteProtocolError
from ..types import JSON, Missing
from .frames import MAX_MESSAGE, MAX_NAME
from .values import parse_json

# File format of saved state: kind, version, header, payload and a checksum over all of it.
#
#     8 bytes   `MAGIC`                   like PNG's: any transfer as text damages it
#     4 bytes   the kind
#     2 bytes   version of the kind       unsigned, big-endian, as are the lengths
#     4 bytes   length of the header
#     8 bytes   length of the payload
#     header, payload
#     32 bytes  SHA-256 of all bytes before
#
# The checksum finds damage. It does not prove who wrote the file.

MAGIC = b"\x89REPL\r\n\x1a"
# A header is JSON with a list of names, some 100 bytes each, so the limit is far above real use.
MAX_HEADER = 4 << 20

_PREFIX = struct.Struct(">8s4sHIQ")
_SUM = hashlib.sha256().digest_size


def pack_container(
    kind: bytes, version: int, header: bytes, payload: Sequence[bytes | memoryview]
) -> bytes:
    """Return a file of `kind` as bytes; `payload` is given in pieces.

    Raises:
        CheckpointError: the header is over `MAX_HEADER` bytes.
    """
    if len(header) > MAX_HEADER:
        raise CheckpointError(f"too many names: {len(header):,} bytes; the limit is {MAX_HEADER:,}")
    size = sum(len(piece) for piece in payload)
    pieces = [_PREFIX.pack(MAGIC, kind, version, len(header), size), header, *payload]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return b"".join([*pieces, digest.digest()])


def check_beginning(head: bytes, kind: bytes, name: str) -> None:
    """Check that the first bytes of a file are those of a file of `kind`.

    Raises:
        CheckpointError: they are not.
    """
    expected = MAGIC + kind
    if not expected.startswith(head[: len(expected)]):
        raise CheckpointError(f"this is not a {name}, or its beginning is damaged")


def unpack_container(data: bytes, kind: bytes, version: int, name: str) -> tuple[bytes, memoryview]:
    """Return the header and the payload of a file of `kind`; error messages call the file `name`.

    Lengths are compared before any content is read or copied.

    Raises:
        TypeError: `data` is not bytes.
        CheckpointError: the file is damaged, cut short, of another kind or of another version.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"data must be bytes, not {type(data).__name__}")
    view = memoryview(data).cast("B")
    if len(view) < _PREFIX.size + _SUM:
        raise CheckpointError(f"this is not a {name}: {len(view)} bytes are too few")
    check_beginning(bytes(view[: _PREFIX.size]), kind, name)
    _, _, number, header_size, size = _PREFIX.unpack_from(view)
    if number != version:
        raise CheckpointError(
            f"the {name} has version {number} of its format; this release reads version {version}"
        )
    end = _PREFIX.size + header_size + size
    if header_size > MAX_HEADER or end + _SUM != len(view):
        raise CheckpointError(
            f"the {name} is damaged or cut short: it has {len(view):,} bytes and should have "
            f"{end + _SUM:,}"
        )
    if hashlib.sha256(view[:end]).digest() != view[end:]:
        raise CheckpointError(f"the {name} is damaged: its checksum does not match")
    start = _PREFIX.size + header_size
    return bytes(view[_PREFIX.size : start]), view[start:end]


# Anybody may have written a checkpoint, and a session's code controls the content of its own. The
# host therefore parses all of it strictly and within bounds, and only a jailed session unpickles.

KIND = b"ckpt"
VERSION = 1

# State that a session keeps besides its variables, named as `worker/checkpoint.py` names it.
_MAX_STATE = 16
_MAX_PACKAGES = 64
# Variables and cells of one session, far beyond the room in the header.
_MAX_ROWS = 1 << 20
_MAX_CELLS = 1 << 31
_MAX_BYTES = 1 << 50

_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@set_module("repl_sandbox")
@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A variable in a checkpoint. `size`: bytes of its pickle, without shared parts."""

    name: str
    type: str
    size: int


@set_module("repl_sandbox")
@dataclass(frozen=True, slots=True)
class Manifest:
    """Description of a checkpoint, written by a session and therefore only a claim.

    Attributes:
        python, implementation: interpreter that made the checkpoint; only the same minor version
            can load it.
        packages: versions of packages that the values may depend on, by name.
        variables: saved variables.
        missing: variables that were not saved, with reasons.
        state: other saved state, such as random number generators, with sizes.
        cell: number of the last cell.
    """

    python: str
    implementation: str
    packages: dict[str, str]
    variables: tuple[CheckpointInfo, ...]
    missing: tuple[Missing, ...]
    state: tuple[tuple[str, int], ...]
    cell: int

    @property
    def size(self) -> int:
        """Bytes of all pickles together."""
        return sum(row.size for row in self.variables) + sum(size for _, size in self.state)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose form was checked: its manifest, and its pickles in order."""

    manifest: Manifest
    payload: memoryview


@set_module("repl_sandbox")
def read_manifest(data: bytes) -> Manifest:
    """Return the manifest of the checkpoint `data` without unpickling anything.

    Raises:
        CheckpointError: `data` is no checkpoint, is damaged, or has another version.
        TypeError: `data` is not bytes.
    """
    return parse(data).manifest


def parse(data: bytes) -> Checkpoint:
    """Check the form of a checkpoint; raises the errors of `read_manifest`."""
    header, payload = unpack_container(data, KIND, VERSION, "checkpoint")
    try:
        manifest = manifest_of(parse_json(header))
    except (KeyError, TypeError, ValueError, RemoteProtocolError) as error:
        raise CheckpointError(f"the checkpoint's manifest is malformed: {error}") from None
    if manifest.size != len(payload):
        raise CheckpointError("the checkpoint's manifest does not match its payload")
    return Checkpoint(manifest, payload)


def pack_checkpoint(manifest: Manifest, payload: bytes) -> bytes:
    """Return a checkpoint as bytes; CheckpointError if the manifest is too large."""
    return pack_container(KIND, VERSION, dump(manifest), [payload])


def dump(manifest: Manifest) -> bytes:
    """Return `manifest` as JSON."""
    fields = {
        "python": manifest.python,
        "implementation": manifest.implementation,
        "packages": manifest.packages,
        "cell": manifest.cell,
        "variables": [[row.name, row.type, row.size] for row in manifest.variables],
        "missing": [[row.name, row.type, row.reason] for row in manifest.missing],
        "state": [list(row) for row in manifest.state],
    }
    return _dumps(fields).encode()


def report(text: str, *, python: str, implementation: str, cell: int) -> Manifest:
    """Return the manifest that a worker reported, with the fields that the host knows itself.

    Raises:
        CheckpointError: the report is malformed.
    """
    data = text.encode()
    try:
        if len(data) > MAX_HEADER:
            raise ValueError(f"{len(data):,} bytes")
        fields = parse_json(data)
        if type(fields) is not dict:
            raise TypeError("no object")
        fields |= {"python": python, "implementation": implementation, "cell": cell}
        return manifest_of(fields)
    except (KeyError, TypeError, ValueError, RemoteProtocolError) as error:
        message = f"the session's report of what it saved is malformed: {error}"
        raise CheckpointError(message) from None


def manifest_of(value: JSON) -> Manifest:
    """Return the manifest in `value`; KeyError, TypeError or ValueError names a malformed field."""
    if type(value) is not dict:
        raise TypeError("no object")
    packages = value["packages"]
    if type(packages) is not dict or len(packages) > _MAX_PACKAGES:
        raise TypeError(f"packages is not an object of at most {_MAX_PACKAGES}")
    return Manifest(
        python=_text(value["python"], "python", MAX_NAME),
        implementation=_text(value["implementation"], "implementation", MAX_NAME),
        packages={
            _text(name, "packages", MAX_NAME): _text(version, "packages", MAX_NAME)
            for name, version in packages.items()
        },
        variables=tuple(_saved(row) for row in _rows(value, "variables", _MAX_ROWS)),
        missing=missing_of(value["missing"]),
        state=tuple(_state(row) for row in _rows(value, "state", _MAX_STATE)),
        cell=_count(value["cell"], "cell", _MAX_CELLS),
    )


def missing_of(value: JSON) -> tuple[Missing, ...]:
    """Return the rows of missing variables in `value`; TypeError or ValueError if malformed."""
    return tuple(_missing(row) for row in _rows({"missing": value}, "missing", _MAX_ROWS))


def _saved(row: Any) -> CheckpointInfo:
    name, kind, size = _fields(row, 3, "variables")
    return CheckpointInfo(
        _text(name, "variables", MAX_NAME),
        _text(kind, "variables", MAX_NAME),
        _count(size, "variables", _MAX_BYTES),
    )


def _missing(row: Any) -> Missing:
    name, kind, reason = _fields(row, 3, "missing")
    return Missing(
        _text(name, "missing", MAX_NAME),
        _text(kind, "missing", MAX_NAME),
        _text(reason, "missing", MAX_MESSAGE),
    )


def _state(row: Any) -> tuple[str, int]:
    name, size = _fields(row, 2, "state")
    return _text(name, "state", MAX_NAME), _count(size, "state", _MAX_BYTES)


def _rows(value: dict[str, JSON], name: str, limit: int) -> list[Any]:
    rows = value[name]
    if type(rows) is not list or len(rows) > limit:
        raise TypeError(f"{name} is not a list of at most {limit:,}")
    return rows


def _fields(row: Any, count: int, name: str) -> list[Any]:
    if type(row) is not list or len(row) != count:
        raise TypeError(f"{name} has a row that is not a list of {count}")
    return row


def _text(value: Any, name: str, limit: int) -> str:
    if type(value) is not str or len(value) > limit:
        raise TypeError(f"{name} has an entry that is not text of at most {limit:,} characters")
    return value


def _count(value: Any, name: str, below: int) -> int:
    if type(value) is not int or not 0 <= value < below:
        raise TypeError(f"{name} has an entry that is not a count")
    return value
