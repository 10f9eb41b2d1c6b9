"""A Space of Hugging Face with a server in it: the choices, its wheel, its files, its folder."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from string import Template

from repl_sandbox.native import build
from repl_sandbox.native.build import BuildError
from repl_sandbox.native.library import MACHINES, file_name

# `SpaceConfig`: the choices for a Space, checked.

BASE = "python:3.12-slim"
# A reference of an image: registry, path, tag, digest. Nothing in it can end a line or an argument.
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]{0,254}")
_LONGEST_TITLE = 100
# Names of the hub: letters, digits, and marks that neither begin nor end a name.
_HUB_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_REPO = re.compile(rf"{_HUB_NAME}/{_HUB_NAME}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceConfig:
    """The choices for a Space.

    Args:
        title: as the hub shows it.
        keyed: ask every request for a key; else anybody may use it, within quotas.
        repo: the Space, as OWNER/NAME, that the README names; None: not known yet.
        base: the image that the Space's is built on; one of Debian with CPython of at least 3.11.

    Raises:
        ValueError: naming the field that is wrong.
    """

    title: str = "repl-env"
    keyed: bool = False
    repo: str | None = None
    base: str = BASE

    def __post_init__(self) -> None:
        title = self.title
        if not (title.strip() and title.isprintable() and len(title) <= _LONGEST_TITLE):
            raise ValueError(
                f"title must be one line of 1 to {_LONGEST_TITLE} characters, not {title[:200]!r}"
            )
        if self.repo is not None and not _is_repo(self.repo):
            raise ValueError(
                f"a Space is named OWNER/NAME in letters, digits, '-', '_' and '.',"
                f" not {self.repo[:200]!r}"
            )
        if _IMAGE.fullmatch(self.base) is None:
            raise ValueError(f"base must be the name of an image, not {self.base[:200]!r}")

    @property
    def host(self) -> str:
        """The host that the hub serves the Space on."""
        return f"{subdomain(self.repo or 'OWNER/NAME')}.hf.space"


def subdomain(repo: str) -> str:
    """The name of a Space as a part of a host's, as the hub makes it."""
    return re.sub(r"[^a-z0-9]", "-", repo.lower())


def _is_repo(repo: str) -> bool:
    return _REPO.fullmatch(repo) is not None and "--" not in repo and ".." not in repo


# The native libraries that the wheel of a Space carries.

# The machines that the hub runs Spaces on.
SPACES = "x86_64"
LIBRARY_PATTERN = "native/repl_native-*.so"


def libraries() -> Iterator[tuple[str, bytes]]:
    """Name and content of each library that is here, and of the one for Spaces.

    The latter is compiled where it is not here, on other machines and systems.

    Raises:
        BuildError: it cannot be compiled.
        OSError: a file cannot be read.
    """
    for machine in MACHINES:
        name = file_name(machine)
        if build.refusal(build.FOLDER / name, machine) is None:
            yield name, (build.FOLDER / name).read_bytes()
        elif machine == SPACES:
            yield name, _compiled(machine)


def _compiled(machine: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "library.so")
        build.compile_library(machine, library)
        return library.read_bytes()


# The wheel of `openenv-repl-env`, packed from the packages that are imported here.
#
# OpenEnv's AutoEnv finds environments by the names of distributions, which must begin with
# `openenv-`. The files are those of the distribution `repl-env`, from a checkout or installed, so
# that a Space runs the version that made it.
#
# The wheel is for every system, because AutoEnv installs it from a Space where only the client
# runs. It carries the native library for the machines of Spaces, and for this machine where it has
# another.

DISTRIBUTION = "openenv-repl-env"
PACKAGES = ("repl_env", "repl_sandbox", "repl_server")
# Either may be installed; both hold the same packages.
_SOURCES = ("repl-env", DISTRIBUTION)
# Files of the metadata: the others say how and where pip installed the distribution.
_METADATA_PATTERNS = ("METADATA", "entry_points.txt", "licenses/*")
# A folder of a checkout may hold more than the package: caches, settings, keys.
_LEFT_OUT = (".*", "__pycache__", "*.pyc", "*.env", "*.pem", "*.key", "*.orig", "*.rej", "*~")
_TAG = "py3-none-any"
_WHEEL_METADATA = (
    f"Wheel-Version: 1.0\nGenerator: repl-env\nRoot-Is-Purelib: true\nTag: {_TAG}\n".encode()
)
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
    stem = f"{DISTRIBUTION.replace('-', '_')}-{installed.version}"
    metadata = dict(_metadata(installed)) | {"WHEEL": _WHEEL_METADATA}
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
        if inside.match(LIBRARY_PATTERN):
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
    fields = re.sub(r"(?m)^(Name: |Requires-Dist: )repl-env(?=$|\[)", rf"\1{DISTRIBUTION}", fields)
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


