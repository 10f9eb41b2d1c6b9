"""Commands are found by entry points; a broken one costs itself only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import typer

from repl_env.cli.main import build

DOCS = Path(__file__).parents[3] / "docs"
# Every page but that of the command line leaves out what all commands have.
COMMON = {"--config"}
PAGES = {
    "mcp": ("mcp",),
    "view": ("viewer",),
    **dict.fromkeys(("bench-tasks", "eval"), ("cli", "evaluation")),
    **dict.fromkeys(("doctor", "keys", "repl", "replay", "results", "run", "serve"), ("cli",)),
}


def repl_env(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `repl-env` as its script does, with `path` installed besides."""
    environ = {**os.environ, "PYTHONPATH": str(path or ""), "NO_COLOR": "1", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "repl_env", *arguments],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )


def test_characters_that_a_terminal_cannot_show_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    done = subprocess.run(
        [sys.executable, "-m", "repl_env", "repl"],
        input="print('caf\\xe9 \\u2192 done')\n".encode("latin-1"),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"caf\xe9 ? done\n"), done.stderr


def test_characters_outside_the_c_locale_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [sys.executable, "-m", "repl_env", "repl"],
        input="print('caf\xe9 \u2192 done')\n'\u2192'\n".encode(),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"caf? ? done\n'?'\n"), done.stderr


@pytest.mark.parametrize(
    ("closed", "command", "given", "status"),
    [
        ("<&-", ["repl"], "", 0),
        ("<&-", ["mcp"], "", 0),
        (">&-", ["repl"], "1", 0),
        (">&-", ["mcp"], "", 0),
        ("2>&-", ["repl"], "1/0", 1),  # it would be 5 if there were no session
        ("<&- >&- 2>&-", ["keys", "me"], "", 0),
    ],
)
def test_a_standard_stream_may_be_closed(
    closed: str, command: list[str], given: str, status: int
) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "repl_env", *command],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "command", [["-V"], ["doctor"], ["doctor", "--json"], ["repl"], ["keys", "me"]], ids=" ".join
)
def test_a_full_disk_is_reported_in_one_line(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "repl_env", *command],
            input="1\n",
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.stderr == "repl-env: cannot write: No space left on device\n"
    assert done.returncode == 1


def test_standard_output_need_not_be_open(tmp_path: Path) -> None:
    program = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "repl_env", "repl"]
    done = subprocess.run(
        program, input="1\n1/0\n", capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A folder that looks like an installed distribution with three commands."""
    (tmp_path / "plugin_for_a_test.py").write_text(
        "import typer\n"
        "def greet(name: str) -> None:\n"
        "    '''Say hello.'''\n"
        "    print('hello', name)\n"
        "group = typer.Typer()\n"
        "@group.command()\n"
        "def one() -> None:\n"
        "    print('one of a group')\n"
        "@group.command()\n"
        "def fails() -> None:\n"
        "    raise typer.Exit(5)\n"
        "@group.command()\n"
        "def interrupted() -> None:\n"
        "    raise KeyboardInterrupt\n"
    )
    info = tmp_path / "plugin_for_a_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-for-a-test\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[repl_env.commands]\n"
        "greet = plugin_for_a_test:greet\n"
        "group = plugin_for_a_test:group\n"
        "broken = plugin_for_a_test_that_is_missing:command\n"
        "number = plugin_for_a_test:__name__\n"
    )
    return tmp_path


def test_a_function_of_another_distribution_becomes_a_command(plugin: Path) -> None:
    done = repl_env("greet", "you", path=plugin)

    assert (done.stdout, done.returncode) == ("hello you\n", 0)


def test_a_typer_application_becomes_a_group_of_commands(plugin: Path) -> None:
    assert repl_env("group", "one", path=plugin).stdout == "one of a group\n"


def test_the_status_of_a_command_is_the_status_of_the_program(plugin: Path) -> None:
    assert repl_env("group", "fails", path=plugin).returncode == 5


def test_an_interrupted_command_exits_130(plugin: Path) -> None:
    assert repl_env("group", "interrupted", path=plugin).returncode == 130


def test_ctrl_c_while_the_commands_are_loaded_exits_130(plugin: Path) -> None:
    (plugin / "plugin_for_a_test.py").write_text("raise KeyboardInterrupt")
    done = repl_env("doctor", path=plugin)

    assert (done.returncode, done.stderr) == (130, "")


def test_a_broken_command_says_why_and_exits_1(plugin: Path) -> None:
    done = repl_env("broken", path=plugin)

    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
    assert "plugin_for_a_test_that_is_missing" in done.stderr


def test_an_entry_point_that_is_no_command_says_so(plugin: Path) -> None:
    done = repl_env("number", path=plugin)

    assert done.returncode == 1
    assert "plugin_for_a_test:__name__" in done.stderr


def test_help_lists_every_command_and_marks_the_broken_one(plugin: Path) -> None:
    done = repl_env("--help", path=plugin)

    assert done.returncode == 0
    for name in ("doctor", "greet", "group", "broken"):
        assert name in done.stdout
    assert "Not available" in done.stdout


def test_an_unknown_command_is_a_usage_error() -> None:
    assert repl_env("no-such-command").returncode == 2


def test_an_unknown_option_is_a_usage_error() -> None:
    assert repl_env("doctor", "--no-such-option").returncode == 2


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_that_of_the_distribution(option: str) -> None:
    done = repl_env(option)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"repl-env {metadata.version('repl-env')}\n"


@pytest.mark.parametrize("command", [[], ["doctor"], ["bench-tasks"], ["bench-tasks", "make"]])
def test_h_is_help_for_every_command(command: list[str]) -> None:
    done = repl_env(*command, "-h")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == repl_env(*command, "--help").stdout


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_have_every_option(name: str) -> None:
    """Or, of one that can be switched off, how."""
    pages = "".join((DOCS / f"{page}.md").read_text() for page in PAGES[name])
    named = set(re.findall(r"--[a-z][a-z-]*", pages))
    command = typer.main.get_command(build()).commands[name]  # type: ignore[attr-defined]
    options = [
        {*parameter.opts, *parameter.secondary_opts}
        for each in (command, *getattr(command, "commands", {}).values())
        for parameter in each.params
        if parameter.param_type_name == "option"
    ]
    assert options
    assert "--config" in (DOCS / "cli.md").read_text()
    assert [names for names in options if not names & (named | COMMON)] == []
