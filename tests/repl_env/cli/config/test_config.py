"""Options of commands from a configuration file: what counts, and what a file may not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.repl_env.cli.calls import application

SCRIPT = "def reply(request):\n    return '```repl\\nFINAL(len(context))\\n```'\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str, **variables: str):
    return CliRunner(env={"COLUMNS": "200", **variables}).invoke(application(), [*arguments])


def shown(*arguments: str, **variables: str) -> dict[str, Any]:
    """The values of the options of a command, by option, with their sources."""
    done = call("config", "show", *arguments, "--json", **variables)
    assert done.exit_code == 0, done.output
    (rows,) = json.loads(done.stdout)["commands"].values()
    return {row["option"]: (row["value"], row["source"]) for row in rows}


def written(text: str, path: str = "repl-env.toml") -> str:
    file = Path(path)
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return path


def refused(*arguments: str, **variables: str) -> str:
    """The complaint of a call that is a usage error."""
    done = call(*arguments, **variables)
    assert done.exit_code == 2, done.output
    complaint: str = done.stderr.partition("Error: ")[2]
    return complaint


def test_the_command_line_comes_before_the_environment_the_file_and_the_default() -> None:
    written("[repl]\ntimeout = 1\nmemory = '1GB'\nundo = 2\n")
    variables = {"REPL_ENV_REPL_TIMEOUT": "2", "REPL_ENV_REPL_UNDO": "3"}
    found = shown("repl", **variables)

    assert found["--timeout"] == (2.0, "$REPL_ENV_REPL_TIMEOUT")
    assert found["--undo"] == (3, "$REPL_ENV_REPL_UNDO")
    assert found["--memory"] == ("1GB", "repl-env.toml")
    assert found["--language"] == ("full", "default")
    done = CliRunner(env=variables).invoke(
        application(), ["repl", "--timeout", "0.2"], input="while True: pass\n"
    )
    assert "0.2" in done.stderr


def test_a_run_takes_its_model_and_context_from_a_file_that_is_named(folder: Path) -> None:
    written(SCRIPT, "project/model.py")
    written("four", "project/text.txt")
    path = written(
        "[run]\nmodel = 'script:model.py:reply'\ncontext = ['text.txt']\nquiet = true\n",
        "project/settings.toml",
    )

    assert call("run", "How long?", "--config", path).stdout == "4\n"
    assert call("run", "How long?", REPL_ENV_CONFIG=path).stdout == "4\n"


@pytest.mark.parametrize("name", ["repl-env.toml", "pyproject.toml"])
def test_a_file_is_found_in_the_working_directory(name: str) -> None:
    table = "tool.repl-env.eval" if name == "pyproject.toml" else "eval"
    written(f"[{table}]\nconcurrency = 3\n[tool.other]\nx = 1\n" if "tool" in table else
            f"[{table}]\nconcurrency = 3\n", name)  # fmt: skip

    assert shown("eval")["--concurrency"] == (3, name)


def test_a_byte_order_mark_and_line_ends_of_windows_are_read() -> None:
    written("\ufeff[eval]\r\nconcurrency = 3\r\n")

    assert shown("eval")["--concurrency"] == (3, "repl-env.toml")


def test_a_file_of_other_programs_is_not_read() -> None:
    written("[tool.other]\nmodel = 1\n", "pyproject.toml")
    assert shown("eval")["--model"] == (None, "default")

    written("[broken\n", "pyproject.toml")
    assert shown("eval")["--model"] == (None, "default")


def test_each_option_has_a_variable_with_its_long_name(folder: Path) -> None:
    variables = {"REPL_ENV_RUN_JSON": "1", "REPL_ENV_RUN_MAX_DEPTH": "4"}

    assert shown("run", **variables)["--json"] == (True, "$REPL_ENV_RUN_JSON")
    assert json.loads(call("tasks", "list", REPL_ENV_TASKS_LIST_JSON="1").stdout)


def test_show_without_a_command_lists_what_is_set_anywhere() -> None:
    written("[serve]\nfair-share = false\n[tasks.list]\njson = true\n[run]\nprice = ['a=1:2']\n")
    done = call("config", "show", REPL_ENV_RUN_MAX_DEPTH="3")
    words = " ".join(done.stdout.split())

    assert "--fair-share false repl-env.toml" in words
    assert "--price a=1:2 repl-env.toml" in words
    assert "--max-depth 3 $REPL_ENV_RUN_MAX_DEPTH" in words
    assert "tasks list" in words
    assert "--isolation" not in words
    Path("repl-env.toml").unlink()
    assert "Every option of every command has its default." in call("config", "show").stdout
    assert "there is no command 'rnu'; did you mean 'run'?" in refused("config", "show", "rnu")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[run]\nmodle = 'x'", "[run] modle is no option of this command; did you mean 'model'?"),
        ("[rnu]\nmodel = 'x'", "[rnu] is no command; did you mean 'run'?"),
        ("model = 'x'", "model stands outside of the tables of commands"),
        ("[tasks]\njson = true", "tasks.json stands outside of the tables of commands"),
        ("[tasks.lst]\njson = true", "[tasks.lst] is no command; did you mean 'list'?"),
        ("[run]\nquestion = 'x'", "[run] question is no option of this command"),
        ("[run]\nmax-depth = 'three'", "[run] max-depth: "),
        ("[run]\nmax-depth = 0", "[run] max-depth: "),
        ("[run]\nisolation = 'vm'", "[run] isolation"),
        ("[run]\nquiet = 1", "[run] quiet must be true or false, not 1"),
        ("[run]\ntimeout = [1, 2]", "[run] timeout takes one value, not a list"),
        ("[run]\nprice = [true]", "[run] price must be a text or a number, not bool"),
        ("[run]\nmodel = {a = 1}", "[run] model must be a text or a number, not dict"),
        ("[run]\napi-key = 'x'", "secrets do not belong into this file"),
        ("[run]\nmodel = 'sk-0123456789abcdefghij'", "[run] model looks like a secret"),
        ("[run]\nbase-url = 'http://u:p@localhost/'", "[run] base-url looks like a secret"),
        ("[run", "repl-env.toml is not TOML"),
        ("a = " + "[" * 5000, "repl-env.toml is not TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_key(text: str, says: str) -> None:
    written(text)
    complaint = refused("run", "question", "--model", "m")

    assert says in complaint
    assert "0123456789" not in complaint


@pytest.mark.parametrize(
    "text",
    [
        "[run]\nbase-url = 'https://elsewhere.example/v1'",
        "[run]\napi-key-env = 'OTHER_SECRET'",
        "[run]\nmodel = 'script:model.py:reply'",
        "[run]\nsub-model = 'script:module:reply'",
        "[run]\nisolation = 'process'",
        "[run]\nrequire = 'process'",
        "[run]\nimage = 'theirs'",
        "[run]\ncontext = '/etc/passwd'",
        "[run]\ncontext = ['../other/file']",
        "[run]\ncontext = 'secrets=link'",
        "[run]\ntrajectory = '~/run.jsonl'",
        "[eval]\nsolver = 'baseline.py:first'",
        "[eval]\nrubric = 'module:function'",
        "[serve]\nno-auth = true",
        "[serve]\nhost = '0.0.0.0'",
        "[serve]\nllm-url = ['http://localhost/v1', 'https://elsewhere.example/*']",
        "[serve]\nlog-contents = true",
        "[bench-tasks.make]\nforce = true",
    ],
)
def test_a_file_that_was_only_found_may_not_give_away_keys_files_or_isolation(
    folder: Path, text: str
) -> None:
    """A clone of a foreign repository may bring such a file along."""
    (folder / "link").symlink_to("/etc/passwd")
    path = written(text)
    command = text[1 : text.index("]")].split(".")

    assert f"--config {path}" in refused("config", "show", *command)
    assert shown(*command, "--config", path)


def test_a_found_file_may_set_harmless_options() -> None:
    written(
        "[run]\nmodel = 'owner/name:latest'\nbase-url = 'http://127.0.0.1:8000/v1'\n"
        "isolation = 'jailed'\ncontext = 'NAME=data/file'\n[serve]\nno-auth = false\n"
    )

    assert shown("run")["--model"] == ("owner/name:latest", "repl-env.toml")
    assert shown("run")["--context"] == (["NAME=data/file"], "repl-env.toml")


@pytest.mark.parametrize("path", ["absent.toml", "."])
def test_a_named_file_that_cannot_be_read_is_a_usage_error(path: str) -> None:
    assert f"{path}: " in refused("run", "question", "--config", path)


def test_a_solver_on_the_command_line_comes_before_a_model_of_the_file(folder: Path) -> None:
    written("[eval]\nmodel = 'm'\nmax-depth = 1\n")
    written("def right(task):\n    return task.answer\n", "solver.py")
    written('{"id": "a", "question": "?", "context": null, "answer": "1"}\n', "tasks.jsonl")

    assert (
        "1 of 1 tasks scored" in call("eval", "tasks.jsonl", "--solver", "solver.py:right").stdout
    )


def test_the_address_of_the_environment_comes_before_that_of_the_file() -> None:
    written("[run]\nbase-url = 'http://localhost:1/v1'\n")

    assert shown("run", OPENAI_BASE_URL="http://localhost:2/v1")["--base-url"] == (
        "http://localhost:2/v1",
        "$OPENAI_BASE_URL",
    )
