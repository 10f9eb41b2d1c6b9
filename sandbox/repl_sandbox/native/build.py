"""Build of the native library, for `make native`, the build hook in `hatch_build.py`, and Spaces.

Standard library only: the hook searches a compiler before any dependency of a build is installed.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import IsolationError
from . import library

FOLDER = Path(library.NATIVE_FOLDER)
# A compiler for all machines, on all systems, which pip installs and which needs nothing else.
ZIG = "ziglang>=0.13,<0.18"
# The smallest of the files: a compiler that makes a library of it works.
_PROOF = ("build_hash.c",)
_SECONDS = 300.0


class BuildError(Exception):
    """The library cannot be built; the text gives the reason of each compiler that was tried."""


def supported() -> bool:
    """Return whether the engine runs on this system; on others the library is not built."""
    return sys.platform == "linux" and os.uname().machine in library.MACHINES


def requirements(machine: str) -> list[str]:
    """Return the packages that `compile_library` needs: none if a compiler here works."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            compile_library(machine, Path(folder, "library.so"))
        except BuildError:
            return [ZIG]
    return []


def compile_library(machine: str, target: Path, *, strict: bool = False) -> None:
    """Compile all C files into `target`, which is replaced as a whole.

    A compiler that does not build the library is skipped: it may be broken, or warn of code that
    other compilers accept, and neither may stop an installation. With `strict`, for developers, the
    first compiler that builds a test file decides.

    Raises:
        BuildError: no compiler here builds the library.
    """
    report = [f"no compiler here builds the native library for {machine}"]
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "library.so")
        for compiler in _compilers(machine):
            try:
                _compile(compiler, machine, library.c_files(), built)
            except BuildError as error:
                report.append(f"$ {shlex.join(compiler)}\n{error}")
                if strict and _works(compiler, machine):
                    break
            else:
                _replace(target, built.read_bytes())
                return
    report.append(f"Install gcc or clang, or run `pip install '{ZIG}'`")
    raise BuildError("\n".join(report))


def build_in_place() -> None:
    """Compile the library of this machine beside its sources, if it is missing or stale.

    Raises:
        BuildError: the library cannot be built.
    """
    machine = os.uname().machine
    target = FOLDER / library.file_name(machine)
    if refusal(target, machine) is None:
        return
    install_compiler(machine)
    compile_library(machine, target, strict=True)


def install_compiler(machine: str) -> None:
    """Install ziglang for this interpreter by pip, unless a compiler here works."""
    if not any(_works(compiler, machine) for compiler in _compilers(machine)):
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
        # pip's own message is enough; without the package, the build fails and says so.
        subprocess.run([*pip, ZIG], check=False)


def _compilers(machine: str) -> Iterator[list[str]]:
    """Yield the command of each compiler: $CC and the system's for its machine, then Zig."""
    if supported() and machine == os.uname().machine:
        named = shlex.split(os.environ.get("CC", ""))
        for command in (named, ["cc"], ["gcc"], ["clang"]):
            if command and shutil.which(command[0]):
                yield command
    importlib.invalidate_caches()  # Zig may have been installed a moment ago
    if importlib.util.find_spec("ziglang") is not None:
        yield [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-musl"]


def _works(compiler: Sequence[str], machine: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            _compile(compiler, machine, _PROOF, Path(folder, "library.so"))
        except BuildError:
            return False
    return True


def _compile(compiler: Sequence[str], machine: str, files: Sequence[str], target: Path) -> None:
    """Compile `files`; BuildError if the compiler fails, or if its output is not a library."""
    command = [
        *compiler,
        *library.FLAGS,
        *library.MACHINE_FLAGS.get(machine, ()),
        f'-DREPL_BUILD_HASH="{library.source_hash()}"',
        *("-o", str(target)),
        *files,
    ]
    # Zig caches in the home directory, which a user who builds may lack.
    cache = dict.fromkeys(("ZIG_LOCAL_CACHE_DIR", "ZIG_GLOBAL_CACHE_DIR"), str(target.parent))
    try:
        done = subprocess.run(
            command,
            cwd=library.NATIVE_FOLDER,
            env=os.environ | cache,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(str(error)) from error
    if done.returncode:
        raise BuildError(done.stdout.strip() or f"exit status {done.returncode}")
    if (problem := refusal(target, machine)) is not None:
        raise BuildError(problem)


def refusal(path: Path, machine: str) -> str | None:
    """Return why the file at `path` is not the library of these sources for `machine`."""
    try:
        library.read_build(str(path), machine)
    except OSError as error:
        return str(error)
    except IsolationError as error:
        return error.message
    return None


def _replace(target: Path, content: bytes) -> None:
    """Replace `target`: processes that have mapped the old file keep it."""
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".native-", delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o644)  # sessions of other users read it
    os.replace(file.name, target)


def main() -> int:
    """Build in place; return 1 on failure."""
    try:
        if supported():
            build_in_place()
    except BuildError as error:
        print(error, file=sys.stderr)  # noqa: T201 (a program of the build)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
