"""`Machine`: Debian in memory on an emulated processor, which runs pytest in a checkout and ends.

Its kernel has version 2 of control groups, which many test machines lack.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from repl_sandbox.native import build as native
from repl_sandbox.native.library import file_name

# Each program that is needed, and the package of Debian that has it.
TOOLS = {
    "debootstrap": "debootstrap",
    "dpkg-deb": "dpkg",
    "qemu-system-aarch64": "qemu-system-arm",
    "cpio": "cpio",
    "git": "git",
}
_RELEASE, _MIRROR = "trixie", "http://deb.debian.org/debian"
_PACKAGES = "python3,linux-image-cloud-arm64,procps,iproute2,kmod"
_LIBRARIES = ("pytest", "hypothesis", "psutil", "numpy")  # of the extra `dev`, with all of the base
_PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64", "any")
_SITE = "usr/local/lib/python{}/dist-packages"
_CHECKOUT = "work/checkout"  # of the machine
_MACHINE, _NATIVE = "aarch64", "sandbox/repl_sandbox/native"
_MEMORY = "6G"  # of which the files take one
_ENDED = re.compile(rb"tests ended with status (\d+)")
_INIT = Path(__file__).parent


class MachineError(Exception):
    """This machine cannot be emulated; the text names the remedy."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A root file system, packed, and the kernel that belongs to it."""

    kernel: Path
    packed: Path

    @classmethod
    def prepared(cls, folder: Path, checkout: Path) -> Machine:
        """The machine in `folder`, made if it is not there.

        Raises:
            MachineError: a program is missing, this is not root, or a download failed.
        """
        missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
        if missing:
            raise MachineError(f"apt-get install {' '.join(missing)}")
        if os.geteuid() != 0:
            raise MachineError("debootstrap has to be run by root")
        root, packed = folder / "root", folder / "root.cpio"
        if not packed.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            _fill(root, checkout)
            _pack(root, packed)
        return cls(next((root / "boot").glob("vmlinuz-*")), packed)

    def run(self, checkout: Path, arguments: Sequence[str]) -> int:
        """Run pytest in a copy of what git knows of `checkout`; its exit status.

        Raises:
            MachineError: the machine ended before pytest did.
        """
        with tempfile.TemporaryDirectory() as kept:
            initial = Path(kept, "initial.cpio")
            _add(checkout, arguments, Path(kept, "added"), initial, self.packed)
            return _status(_command(self.kernel, initial))


def _fill(root: Path, checkout: Path) -> None:
    debootstrap = ["debootstrap", "--foreign", "--arch=arm64", "--variant=minbase"]
    _call(*debootstrap, f"--include={_PACKAGES}", _RELEASE, str(root), _MIRROR)
    archives = root / "var/cache/apt/archives"
    # Unpacked only: their scripts cannot run on this processor, and are not needed.
    for package in sorted(archives.glob("*.deb")):
        _call("dpkg-deb", "-x", str(package), str(root))
    for needless in (archives, root / "debootstrap", root / "usr/share/doc"):
        shutil.rmtree(needless)
    version = os.readlink(root / "usr/bin/python3").removeprefix("python")
    site = root / _SITE.format(version)
    platforms = [f"--platform={name}" for name in _PLATFORMS]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", *platforms]
    _call(*pip, f"--python-version={version}", f"--target={site}", *_requirements(checkout))
    paths = ("", "/sandbox", "/server")
    site.joinpath("checkout.pth").write_text("".join(f"/{_CHECKOUT}{path}\n" for path in paths))
    for name in ("init", "tests"):
        shutil.copy(_INIT / f"{name}.sh", root / f"{name}.sh")


def _requirements(checkout: Path) -> list[str]:
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    extra: list[str] = project["optional-dependencies"]["dev"]
    return [*project["dependencies"], *(each for each in extra if each.startswith(_LIBRARIES))]


def _add(
    checkout: Path, arguments: Sequence[str], added: Path, initial: Path, packed: Path
) -> None:
    """Put the checkout behind what is packed: the kernel unpacks one after the other."""
    place = added / _CHECKOUT
    place.mkdir(parents=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=checkout, check=True, capture_output=True
    )
    for name in listed.stdout.decode().split("\0")[:-1]:
        if (checkout / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, place / name)
    native.install_compiler(_MACHINE)
    native.compile_library(_MACHINE, place / _NATIVE / file_name(_MACHINE))
    (added / "arguments").write_text(f"{shlex.join(arguments)}\n")
    _pack(added, behind := added.with_suffix(".cpio"))
    with initial.open("wb") as target:
        for part in (packed, behind):
            with part.open("rb") as source:
                shutil.copyfileobj(source, target)


def _pack(folder: Path, packed: Path) -> None:
    names = "\n".join(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))
    part = packed.with_suffix(".part")
    with part.open("wb") as target:
        command = ["cpio", "--create", "--format=newc", "--quiet"]
        subprocess.run(command, cwd=folder, input=names.encode(), stdout=target, check=True)
    part.rename(packed)


def _command(kernel: Path, initial: Path) -> list[str]:
    machine = ["qemu-system-aarch64", "-machine", "virt,gic-version=3", "-smp", "2", "-m", _MEMORY]
    # All that the emulator has, but for what makes it slow.
    processor = ["-cpu", "max,sve=off,pauth-impdef=on", "-accel", "tcg,thread=multi"]
    alone = ["-nographic", "-no-reboot", "-nic", "none"]
    # Huge pages as distributions set them.
    told = "console=ttyAMA0 rdinit=/init.sh quiet panic=-1 transparent_hugepage=madvise"
    booted = ["-kernel", str(kernel), "-initrd", str(initial), "-append", told]
    return [*machine, *processor, *alone, *booted]


def _status(command: Sequence[str]) -> int:
    """Show what the machine says, to its end; the status that it ended with."""
    found = None
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            found = _ENDED.search(line) or found
    if found is None:
        raise MachineError("the machine ended before the tests did; see above")
    return int(found[1])


def _call(*command: str) -> None:
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError as error:
        raise MachineError(f"{command[0]} ended with status {error.returncode}") from error
