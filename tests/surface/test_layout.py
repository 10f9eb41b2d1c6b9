"""Folders are concepts: few files each, and no name twice within a package."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.surface.counts import PACKAGES, modules, repeated_classes, repeated_files

# About a dozen, without `__init__.py`.
MAX_FILES = 16


@pytest.mark.parametrize("root", PACKAGES.values(), ids=PACKAGES)
def test_a_folder_has_few_files(root: Path) -> None:
    files = Counter(file.parent for file in modules(root) if file.name != "__init__.py")

    assert {str(folder): count for folder, count in files.items() if count > MAX_FILES} == {}


@pytest.mark.parametrize("root", PACKAGES.values(), ids=PACKAGES)
def test_no_file_and_no_class_has_the_name_of_another(root: Path) -> None:
    assert (repeated_files(root), repeated_classes(root)) == ([], [])
