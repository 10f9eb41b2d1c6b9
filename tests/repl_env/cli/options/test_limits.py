"""Every limit of a session has an option in every command that starts sessions."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from repl_env.cli.main import build
from repl_env.cli.options import OPTIONS
from repl_env.cli.repl import repl
from repl_sandbox import Limits
from repl_sandbox.types import parse_size
from repl_server.cli_options import of_variables

COMMANDS = typer.main.get_command(build()).commands  # type: ignore[attr-defined]
# The commands whose sessions call functions of the host, at a limit that the caller may choose.
CALLING = {"serve"}
SIZES = {"memory", "file_size", "workspace", "output"}


@pytest.mark.parametrize("field", [each.name for each in fields(Limits)])
@pytest.mark.parametrize("name", ["repl", "run", "eval", "mcp", "serve"])
def test_each_limit_has_an_option_with_the_default_of_the_engine(name: str, field: str) -> None:
    given = {max(each.opts, key=len): each for each in COMMANDS[name].params}
    if field == "host_timeout" and name not in CALLING:
        assert OPTIONS[field] not in given
        return
    default: Any = given[OPTIONS[field]].default
    expected = getattr(Limits(output="1MiB") if name == "serve" else Limits(), field)

    assert (parse_size(default) if field in SIZES else default) == expected


LIMITS = {
    "memory": ("64MiB", 64 << 20),
    "processes": ("9", 9),
    "open_files": ("77", 77),
    "file_size": ("1MiB", 1 << 20),
    "workspace": ("2MiB", 2 << 20),
    "output": ("3MiB", 3 << 20),
    "cpu_seconds": ("11", 11.0),
    "timeout": ("12", 12.0),
    "grace": ("0.25", 0.25),
    "host_timeout": ("14", 14.0),
}


def test_the_server_has_the_limits_of_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for field, (text, _) in LIMITS.items():
        name = OPTIONS[field].removeprefix("--").replace("-", "_").upper()
        monkeypatch.setenv(f"REPL_ENV_{name}", text)
    monkeypatch.setenv("REPL_ENV_PYTHON", "/usr/bin/python3")
    monkeypatch.setenv("REPL_ENV_MOUNT", f"/data={tmp_path}")
    found = of_variables("127.0.0.1")

    assert found.limits == Limits(**{field: value for field, (_, value) in LIMITS.items()})
    assert (found.python, found.mounts) == ("/usr/bin/python3", (("/data", str(tmp_path)),))


def test_a_session_of_the_shell_has_its_limits_and_its_mounts(tmp_path: Path) -> None:
    app = typer.Typer(add_completion=False)
    app.command()(repl)
    (tmp_path / "a.txt").write_text("found")
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o005)
    cells = "print(open('/data/a.txt').read())\nopen('big', 'w').write('x' * (1 << 20))\n"
    arguments = ["--mount", f"/data={tmp_path}", "--workspace", "100KiB"]
    done = CliRunner().invoke(app, arguments, input=cells)

    assert done.exit_code == 1
    assert "found" in done.stdout
    assert "Limits.workspace" in done.stderr
    wrong = CliRunner().invoke(app, ["--mount", "data=/no/such/place"], input="1\n")
    assert wrong.exit_code == 2
