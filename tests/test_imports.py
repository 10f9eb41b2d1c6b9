"""The cost and the side effects of imports, in a fresh interpreter.

import-linter reads the source; but importing a.b.c also runs a/__init__ and a.b/__init__, which
only a running interpreter shows.
"""

from __future__ import annotations

import json
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib import import_module, metadata
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
OURS = {"repl_env", "repl_sandbox", "repl_server"}
PROGRAM = """
import json, sys
sys.path[:0] = {paths!r}
before = set(sys.modules)
import {module}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded_by(module: str, *roots: str, flags: tuple[str, ...] = ("-I",)) -> set[str]:
    """The modules that `import module` adds to a fresh interpreter."""
    program = PROGRAM.format(paths=[str(ROOT / root) for root in roots], module=module)
    done = subprocess.run(
        [sys.executable, *flags, "-c", program], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def foreign(modules: set[str]) -> set[str]:
    """The top-level names that are neither of this project nor of the standard library."""
    tops = {name.partition(".")[0] for name in modules}
    return {top for top in tops - OURS - sys.stdlib_module_names if not top.startswith("_")}


def test_the_worker_loads_only_its_own_part_of_the_engine() -> None:
    modules = loaded_by("repl_sandbox.worker.main", "sandbox", flags=("-I", "-S"))
    parts = {name.split(".")[1] for name in modules if name.startswith("repl_sandbox.")}

    vocabulary = {
        "errors", "types", "display"
    }  # fmt: skip
    assert parts <= {*vocabulary, "protocol", "worker"}
    assert "worker" in parts
    assert foreign(modules) == set()


def test_the_worker_runs_where_only_the_engine_s_source_root_is() -> None:
    """`sandbox/` alone can be mounted: nothing of the environment is needed beside it."""
    modules = loaded_by("repl_sandbox.worker.main", "sandbox", flags=("-I", "-S"))

    assert not any(name.startswith(("repl_env", "repl_server")) for name in modules)


@pytest.mark.parametrize("name", ["numpy", "asyncio", "unittest", "matplotlib", "RestrictedPython"])
def test_the_worker_leaves_to_cells_what_only_cells_need(name: str) -> None:
    """Every module of the template is paid again by each session in copied pages."""
    assert name not in loaded_by("repl_sandbox.worker.main", "sandbox", flags=("-I", "-S"))


def test_the_engine_runs_on_the_standard_library_alone() -> None:
    modules = loaded_by("repl_sandbox.sandbox", "sandbox")

    assert "repl_sandbox.host.watchdog" in modules
    assert not any(name.startswith(("repl_env", "repl_server")) for name in modules)
    assert foreign(modules) == set()


def test_importing_the_package_loads_no_engine_and_no_library() -> None:
    modules = loaded_by("repl_env", "")

    assert "repl_env" in modules
    assert not any(name.startswith(("repl_sandbox", "repl_server")) for name in modules)
    assert foreign(modules) == set()


def test_openenvs_name_of_the_application_loads_no_server_until_it_is_used() -> None:
    modules = loaded_by("repl_env.server.app", "")

    assert "repl_env.server.app" in modules
    assert not any(name.startswith(("repl_sandbox", "repl_server")) for name in modules)


@pytest.mark.parametrize(("package", "root"), [("repl_env", ""), ("repl_sandbox", "sandbox")])
def test_the_version_is_read_when_it_is_asked_for(package: str, root: str) -> None:
    assert "importlib.metadata" not in loaded_by(package, root)
    assert import_module(package).__version__ == metadata.version("repl-env")


@pytest.mark.parametrize(
    "module",
    ["errors", "interfaces", "models", "parsing", "rubrics", "rlm.model_call"],
)
def test_the_types_of_the_environment_load_no_engine(module: str) -> None:
    modules = loaded_by(f"repl_env.{module}", "")

    assert f"repl_env.{module}" in modules
    assert not any(name.startswith(("repl_sandbox", "repl_server")) for name in modules)
    assert not modules & {"rich", "typer"}


@pytest.mark.parametrize("module", ["client", "client.sync_client"])
def test_the_remote_client_loads_no_engine_and_no_server(module: str) -> None:
    """The command runs where neither can: Windows, macOS, an installation without extras."""
    modules = loaded_by(f"repl_env.{module}", "")

    assert f"repl_env.{module}" in modules
    assert not any(name.startswith(("repl_sandbox", "repl_server")) for name in modules)
    assert not modules & {"fastapi", "starlette", "uvicorn", "mcp", "rich", "typer"}
    assert not modules & {"websockets", "http.client"}  # until it connects


@pytest.mark.parametrize("command", ["doctor", "mcp", "repl", "run"])
def test_the_command_line_loads_no_engine_until_a_command_needs_it(command: str) -> None:
    modules = loaded_by(f"repl_env.cli.{command}", "")

    assert not any(name.startswith("repl_sandbox") for name in modules)
    assert not modules & {"prompt_toolkit", "pydantic", "rich.live", "jsonschema", "mcp"}


@pytest.mark.parametrize("package", ["repl_env", "repl_env.rlm", "repl_sandbox"])
def test_every_public_name_resolves(package: str) -> None:
    module = import_module(package)

    assert module.__all__
    for name in module.__all__:
        value = getattr(module, name)
        # OpenEnv's spelling of a name is a second one of the same class.
        assert getattr(value, "__name__", name).lower() in {name.lower(), "outcome"}


@pytest.mark.parametrize("package", ["repl_env", "repl_sandbox"])
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        __import__(package).no_such_name


def test_no_folder_beside_the_packages_is_a_package() -> None:
    """A top-level `tests`, `docker`, `server` or `sandbox` would shadow other people's."""
    for folder in ("tests", "docker", "sandbox", "server"):
        assert not (ROOT / folder / "__init__.py").exists()
    for source_root in ("docker", "sandbox", "server"):
        assert not list((ROOT / source_root).glob("*.py"))


@pytest.mark.parametrize("package", sorted(OURS))
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    """Imports inside functions count, which hide a circle; imports for annotations alone do not."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)

    order = TopologicalSorter(
        {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    )
    order.prepare()  # raises CycleError, which names the modules of a circle
    assert len(graph.modules) > 30
