"""The wheel of `openenv-repl-env`, packed from the packages that are imported here.

OpenEnv's AutoEnv finds environments by the names of distributions, which must begin with
`openenv-`. The files are those of the distribution `repl-env`, from a checkout or installed, so
that a Space runs the version that made it.

The wheel is for every system, because AutoEnv installs it from a Space where only the client runs.
It carries the native library for the machines of Spaces, and for this machine where it has another.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from repl_sandbox.native.build import BuildError

from .native_libraries import PATTERN, libraries

NAME = "openenv-repl-env"
PACKAGES = ("repl_env", "repl_sandbox", "repl_server")
# Either may be installed; both hold the same packages.
_SOURCES = ("repl-env", NAME)
# Files of the metadata: the others say how and where pip installed the distribution.
_METADATA_PATTERNS = ("METADATA", "entry_points.txt", "licenses/*")
# A folder of a checkout may hold more than the package: caches, settings, keys.
_LEFT_OUT = (".*", "__pycache__", "*.pyc", "*.env", "*.pem", "*.key", "*.orig", "*.rej", "*~")
_TAG = "py3-none-any"
_WHEEL = f"Wheel-Version: 1.0\nGenerator: repl-env\nRoot-Is-Purelib: true\nTag: {_TAG}\n".encode()
# The earliest time that a zip can say: the same files make the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16


class PackingError(Exception):
    """No wheel can be made of what is installed here; the message says why."""


def pack_wheel(folder: Path) -> Path:
    """Write the wheel into `folder`, replacing one of the same version; its path.

    Raises:
        PackingError: as `packed`.
        OSError: a file cannot be read or written.
    """
    name, data = packed()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return folder / name


def packed() -> tuple[str, bytes]:
    """The name of the wheel and its bytes, which are the same for the same packages.

    Raises:
        PackingError: a package is not here, or the library for Spaces cannot be built.
        OSError: a file cannot be read.
    """
    installed = _installed()
    stem = f"{NAME.replace('-', '_')}-{installed.version}"
    metadata = dict(_metadata(installed)) | {"WHEEL": _WHEEL}
    if "METADATA" not in metadata:
        raise PackingError("the installed repl-env lists none of its files")
    members = {name: data for package in PACKAGES for name, data in _package(package)}
    members |= _libraries()
    members |= {f"{stem}.dist-info/{name}": data for name, data in metadata.items()}
    members[f"{stem}.dist-info/RECORD"] = _record(members, f"{stem}.dist-info/RECORD")
    return f"{stem}-{_TAG}.whl", _zipped(members)


def _installed() -> Distribution:
    for name in _SOURCES:
        try:
            return distribution(name)
        except PackageNotFoundError:
            continue
    raise PackingError("repl-env is not installed here: a wheel needs its metadata")


def _package(name: str) -> Iterator[tuple[str, bytes]]:
    """The files of a package, as they are named in a wheel."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise PackingError(f"the package {name} is not here")
    root = Path(next(iter(spec.submodule_search_locations)))
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if any(fnmatchcase(part, pattern) for part in inside.parts for pattern in _LEFT_OUT):
            continue
        if path.is_symlink() or not path.is_file():
            continue
        if inside.match(PATTERN):
            continue
        if path.suffix == ".so":
            raise PackingError(f"{name}/{inside} is compiled: the wheel would fit this system only")
        yield f"{name}/{inside.as_posix()}", path.read_bytes()


def _libraries() -> dict[str, bytes]:
    try:
        return {f"repl_sandbox/native/{name}": data for name, data in libraries()}
    except BuildError as error:
        raise PackingError(str(error)) from error


def _metadata(installed: Distribution) -> Iterator[tuple[str, bytes]]:
    for file in installed.files or ():
        folder, _, name = PurePosixPath(file).as_posix().partition(".dist-info/")
        if "/" in folder or not any(fnmatchcase(name, pattern) for pattern in _METADATA_PATTERNS):
            continue
        data = Path(str(file.locate())).read_bytes()
        yield name, _renamed(data) if name == "METADATA" else data


def _renamed(metadata: bytes) -> bytes:
    """`metadata` with the other name, also where the project asks for extras of its own."""
    fields, blank, description = metadata.decode().partition("\n\n")
    fields = re.sub(r"(?m)^(Name: |Requires-Dist: )repl-env(?=$|\[)", rf"\1{NAME}", fields)
    return f"{fields}{blank}{description}".encode()


def _record(members: Mapping[str, bytes], own: str) -> bytes:
    rows = []
    for name, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join([*rows, f"{own},,\n"]).encode()


def _zipped(members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = _MODE
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return file.getvalue()
