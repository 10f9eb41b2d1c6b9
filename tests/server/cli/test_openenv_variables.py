"""Variables of OpenEnv's server say what episodes are like by default."""

from __future__ import annotations

import pytest

from repl_env.env.options import EnvironmentOptions as EnvironmentSettings
from repl_env.server import app as openenv_app
from repl_server import asgi
from repl_server.cli_options import episodes_of_variables, of_variables
from repl_server.settings import Settings

from ..conftest import peer, serving

GIVEN = {
    "REPL_CONTEXT": "one two",
    "REPL_TASK_PROMPT": "Count.",
    "REPL_MAX_ITERATIONS": "3",
    "REPL_MAX_OUTPUT_LENGTH": "100",
    "REPL_CONTEXT_PREVIEW_LENGTH": "5",
    "REPL_RLM_MAX_DEPTH": "2",
    "REPL_RLM_MAX_ITERATIONS": "4",
}
MEANT = EnvironmentSettings(
    context="one two",
    task_prompt="Count.",
    max_iterations=3,
    max_output_length=100,
    context_preview_length=5,
    rlm_max_depth=2,
    rlm_max_iterations=4,
)


@pytest.fixture
def variables(monkeypatch):
    for name, value in {**GIVEN, "MAX_CONCURRENT_ENVS": "5"}.items():
        monkeypatch.setenv(name, value)


def test_the_options_of_serve_take_them_from_the_process(variables) -> None:
    settings = of_variables("127.0.0.1")
    assert settings.episodes == MEANT
    assert settings.max_sessions == 5


def test_a_variable_of_this_project_overrides_openenv_s(variables, monkeypatch) -> None:
    monkeypatch.setenv("REPL_ENV_MAX_SESSIONS", "7")
    assert of_variables("127.0.0.1").max_sessions == 7


def test_an_empty_variable_counts_as_unset() -> None:
    assert episodes_of_variables(dict.fromkeys(GIVEN, "")) == EnvironmentSettings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REPL_MAX_ITERATIONS", "ten"),
        ("REPL_MAX_ITERATIONS", "0"),
        ("REPL_MAX_OUTPUT_LENGTH", "1.5"),
        ("REPL_CONTEXT_PREVIEW_LENGTH", "-1"),
        ("REPL_RLM_MAX_DEPTH", "0"),
    ],
)
def test_an_invalid_variable_is_named(name, value) -> None:
    with pytest.raises(ValueError, match=name):
        episodes_of_variables({name: value})


@pytest.mark.parametrize("named", [False, True])
def test_a_reset_has_the_missing_arguments_from_them(named) -> None:
    with serving({"episodes": MEANT}) as server, peer(server, named=named) as one:
        if named:
            one.open()
        seen = one.reset()["observation"]
        assert seen["max_iterations"] == 3
        assert seen["metadata"]["task_prompt"] == "Count."
        assert seen["context_preview"] == "one t"
        printed = one.run("print(context)\nprint('x' * 500)")["stdout"]
        assert printed.startswith("one two\n") and len(printed) < 300

        other = one.reset(context="", task_prompt="Other.", max_iterations=9)["observation"]
        assert (other["max_iterations"], other["context_length"]) == (9, 0)
        assert other["metadata"]["task_prompt"] == "Other."


def test_openenvs_module_of_the_application(variables, monkeypatch) -> None:
    monkeypatch.setenv("REPL_ENV_HOST", "127.0.0.1")
    assert openenv_app.app is asgi.app
    environment = openenv_app.create_repl_environment()
    assert (environment.initial_context, environment.max_iterations) == ("one two", 3)
    with pytest.raises(AttributeError, match="nothing"):
        openenv_app.nothing


def test_settings_refuse_invalid_values() -> None:
    with pytest.raises(TypeError, match="episodes"):
        Settings(episodes={})
