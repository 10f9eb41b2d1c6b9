"""`repl_env.openenv` on OpenEnv's base classes, by `adapter.py`, and in OpenEnv's own server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compat.environments import ADAPTED, GENERATIONS, told, wanted

pytestmark = wanted


@pytest.fixture(scope="module", params=ADAPTED)
def stories(request: pytest.FixtureRequest, our_server: str) -> dict[str, Any]:
    return told(request.param, "adapter.py", our_server)


def test_the_adapter_is_an_instance_of_both_interfaces(stories: dict[str, Any]) -> None:
    kinds = stories["kinds"]

    for name in ("environment", "observations", "ours", "state", "metadata"):
        assert kinds[name] is True, name
    assert kinds["named"]["name"] == "repl_env"
    assert kinds["named"]["version"] == stories["version"]
    assert (kinds["stdout"], kinds["reward"], kinds["done"]) == ("3\n", 1.0, True)
    assert (kinds["episode_id"], kinds["step_count"]) == ("episode-1", 1)


def test_openenv_s_transforms_and_rubrics_are_given_its_observations(
    stories: dict[str, Any],
) -> None:
    assert stories["own_parts"] == {
        "stdout": "ABC\n",
        "reward": pytest.approx(0.04),
        "score": pytest.approx(0.04),
        "without": 0.0,
    }


def test_attributes_of_the_environment_behind_it_may_be_assigned(stories: dict[str, Any]) -> None:
    told = stories["attributes"]
    assert (told["before"], told["done"]) == (5, True)
    assert told["stdout"].startswith("to x\n")


def test_the_environment_behind_it_branches(stories: dict[str, Any]) -> None:
    assert stories["inside"] == {"branch": "2", "kept": "1"}


def test_a_state_holds_a_long_context_and_does_not_send_it(stories: dict[str, Any]) -> None:
    assert stories["long_context"] == {"held": 10_000, "sent": None, "length": 10_000}


def test_an_awaited_episode_is_closed_by_a_plain_close(stories: dict[str, Any]) -> None:
    assert stories["asynchronous"] == {"value": "13"}


def test_the_models_have_the_same_fields(stories: dict[str, Any]) -> None:
    assert stories["schema"]["required"] == ["code"]
    assert all(stories["schema"]["same"].values())


def test_the_client_works_awaited_blocking_and_plain(stories: dict[str, Any]) -> None:
    client = stories["client"]

    assert client["awaited"] == {
        "kind": True,
        "observation": True,
        "state": True,
        "stdout": "3\n",
        "shown": "3\n",
        "named": True,
        "step_count": 2,
        "reward": 1.0,
        "done": True,
        "final_answer": "3",
    }
    assert client["waiting"] == ["3\n", True, 1.0, True, True]
    assert client["plain"] == ["3\n", True, 1.0, True]


def test_auto_env_knows_the_server_and_not_the_distribution(stories: dict[str, Any]) -> None:
    """AutoEnv looks at distributions whose names begin with `openenv-`; docs/openenv.md says so."""
    found = stories["discovery"]

    assert found["found"] == "No OpenEnv environments found."
    assert (found["generic"], found["value"]) == ("GenericEnvClient", "42")


def test_auto_env_makes_the_client_of_a_distribution_with_its_prefix(
    stories: dict[str, Any],
) -> None:
    assert stories["discovery_of_a_space"] == {
        "client": "repl_env.REPLEnv",
        "value": "42",
    }


@pytest.mark.parametrize("generation", GENERATIONS)
def test_openenv_s_server_hosts_the_environment(generation: str, their_server: str) -> None:
    """The same episode as against our server, by each generation's client."""
    stories = told(generation, "official_client.py", their_server, "episode", "together", "typed")

    episode = stories["episode"]
    assert episode["step"]["observation"]["result"]["value"] == "3"
    assert (episode["end"]["reward"], episode["end"]["done"]) == (1.0, True)
    assert stories["together"]["one"]["observation"]["result"]["value"] == "('one', False)"
    assert stories["typed"]["end"]["reward"] == 1.0
