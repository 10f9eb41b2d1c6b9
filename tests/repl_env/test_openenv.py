"""The adapter to OpenEnv where OpenEnv is not installed, and what its tools read here.

What the adapter does where it is installed is in tests/compat.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import import_module, metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_without_openenv_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openenv", None)
    monkeypatch.delitem(sys.modules, "repl_env.openenv", raising=False)

    with pytest.raises(ImportError, match=re.escape("pip install 'repl-env[openenv]'")):
        import_module("repl_env.openenv")


def test_no_extra_brings_openenv_beside_the_server() -> None:
    """OpenEnv from 0.4.2 on wants mcp<2, and the server mcp>=2."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    bringing = {name for name, wanted in extras.items() if "openenv" in " ".join(wanted)}

    assert bringing == {"openenv"}


def test_the_manifest_names_this_version_and_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPL_ENV_HOST", "127.0.0.1")
    manifest = (ROOT / "openenv.yaml").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^(\w+): (\S+)$", manifest, re.MULTILINE))

    assert fields["version"] == metadata.version("repl-env")
    module, _, name = fields["app"].partition(":")
    assert callable(getattr(import_module(module), name))
