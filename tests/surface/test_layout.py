"""The size of the house: few files, each a concept; folders of five files or more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.surface.counts import PACKAGES, modules, repeated_classes
from tests.surface.names import ROOT

# Ceilings that only fall; the goal is 240 files in all.
MAX_FILES = {"repl_sandbox": 113, "repl_env": 149, "repl_server": 32}
# Folders of fewer than five files, with the reason.
SMALL = {
    "repl_env/display": "beside it `web/`, static files",
    "repl_env/evaluation": "a public package",
    "repl_env/integrations/space_files": "most of the files of a Space are no Python",
    "repl_env/parsing": "a public package",
    "repl_env/server": "OpenEnv's own path",
    "sandbox/repl_sandbox/native": "beside C files",
    "sandbox/repl_sandbox/policies": "loaded in a session where a policy asks for it",
    "server/repl_server/web": "beside static files",
}
# Files whose name begins with that of their folder.
REPEATING = {
    "repl_env/client/client.py": "`REPLEnv` itself",
    "repl_env/env/environment.py": "`REPLEnvironment` itself",
}
MAX_TEST_FILES = 20  # in a folder of tests


def files_of(package: str) -> list[Path]:
    """The modules of a package with code in them."""
    return [file for file in modules(PACKAGES[package]) if file.name != "__init__.py"]


def small(files: list[Path]) -> Iterator[Path]:
    """The folders of fewer than five of `files`; a package itself is none."""
    counts = Counter(file.parent for file in files)
    yield from (folder for folder, count in counts.items() if count < 5)


def repeating(files: list[Path]) -> Iterator[Path]:
    """The files whose name begins with that of their folder."""
    yield from (file for file in files if file.name.startswith(file.parent.name))


def found(paths: Iterator[Path]) -> set[str]:
    """The paths below the checkout."""
    return {f"{path.relative_to(ROOT)}" for path in paths}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_few_files(package: str) -> None:
    assert len(files_of(package)) <= MAX_FILES[package]


def test_a_folder_has_five_files_or_more() -> None:
    every = [file for package in PACKAGES for file in files_of(package)]
    assert found(small(every)) == set(SMALL)


def test_no_file_has_the_name_of_its_folder_in_front() -> None:
    every = [file for package in PACKAGES for file in files_of(package)]
    assert found(repeating(every)) == set(REPEATING)


@pytest.mark.parametrize("root", PACKAGES.values(), ids=PACKAGES)
def test_no_class_has_the_name_of_another(root: Path) -> None:
    assert repeated_classes(root) == []


def test_a_folder_of_tests_has_few_files() -> None:
    counts = Counter(file.parent for file in (ROOT / "tests").rglob("*.py"))
    assert {folder: count for folder, count in counts.items() if count > MAX_TEST_FILES} == {}


def test_a_small_folder_and_a_repeated_name_are_found(tmp_path: Path) -> None:
    few = [tmp_path / "cells" / f"part_{number}.py" for number in range(4)]
    assert [*small(few)] == [tmp_path / "cells"]
    assert [*small([*few, tmp_path / "cells" / "cells_of_a_row.py"])] == []
    assert [*repeating([*few, tmp_path / "cells" / "cells_of_a_row.py"])] == [
        tmp_path / "cells" / "cells_of_a_row.py"
    ]
