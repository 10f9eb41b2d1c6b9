"""Bad values of `repl-env serve`: one form, with the option, its value, and what is allowed."""

import re

import pytest
import typer.main
from typer.testing import CliRunner

from repl_env.cli.main import build

KEYS = "not a key"  # the content of the file {file}
# Options, a bad value, and what is said about the value.
BAD = [
    ("--host", "0.0.0.0", "without keys, every client that reaches '0.0.0.0' could run code"),
    ("--port", "x", "'x' must be a valid integer"),
    ("--port", "70000", "'70000' must be less than or equal to 65535"),
    ("--api-keys", "/nowhere/keys", "'/nowhere/keys': No such file or directory"),
    ("--api-keys", "{file}", "{file}, line 1: must be `name:hash`"),
    ("--metrics-key", "nobody", "no key has the name 'nobody'"),
    ("--origin", "a b", "'a b' is not an origin such as"),
    ("--frame-ancestor", "a;b", "'a;b' is not a site of web pages"),
    ("--trusted-proxy", "x", "'x' is not an address or network"),
    ("--join", "/nowhere", "'/nowhere': No such file or directory"),
    ("--advertise", "ftp://x", "'ftp://x': base_url must begin with http"),
    ("--isolation", "strong", "'strong' is not one of 'auto', 'jailed'"),
    ("--require", "strong", "'strong' is not one of 'jailed', 'container'"),
    ("--image", "x", "'x' is for --isolation container alone"),
    ("--runtime", "x", "'x' is for --isolation container alone"),
    ("--recovery", "x", "'x' is not one of 'snapshot', 'restart'"),
    ("--undo", "129", "'129' must be less than or equal to 128"),
    ("--python", "/nowhere/python", "cannot start /nowhere/python"),
    ("--mount", "/nowhere", "'/nowhere' does not exist"),
    ("--mount", "x=/tmp", "'x' must be an absolute, plain path inside the session"),
    ("--preload", "json,1x", "'1x' is not the name of a module"),
    ("--memory", "much", "'much' is not a size; write bytes or for example '512MiB'"),
    ("--memory", "1", "'1' must be at least 16 MiB"),
    ("--processes", "0", "'0' must be greater than or equal to 1"),
    ("--open-files", "1", "'1' must be greater than or equal to 16"),
    ("--file-size", "much", "'much' is not a size"),
    ("--workspace", "-1", "'-1' is not a size"),
    ("--output", "0", "'0' must be more than 0 and at most 1 PiB"),
    ("--cpu-seconds", "0", "'0' must be a finite number of seconds above 0"),
    ("--timeout", "inf", "'inf' must be a finite number of seconds above 0"),
    ("--interrupt-grace", "0", "'0' must be a finite number of seconds above 0"),
    ("--host-timeout", "0", "'0' must be a finite number of seconds above 0"),
    ("--max-timeout", "10", "'10' must be at least --timeout, which is 30 seconds"),
    ("--language", "x", "'x' is not one of 'full', 'lint'"),
    ("--pool", "100", "100 ready sessions are more than --max-sessions allows (64)"),
    ("--max-sessions", "0", "'0' must be greater than or equal to 1"),
    ("--max-waiting", "-1", "'-1' must be greater than or equal to 0"),
    ("--wait", "nan", "'nan' must be greater than or equal to 0"),
    ("--idle", "0", "'0' must be above 0"),
    ("--grace", "x", "'x' must be a valid number"),
    ("--drain", "-1", "'-1' must be greater than or equal to 0"),
    ("--connections", "0", "'0' must be greater than or equal to 1"),
    ("--llm-url", "models.example/v1", "'models.example/v1' is not an endpoint"),
    ("--llm-url", "https://*.example/v1", "'https://*.example/v1' is not an endpoint"),
    ("--model", " ", "' ' must name a model"),
    ("--base-url", "https://models.example", "'https://models.example' needs --model"),
    ("--api-key-env", "NO_SUCH_KEY", "'NO_SUCH_KEY' needs --model"),
    ("--model", "./folder", "sub-calls of a server need an endpoint"),
    ("--temperature", "-1", "'-1' must be greater than or equal to 0"),
    ("--temperature", "0.5", "0.5 needs --model"),
    ("--top-p", "2", "'2' must be less than or equal to 1"),
    ("--seed", "x", "'x' must be a valid integer"),
    ("--max-tokens", "0", "'0' must be greater than or equal to 1"),
    ("--model-arg", "top_k", "'top_k' must be K=V"),
    ("--model-arg", "top_k=5", "5 needs --model"),
    ("--budget-calls", "-1", "'-1' must be at least 0"),
    ("--budget-tokens", "x", "'x' is not a number of tokens"),
    ("--budget-tokens", "-5", "'-5' must be at least 0"),
    ("--max-concurrent-subcalls", "0", "'0' must be greater than or equal to 1"),
    ("--quota", "sessions", "'sessions' is not NAME=VALUE"),
    ("--quota", "sesions=8", "'sesions' is not one of sessions, steps_per_second"),
    ("--quota", "sessions=many", "sessions must be a whole number, not 'many'"),
    ("--quota", "sessions=-1", "sessions must be at least 0 and finite, not -1"),
    ("--max-message", "4095", "'4095' must be at least 4KiB"),
    ("--max-message", "2GiB", "'2GiB': a message of 2,147,483,648 bytes exceeds inbound_bytes"),
    ("--max-context", "8GiB", "'8GiB' must be at most --max-uploads, which is 4,294,967,296 bytes"),
    ("--max-uploads", "much", "'much' is not a size"),
    ("--log-level", "loud", "'loud' is not one of 'debug', 'info', 'warning', 'error'"),
    ("--config", "/nowhere.toml", "/nowhere.toml: No such file or directory"),
]
PORT = ("--port", "0")


