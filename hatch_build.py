"""The build hook: compiles the native library into wheels, and into a checkout installed editable.

REPL_ENV_BUILD_FOR chooses what a wheel is for: "x86_64", "aarch64", or "any", without the library.
The default is this machine where the engine runs, else "any": other systems get the client.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent / "sandbox"))  # before any engine that is installed

from repl_sandbox.native import build
from repl_sandbox.native.library import MACHINES, file_name

# One file for both families: nothing of either is in the library. ziglang's wheels are named alike.
TAG = "py3-none-manylinux_2_17_{0}.manylinux2014_{0}.musllinux_1_1_{0}"


class NativeHook(BuildHookInterface):  # type: ignore[type-arg]  # hatchling's own examples have none
    """Adds the library to a wheel, and the machine to its name."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Ziglang, where no other compiler builds the library."""
        machine = self._machine()
        return build.requirements(machine) if machine else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before hatchling collects the files."""
        machine = self._machine()
        if not machine:
            return
        if version == "editable":
            build.build_in_place()
            return
        self._scratch = tempfile.TemporaryDirectory()
        name = file_name(machine)
        library = Path(self._scratch.name, name)
        build.compile_library(machine, library)
        build_data["force_include"][str(library)] = f"repl_sandbox/native/{name}"
        build_data["pure_python"] = False
        build_data["tag"] = TAG.format(machine)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled for a wheel."""
        if hasattr(self, "_scratch"):
            self._scratch.cleanup()

    def _machine(self) -> str:
        """The machine to compile for, or "" for none."""
        if self.target_name != "wheel":
            return ""
        chosen = os.environ.get("REPL_ENV_BUILD_FOR") or (
            os.uname().machine if build.supported() else "any"
        )
        if chosen == "any":
            return ""
        if chosen not in MACHINES:
            raise ValueError(f"REPL_ENV_BUILD_FOR={chosen} is none of x86_64, aarch64, any")
        return chosen
