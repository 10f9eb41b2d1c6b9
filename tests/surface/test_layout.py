"""Folders are concepts: few files each, and no name twice within a package. Tests follow them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.surface.counts import PACKAGES, modules, repeated_classes, repeated_files
from tests.surface.names import ROOT

# About a dozen, without `__init__.py`.
MAX_FILES = 16
TESTS = ROOT / "tests"
# The folder of a package's tests.
TESTED = {"repl_sandbox": "sandbox", "repl_env": "repl_env", "repl_server": "server"}


def full(files: Iterable[Path]) -> dict[str, int]:
    """The folders with too many files, and how many."""
    counts = Counter(file.parent for file in files if file.name != "__init__.py")
    return {str(folder): count for folder, count in counts.items() if count > MAX_FILES}


def unmatched(tests: Path, package: Path) -> list[str]:
    """The folders of `tests` whose path is neither a folder nor a module of `package`."""
    folders = {file.parent.relative_to(tests) for file in tests.rglob("*.py")}
    known = (package / folder for folder in sorted(folders))
    return [str(path) for path in known if not (path.is_dir() or path.with_suffix(".py").is_file())]


@pytest.mark.parametrize("root", PACKAGES.values(), ids=PACKAGES)
def test_a_folder_has_few_files(root: Path) -> None:
    assert full(modules(root)) == {}


def test_a_folder_of_tests_has_few_files() -> None:
    assert full(TESTS.rglob("*.py")) == {}


@pytest.mark.parametrize("root", PACKAGES.values(), ids=PACKAGES)
def test_no_file_and_no_class_has_the_name_of_another(root: Path) -> None:
    assert (repeated_files(root), repeated_classes(root)) == ([], [])


@pytest.mark.parametrize("package", TESTED)
def test_tests_lie_in_the_folders_of_what_they_test(package: str) -> None:
    assert unmatched(TESTS / TESTED[package], PACKAGES[package]) == []


def test_a_full_folder_and_a_folder_of_nothing_are_found(tmp_path: Path) -> None:
    package, tests = tmp_path / "package", tmp_path / "tests"
    for path in ("cells/output.py", "limits.py"):
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).touch()
    folders = ("", "cells", "cells/output", "limits", "cells/limits", "old")
    files = [tests / folder / "test_it.py" for folder in folders]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    assert unmatched(tests, package) == [str(package / "cells/limits"), str(package / "old")]

    more = [tests / "cells" / f"test_{number}.py" for number in range(MAX_FILES)]
    assert full([*files, *more]) == {str(tests / "cells"): MAX_FILES + 1}
