"""Which compiler builds the native library, and when the build asks for ziglang.

Through the interface that pip uses, `hatchling.build`, and through `make native`'s program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from repl_sandbox.native.build import ZIG

ROOT = Path(__file__).parents[2]
# Ziglang counts as not installed, whatever other tests have needed.
HOOK = """
import sys
import hatchling.builders.wheel
sys.modules["ziglang"] = None
sys.platform = sys.argv[1]
from hatchling.build import get_requires_for_build_wheel
print(*get_requires_for_build_wheel())
"""
BUILD = """
import sys
sys.modules["ziglang"] = None
from hatchling.build import build_wheel
build_wheel(sys.argv[1])
"""
IN_PLACE = """
import runpy, sys
sys.modules["ziglang"] = None
runpy.run_module("repl_sandbox.native.build", run_name="__main__")
"""
FOREIGN = "aarch64" if os.uname().machine == "x86_64" else "x86_64"
# Shell scripts; the real compiler is $REAL.
COMPILERS = {
    "fails": "echo no such option >&2; exit 1",
    "is killed": "kill -9 $$",
    "writes nothing": "exit 0",
    "writes no library": 'while [ "$1" != -o ]; do shift; done; echo hello > "$2"',
    "writes a foreign library": 'while [ "$1" != -o ]; do shift; done; cp /proc/self/exe "$2"',
    "defines another hash": 'exec "$REAL" "$@" -UREPL_BUILD_HASH -DREPL_BUILD_HASH=\\"0\\"',
    "warns of code": 'case "$*" in *more.c*) echo warning >&2; exit 1;; esac; exec "$REAL" "$@"',
}


@pytest.fixture(scope="module")
def real() -> str:
    path = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if path is None:
        pytest.skip("no compiler here")
    return path


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """A PATH with a shell and the tools of the scripts, without a compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "cp", "as", "ld"):
        if path := shutil.which(name):
            (folder / name).symlink_to(path)
    return folder


def script(bin_folder: Path, name: str, text: str) -> None:
    file = bin_folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def asked(
    path: Path, variables: Mapping[str, str] = {}, platform: str = "linux", source: Path = ROOT
) -> str:
    """The requirements that a build passes to pip besides hatchling."""
    done = ran(["-c", HOOK, platform], path, variables, source)
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


