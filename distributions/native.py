"""Compile the native library: `make native`, and the build hook of pyproject.toml.

Standard library only: the hook asks which compiler is proven before any dependency is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "sandbox"))  # this checkout's engine, also where another is installed

from repl_sandbox.native import sources  # noqa: E402

FOLDER = Path(sources.FOLDER)
# Compilers for both machines and nothing else needed, from the package index.
ZIG = "ziglang>=0.13,<0.18"
_SECONDS = 300.0


class NoCompilerError(Exception):
    """No compiler here builds the library; the text says what each of them said."""


def requirements(machine: str) -> list[str]:
    """What has to be installed before `compile_library`: nothing where a compiler is proven."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            compile_library(machine, Path(folder, "proof.so"))
        except NoCompilerError:
            return [ZIG]
    return []


def compile_library(machine: str, target: Path) -> None:
    """Compile all C files into `target`, by the first compiler that can.

    Compilers are proven by the library itself: one that is broken, or that warns of what others
    accept, is passed over. `target` appears whole or not at all, so that two builds at once do no
    harm, and processes that have mapped the old file keep it.

    Raises:
        NoCompilerError: there is none.
    """
    said = []
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "library.so")
        for compiler in _compilers(machine):
            message = _compile(compiler, machine, built)
            if message is None:
                _move(built, target)
                return
            said.append(f"$ {' '.join(compiler)}\n{message}")
    raise NoCompilerError(
        f"no compiler here builds the native library for {machine}; install gcc or clang, or the"
        f" package ziglang\n{os.linesep.join(said)}"
    )


def _compilers(machine: str) -> Iterator[list[str]]:
    """The command of each compiler that may be here: $CC, the system's, that of ziglang."""
    if machine == os.uname().machine:
        named = os.environ.get("CC", "").split()
        for command in (named, ["cc"], ["gcc"], ["clang"]):
            if command and shutil.which(command[0]):
                yield command
    if importlib.util.find_spec("ziglang") is not None:
        yield [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-musl"]


def _compile(compiler: Sequence[str], machine: str, target: Path) -> str | None:
    """None if `compiler` made the library, else what it said."""
    command = [
        *compiler,
        *sources.FLAGS,
        *sources.MACHINE_FLAGS.get(machine, ()),
        f'-DREPL_BUILD_HASH="{sources.build_hash()}"',
        *("-o", str(target)),
        *sources.c_files(),
    ]
    # Zig caches into the home directory, which a build may not have.
    cache = {"ZIG_LOCAL_CACHE_DIR": str(target.parent), "ZIG_GLOBAL_CACHE_DIR": str(target.parent)}
    try:
        done = subprocess.run(
            command,
            cwd=FOLDER,
            env={**os.environ, **cache},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode or not target.is_file():
        return f"{done.stderr}{done.stdout}" or f"exit status {done.returncode}"
    return None


def _move(built: Path, target: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".native-", delete=False) as file:
        file.write(built.read_bytes())
    os.chmod(file.name, 0o644)  # sessions of other users load it
    os.replace(file.name, target)


def supported() -> bool:
    """Whether the engine runs here: elsewhere the packages are installed without the library."""
    return sys.platform == "linux" and os.uname().machine in sources.MACHINES


def build_in_place() -> None:
    """Compile the library of this machine beside its sources, unless it is there and not stale."""
    target = FOLDER / sources.file_name(os.uname().machine)
    current = sources.build_hash().encode()
    if not target.exists() or current not in target.read_bytes():
        compile_library(os.uname().machine, target)


def main() -> int:
    """`make native`: 1 if the library cannot be built."""
    parser = argparse.ArgumentParser(prog="python -m distributions.native", description=__doc__)
    parser.add_argument(
        "--requirements", action="store_true", help="only print the package that a build needs"
    )
    given = parser.parse_args()
    if not supported():
        return 0
    if given.requirements:
        print(*requirements(os.uname().machine))
        return 0
    try:
        build_in_place()
    except NoCompilerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