# `space_files`: the files of a Space, from those in `space_files/`.

Files = dict[str, bytes]

_SPACE_FILES = Path(__file__).parent / "space_files"
_MANIFEST = Path(__file__).parents[1] / "openenv.yaml"

# Those that are made of a file `NAME.in` with values, those that are copied, and the wheels, of
# which a Space has one.
FILLED = ("README.md", "Dockerfile", "pyproject.toml")
COPIED = (
    "__init__.py",
    "client.py",
    "models.py",
    "wheel_backend.py",
    "requirements.lock",
    "session.lock",
    _MANIFEST.name,
)
WHEELS = "openenv_repl_env-*.whl"


class SpaceFile(Template):
    """A file with values in it, as `@{name}`: `$` belongs to shells."""

    delimiter = "@"


def space_files(plan: SpaceConfig) -> Files:
    """The files by their names: all that is in the folder of a Space.

    Raises:
        PackingError: no wheel can be made here.
        OSError: a file cannot be read.
    """
    wheel, data = packed()
    values = _values(plan, wheel)
    files = {name: _filled(name, values | _access(name, plan, values)) for name in FILLED}
    copied = {name: _path(name).read_bytes() for name in COPIED}
    return {name: text.encode() for name, text in files.items()} | copied | {wheel: data}


def _values(plan: SpaceConfig, wheel: str) -> dict[str, str]:
    return {
        "title": json.dumps(plan.title, ensure_ascii=False),  # which YAML reads likewise
        "title_text": plan.title,
        "base": plan.base,
        "repo": plan.repo or "OWNER/NAME",
        "host": plan.host,
        "wheel": wheel,
        "version": wheel.split("-")[1],
        "base_path": "/",  # the playground, which asks its visitor for a key if one is needed
    }


def _access(name: str, plan: SpaceConfig, values: dict[str, str]) -> dict[str, str]:
    """The part of a file that says who may use the Space, if it has one."""
    part = f"{'keyed' if plan.keyed else 'public'}.{name}"
    return {"access": _filled(part, values)} if _path(f"{part}.in").exists() else {}


def _filled(name: str, values: dict[str, str]) -> str:
    return SpaceFile(_path(f"{name}.in").read_text(encoding="utf-8")).substitute(values)


def _path(name: str) -> Path:
    return _MANIFEST if name == _MANIFEST.name else _SPACE_FILES / name


# `make_space`, `read_space`: the folder of a Space.


def make_space(folder: Path, plan: SpaceConfig, *, replace: bool = False) -> list[Path]:
    """Write a Space into `folder`, which is made if it is not there; the files.

    `replace`: write the files of a Space anew that are there; other files stay.

    Raises:
        FileExistsError: `folder` is not empty, and `replace` is False.
        PackingError: no wheel can be made here; nothing was written.
        OSError: a file cannot be read or written; of what was, nothing is left.
    """
    if folder.exists() and any(folder.iterdir()) and not replace:
        raise FileExistsError(f"{folder} is not empty")
    files = space_files(plan)
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    try:
        for name, data in files.items():
            written.append(folder / name)
            _write(folder / name, data)
    except OSError:
        for file in written:
            file.unlink(missing_ok=True)
        raise
    for old in set(folder.glob(WHEELS)) - set(written):
        old.unlink()
    return written


def read_space(folder: Path) -> Files:
    """The files that make a Space, and no others of `folder`.

    Raises:
        FileNotFoundError: naming one that is missing.
        ValueError: there is more than one wheel.
        OSError: one cannot be read.
    """
    wheels = [file.name for file in folder.glob(WHEELS)]
    if len(wheels) > 1:
        raise ValueError(f"{folder} carries {len(wheels)} wheels: make it anew")
    files: Files = {}
    for name in (*FILLED, *COPIED, *(wheels or [WHEELS])):
        file = folder / name
        if file.is_symlink() or not file.is_file():  # a link may lead to a secret
            raise FileNotFoundError(f"{folder} is no Space: {name} is missing")
        files[name] = file.read_bytes()
    return files


def _write(file: Path, data: bytes) -> None:
    file.unlink(missing_ok=True)  # not through a link to somewhere else
    file.write_bytes(data)
