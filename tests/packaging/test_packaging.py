"""The contents of the wheel, and that it works beside other packages."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributions.building import build, unpack
from repl_sandbox.native.library import MACHINES, file_name

ROOT = Path(__file__).parents[2]
SOURCES = {
    "repl_env": ROOT / "repl_env",
    "repl_sandbox": ROOT / "sandbox" / "repl_sandbox",
    "repl_server": ROOT / "server" / "repl_server",
}
LIBRARY = file_name(os.uname().machine)
TAGS = {
    machine: f"py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}.musllinux_1_1_{machine}"
    for machine in MACHINES
} | {"any": "py3-none-any"}


class Elf:
    """The ELF header of a library (elf(5)): machine, needed libraries, largest page."""

    def __init__(self, content: bytes) -> None:
        (self.machine,) = struct.unpack_from("<H", content, 18)
        (start,) = struct.unpack_from("<Q", content, 32)
        size, count = struct.unpack_from("<HH", content, 54)
        rows = [
            struct.unpack_from("<IIQQQQQQ", content, start + size * index) for index in range(count)
        ]
        (self.page,) = {row[7] for row in rows if row[0] == 1}  # PT_LOAD
        ((place, length),) = [(row[2], row[5]) for row in rows if row[0] == 2]  # PT_DYNAMIC
        entries = struct.iter_unpack("<QQ", content[place : place + length])
        self.needed = [tag for tag, _ in entries].count(1)  # DT_NEEDED


@pytest.fixture(scope="module")
def wheel(wheel_file: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(wheel_file) as archive:
        yield archive


def test_the_wheel_holds_the_three_packages_and_a_plugin_and_nothing_else(
    wheel: zipfile.ZipFile,
) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    packages = {top for top in tops if not top.endswith(".dist-info")}

    assert packages == {*SOURCES, "repl_env_verifiers.py"}
    assert len(tops) == len(SOURCES) + 2


@pytest.mark.parametrize("package", SOURCES)
def test_the_wheel_holds_every_file_of_a_package(wheel: zipfile.ZipFile, package: str) -> None:
    folder = SOURCES[package]
    files = {
        f"{package}/{file.relative_to(folder)}"
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".so"
    }
    if package == "repl_sandbox":
        files.add(f"repl_sandbox/native/{LIBRARY}")

    assert files == {name for name in wheel.namelist() if name.startswith(f"{package}/")}
    assert f"{package}/py.typed" in files


def test_the_sdist_builds_the_same_wheel(wheel_file: Path, tmp_path: Path) -> None:
    build("sdist", tmp_path)
    (sdist,) = tmp_path.glob("*.tar.gz")
    source = unpack(sdist, tmp_path)
    # A library that lies there is perhaps stale, and goes into no wheel.
    (source / "sandbox" / "repl_sandbox" / "native" / LIBRARY).write_bytes(b"stale")
    build("wheel", tmp_path, source)
    (wheel,) = tmp_path.glob("*.whl")

    assert wheel.read_bytes() == wheel_file.read_bytes()


@pytest.mark.slow
def test_all_distributions_are_built_installed_alone_and_run() -> None:
    subprocess.run([sys.executable, "-m", "distributions"], cwd=ROOT, check=True)

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {path.name for path in (ROOT / "dist").iterdir() if path.is_file()} == {
        "constraints.txt",
        f"openenv_repl_env-{version}-py3-none-any.whl",
        *(f"repl_env-{version}-{tag}.whl" for tag in TAGS.values()),
        f"repl_env-{version}.tar.gz",
    }
    for machine, tag in TAGS.items():
        check_libraries(ROOT / "dist" / f"repl_env-{version}-{tag}.whl", machine)


def check_libraries(file: Path, machine: str) -> None:
    """A wheel has the library of its machine alone, for 64 KiB pages too, and needs no other."""
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so")]
        content = [archive.read(name) for name in names]
    if machine == "any":
        assert names == []
        return
    assert names == [f"repl_sandbox/native/{file_name(machine)}"]
    library = Elf(content[0])
    assert library.machine == {"x86_64": 62, "aarch64": 183}[machine]
    assert library.needed == 0
    assert library.page % {"x86_64": 4096, "aarch64": 65536}[machine] == 0


def test_a_wheel_of_this_machine_has_a_library_that_needs_no_other(wheel_file: Path) -> None:
    machine = os.uname().machine
    assert wheel_file.name.endswith(f"-{TAGS[machine]}.whl")
    check_libraries(wheel_file, machine)


def test_a_wheel_for_other_systems_has_no_library(tmp_path: Path) -> None:
    build("wheel", tmp_path, machine="any")
    (wheel,) = tmp_path.glob("*.whl")

    assert wheel.name.endswith(f"-{TAGS['any']}.whl")
    check_libraries(wheel, "any")


def test_the_wheel_declares_the_command_and_its_group(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/entry_points.txt"))
    declared = wheel.read(name).decode()

    assert "repl-env = repl_env.cli.main:main" in declared
    commands = declared.partition("[repl_env.commands]\n")[2].splitlines()
    assert "doctor = repl_env.cli.doctor:doctor" in commands
    assert "eval = repl_env.cli.evaluate:evaluate" in commands
    assert "bench-tasks = repl_env.cli.tasks:bench_tasks" in commands


def test_the_wheel_carries_the_licence(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith("/LICENSE"))

    assert "Apache License" in wheel.read(name).decode()


def test_the_wheel_works_in_a_folder_with_its_own_server_and_sandbox(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    wheel.extractall(site)
    work.mkdir()
    for name in ("server.py", "sandbox.py", "tests.py", "docker.py"):
        (work / name).write_text("raise RuntimeError('the user’s own file')")
    program = (
        f"import sys; sys.path[:0] = [{str(work)!r}, {str(site)!r}]\n"
        "import repl_sandbox.types, repl_env.models, repl_server\n"
        "print(repl_sandbox.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=work, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip().startswith(str(site))