def refusal(*arguments, **variables):
    """The error of `serve`, in one line."""
    done = CliRunner().invoke(build(), ["serve", *arguments], env=variables)

    assert done.exit_code == 2, done.output
    return " ".join(done.stderr.split())


@pytest.fixture
def bad_file(tmp_path):
    (tmp_path / "keys.txt").write_text(KEYS)
    return str(tmp_path / "keys.txt")


@pytest.mark.parametrize(("option", "value", "said"), BAD)
def test_an_error_names_the_option_its_value_and_what_is_allowed(option, value, said, bad_file):
    value, said = value.replace("{file}", bad_file), said.replace("{file}", bad_file)

    assert re.search(f"Invalid value for {option}: .*{re.escape(said)}", refusal(option, value))


def test_every_option_with_a_value_is_in_the_table():
    (serve,) = [
        command
        for name, command in typer.main.get_command(build()).commands.items()  # type: ignore[attr-defined]
        if name == "serve"
    ]
    options = {max(each.opts, key=len) for each in serve.params if not each.is_flag}

    assert options - {"--help"} == {option for option, _, _ in BAD}


@pytest.mark.parametrize(
    ("variable", "value", "option", "said"),
    [
        ("REPL_ENV_PORT", "x", "REPL_ENV_PORT", "'x' must be a valid integer"),
        ("MAX_CONCURRENT_ENVS", "0", "MAX_CONCURRENT_ENVS", "'0' must be"),
        ("REPL_ENV_MEMORY", "much", "--memory", "'much' is not a size"),
    ],
)
def test_values_of_variables_are_refused_alike(variable, value, option, said):
    assert f"Invalid value for {option}: {said}" in refusal(**{variable: value})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--isolation", "confined"), "--require: 'jailed' excludes --isolation confined"),
        (("--isolation", "process", "--require", "confined"), "process"),
        (("--pool", "5", "--max-sessions", "4"), "--max-sessions allows (4)"),
        (("--max-timeout", "50", "--timeout", "60"), "--max-timeout: '50'"),
        (("--max-context", "2GiB", "--max-uploads", "1GiB"), "--max-context: '2GiB'"),
        (("--model", "m", "--base-url", "models.example/v1"), "http"),
        (("--model", "m", "--api-key-env", "NO_SUCH_KEY"), "--api-key-env: NO_SUCH_KEY is not set"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options, said):
    assert said in refusal(*options)


def test_the_remedy_for_missing_keys_is_about_options_alone():
    said = refusal("--host", "0.0.0.0")

    assert "--api-keys" in said and "--no-auth" in said and "REPL_ENV" not in said
