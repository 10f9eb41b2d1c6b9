"""The C harness, which `make test-native` runs under the sanitizers, runs without them too."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from repl_sandbox.native import library

HERE = Path(__file__).parent
COMPILER = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), "")


@pytest.mark.skipif(not COMPILER, reason="there is no C compiler")
def test_the_sanitizers_find_no_error(tmp_path: Path) -> None:
    files = [
        Path(library.NATIVE_FOLDER, name) for name in library.c_files() if name != "build_hash.c"
    ]
    program = tmp_path / "harness"
    build = [COMPILER, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", str(program)]
    subprocess.run([*build, str(HERE / "harness.c"), *map(str, files)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "the native core does what it should\n")
