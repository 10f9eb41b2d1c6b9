"""docs/public_names.toml and docs/reference.md say what the code exports.

After a change that is meant, `python -m tests.surface --write` writes both.
"""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from importlib import import_module
from typing import get_type_hints

import pytest

from repl_env import CodeBlockResult, REPLObservation
from repl_env.rlm import RunConfig
from repl_sandbox import Change, Limits, Outcome
from tests.surface.counts import PACKAGES, public
from tests.surface.exports import found, names_of
from tests.surface.names import ROOT, SAME, importable, listed
from tests.surface.reference import PAGE, headings, section, sections

SURFACE = listed()
MODULES = [module for module in SURFACE if importable(module)]
# Pages for users, and examples that users copy.
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("examples/*.py"),
]
IMPORT = re.compile(
    r"^\s*from ((?:repl_env|repl_sandbox|repl_server)[\w.]*) import ([\w, ]+|\([\w,\s]+\))",
    re.MULTILINE,
)
# examples/demo.py prints a run as the command does, with the command's own code.
SHOWN_BY_COMMANDS = "repl_env.cli"


@pytest.fixture(scope="module")
def now() -> dict[str, dict[str, str]]:
    return found(SURFACE)


@pytest.mark.parametrize("module", SURFACE)
def test_the_list_has_the_names_and_signatures_of_the_code(module: str, now) -> None:
    assert now[module] == SURFACE[module]


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_the_names_and_docstrings_of_the_code(module: str) -> None:
    made = section(module, SURFACE[module], headings(SURFACE, module))
    assert made == sections(PAGE)[module]


@pytest.mark.parametrize("module", MODULES)
def test_a_package_exports_no_name_outside_its_list(module: str) -> None:
    package = import_module(module)
    if hasattr(package, "__path__"):
        tree = ast.parse(inspect.getsource(package))
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom | ast.Import)]
        imported = {alias.name for node in imports for alias in node.names}
        offered = {name for name in dir(package) if not name.startswith("_")} - imported
        parts = {name for name in offered if inspect.ismodule(getattr(package, name))}

        assert offered - parts - {"TYPE_CHECKING", "annotations"} == set(names_of(module))


ELSEWHERE = {
    # verifiers starts the module of a tool set as a program, which imports that of the data.
    ("repl_env.integrations.verifiers", "REPLToolset"),
    ("repl_env.integrations.verifiers", "REPLData"),
    # Tracebacks in a session name it without a module, as Python's own exceptions.
    ("repl_sandbox", "PolicyError"),
}
HOMES = [
    (module, name)
    for module in MODULES
    for name, text in SURFACE[module].items()
    if "." not in name and not text.startswith(("constant", SAME))
    if (module, name) not in ELSEWHERE
]


@pytest.mark.parametrize(("module", "name"), HOMES)
def test_a_public_object_names_the_module_that_documents_it(module: str, name: str) -> None:
    value = getattr(import_module(module), name)

    assert (value.__module__, value.__qualname__) == (module, name)
    assert pickle.loads(pickle.dumps(value)) is value


def test_annotations_of_a_public_class_are_evaluated_where_it_is_defined() -> None:
    assert get_type_hints(REPLObservation)["result"] is CodeBlockResult
    assert get_type_hints(RunConfig)["timeout_s"] == float | None
    assert get_type_hints(Outcome)["changes"] == tuple[Change, ...]
    assert get_type_hints(Limits)["cpu_seconds"] == float | None


def test_each_integration_that_exports_names_is_listed() -> None:
    folder = PACKAGES["repl_env"] / "integrations"
    exporting = {
        "repl_env.integrations." + ".".join(file.relative_to(folder).with_suffix("").parts)
        for file in folder.rglob("*.py")
        if "space_files" not in file.parts and "__all__ = " in file.read_text(encoding="utf-8")
    }
    exporting = {name.removesuffix(".__init__") for name in exporting}
    assert exporting
    assert exporting <= set(SURFACE)


def documented() -> Iterator[tuple[str, str, str]]:
    """Yield each name that a page or an example imports: the file, the module, the name."""
    for file in DOCUMENTS:
        for module, names in IMPORT.findall(file.read_text(encoding="utf-8")):
            if not module.startswith(SHOWN_BY_COMMANDS):
                for name in re.findall(r"\w+", names):
                    yield str(file.relative_to(ROOT)), module, name


def test_pages_and_examples_import_public_names_alone() -> None:
    used = [*documented()]

    assert len(used) > 50
    assert [row for row in used if row[2] not in SURFACE.get(row[1], ())] == []


def test_the_public_names_are_few() -> None:
    assert sum(len(public(SURFACE, package)[0]) for package in PACKAGES) <= 450