def ran(
    arguments: list[str], path: Path, variables: Mapping[str, str] = {}, source: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "CC"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=source,
        env={**kept, "PATH": str(path), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_without_a_compiler_the_build_asks_for_ziglang(bin_folder: Path) -> None:
    assert asked(bin_folder) == ZIG


@pytest.mark.parametrize("name", ["cc", "gcc", "clang", "$CC"])
def test_a_compiler_is_found_by_each_name(bin_folder: Path, real: str, name: str) -> None:
    if name == "$CC":
        assert asked(bin_folder, {"CC": f"{real} -O1"}) == ""
        return
    script(bin_folder, name, f'exec {real} "$@"')
    assert asked(bin_folder) == ""


@pytest.mark.parametrize("case", COMPILERS)
def test_a_broken_compiler_is_passed_over(
    bin_folder: Path, real: str, copy: Path, case: str
) -> None:
    variables = {"REAL": real}
    script(bin_folder, "cc", COMPILERS[case])
    assert asked(bin_folder, variables, source=copy) == ZIG

    script(bin_folder, "gcc", 'exec "$REAL" "$@"')
    assert asked(bin_folder, variables, source=copy) == ""


@pytest.mark.parametrize(
    ("variables", "platform", "expected"),
    [
        ({"REPL_ENV_BUILD_FOR": "any"}, "linux", ""),
        ({"REPL_ENV_BUILD_FOR": FOREIGN}, "linux", ZIG),
        ({}, "darwin", ""),
        ({}, "win32", ""),
        ({"REPL_ENV_BUILD_FOR": "x86_64"}, "darwin", ZIG),
    ],
)
def test_a_wheel_of_another_system_needs_no_compiler_or_ziglang(
    bin_folder: Path, variables: dict[str, str], platform: str, expected: str
) -> None:
    assert asked(bin_folder, variables, platform) == expected


def test_an_unknown_machine_is_refused() -> None:
    done = ran(["-c", HOOK, "linux"], Path("/bin"), {"REPL_ENV_BUILD_FOR": "mips"})

    assert done.returncode != 0
    assert "REPL_ENV_BUILD_FOR=mips is none of x86_64, aarch64, any" in done.stdout


def test_a_build_without_a_compiler_says_what_to_install(
    bin_folder: Path, copy: Path, tmp_path: Path
) -> None:
    script(bin_folder, "cc", COMPILERS["fails"])
    done = ran(["-c", BUILD, str(tmp_path)], bin_folder, source=copy)

    assert done.returncode != 0
    assert "no such option" in done.stdout
    assert f"pip install '{ZIG}'" in done.stdout
    assert list(tmp_path.glob("*.whl")) == []


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The project, with a C file more, and without a library."""
    folder = tmp_path / "project"
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder)
    for package in ("repl_env", "sandbox/repl_sandbox", "server/repl_server"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
    native = Path("sandbox", "repl_sandbox", "native")
    shutil.copytree(ROOT / native, folder / native, ignore=shutil.ignore_patterns("*.so"))
    for name in ("errors.py", "display.py"):
        shutil.copy(ROOT / "sandbox/repl_sandbox" / name, folder / "sandbox/repl_sandbox")
    (folder / native / "more.c").write_text("int more(void) { return 1; }\n")
    return folder


def in_place(copy: Path, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run what `make native` runs; pip finds nothing to install."""
    closed = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    given = {"PYTHONPATH": str(copy / "sandbox"), **closed, **variables}
    return ran(["-c", IN_PLACE], path, given, copy)


def test_a_stale_library_is_rebuilt(copy: Path, bin_folder: Path, real: str) -> None:
    counted = 'echo >> "$COUNT"; exec "$REAL" "$@"'
    script(bin_folder, "cc", counted)
    count = copy / "count"
    count.touch()
    folder = copy / "sandbox" / "repl_sandbox" / "native"
    variables = {"REAL": real, "COUNT": str(count)}

    def calls() -> int:
        before = len(count.read_text())
        assert in_place(copy, bin_folder, **variables).returncode == 0
        return len(count.read_text()) - before

    assert calls() > 0
    assert calls() == 0
    (folder / "more.c").touch()  # a newer file with the same content
    assert calls() == 0
    (folder / "export.h").write_text(f"{(folder / 'export.h').read_text()}\n")
    assert calls() > 0
    (library,) = folder.glob("*.so")
    library.write_bytes(library.read_bytes()[:100])
    assert calls() > 0
    assert [file.name for file in folder.glob("*.so")] == [library.name]


def test_a_developer_sees_what_the_compiler_says(copy: Path, bin_folder: Path, real: str) -> None:
    script(bin_folder, "cc", 'exec "$REAL" "$@"')
    script(bin_folder, "gcc", 'exec "$REAL" -w "$@"')  # which would accept it
    file = copy / "sandbox" / "repl_sandbox" / "native" / "more.c"
    file.write_text("int more(int unused) { return 1; }\n")
    done = in_place(copy, bin_folder, REAL=real)

    assert done.returncode == 1
    assert "unused" in done.stdout
    assert "more.c" in done.stdout


def test_a_call_of_libc_is_an_error_of_the_build(copy: Path, bin_folder: Path, real: str) -> None:
    script(bin_folder, "cc", 'exec "$REAL" "$@"')
    file = copy / "sandbox" / "repl_sandbox" / "native" / "more.c"
    file.write_text("int getpid(void); int more(void) { return getpid(); }\n")
    done = in_place(copy, bin_folder, REAL=real)

    assert done.returncode == 1
    assert "getpid" in done.stdout


def test_without_any_compiler_the_program_says_what_is_missing(
    copy: Path, bin_folder: Path
) -> None:
    done = in_place(copy, bin_folder)

    assert done.returncode == 1
    assert f"pip install '{ZIG}'" in done.stdout
    assert list(copy.rglob("*.so")) == []
