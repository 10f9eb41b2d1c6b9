"""OpenEnv's clients of three generations against this project's server, by `official_client.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.compat.environments import GENERATIONS, NEWEST, told, wanted
from tests.compat.recording import FILE, STORIES, recorded

pytestmark = wanted

# Its clients work neither in a plain `with` nor with sessions beside their own.
OLDEST = "openenv-core-0.3.0"


@pytest.fixture(scope="module", params=GENERATIONS)
def generation(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def stories(generation: str, our_server: str) -> dict[str, Any]:
    return told(generation, "official_client.py", our_server)


def test_an_episode_goes_from_reset_to_its_reward(stories: dict[str, Any]) -> None:
    episode = stories["episode"]

    assert "Task: How many words?" in episode["reset"]["observation"]["result"]["stdout"]
    assert episode["step"]["observation"]["result"]["value"] == "3"
    assert (episode["step"]["reward"], episode["step"]["done"]) == (0.0, False)
    assert (episode["state"]["episode_id"], episode["state"]["step_count"]) == ("episode-1", 1)
    assert "count" in episode["state"]["namespace_keys"]
    assert (episode["end"]["reward"], episode["end"]["done"]) == (1.0, True)
    assert episode["end"]["observation"]["metadata"]["final_answer"] == "3"
    assert episode["state_after"]["step_count"] == 2
    assert episode["again"]["observation"]["iteration"] == 0


def test_an_error_frame_does_not_end_the_session(stories: dict[str, Any]) -> None:
    refusals = stories["refusals"]

    assert "NOT_RESET" in refusals["early"]
    assert "VALIDATION_ERROR" in refusals["wrong_field"]
    assert "VALIDATION_ERROR" in refusals["wrong_type"]
    assert "UNKNOWN_TYPE" in refusals["unknown"]
    assert refusals["raised"]["observation"]["result"]["success"] is False
    assert refusals["kept"]["observation"]["result"]["value"] == "42"
    assert "EPISODE_DONE" in refusals["late"]


def test_two_clients_at_once_have_a_namespace_each(stories: dict[str, Any]) -> None:
    one, two = stories["together"]["one"], stories["together"]["two"]

    assert one["observation"]["result"]["value"] == "('one', False)"
    assert two["observation"]["result"]["value"] == "('two', False)"


def test_a_typed_subclass_reads_what_it_knows(stories: dict[str, Any]) -> None:
    typed = stories["typed"]

    assert (typed["step"]["stdout"], typed["step"]["iteration"]) == ("3\n", 1)
    assert (typed["state"]["episode_id"], typed["state"]["iteration"]) == ("episode-1", 1)
    assert (typed["end"]["reward"], typed["end"]["done"]) == (1.0, True)


def test_sync_does_the_same_without_an_event_loop(stories: dict[str, Any]) -> None:
    waiting = stories["waiting"]

    assert waiting["step"]["observation"]["result"]["value"] == "3"
    assert waiting["state"]["step_count"] == 1
    assert (waiting["end"]["reward"], waiting["end"]["done"]) == (1.0, True)


def test_a_plain_with_works_where_the_generation_has_it(
    stories: dict[str, Any], generation: str
) -> None:
    plain = stories["plain"]

    if generation == OLDEST:
        assert plain is None
    else:
        assert plain["step"]["observation"]["result"]["value"] == "3"
        assert plain["end"]["reward"] == 1.0


def test_a_client_opens_more_sessions(stories: dict[str, Any], generation: str) -> None:
    more = stories["more_sessions"]

    if generation == OLDEST:
        assert more is None
    else:
        assert more["parent"]["observation"]["result"]["value"] == "'parent'"
        assert more["child"]["observation"]["result"]["value"] == "'child'"


def test_values_without_a_json_form_are_converted(stories: dict[str, Any]) -> None:
    odd = stories["odd_text"]

    printed = odd["surrogates"]["observation"]["result"]["stdout"]
    assert printed.startswith("a") and printed.rstrip().endswith("b")
    assert odd["numbers"]["observation"]["metadata"]["final_answer"] == "inf"
    assert odd["numbers"]["done"] is True


def test_a_long_context_goes_in_one_frame(stories: dict[str, Any]) -> None:
    long = stories["long_context"]

    assert long["step"]["observation"]["result"]["value"] == str(20 << 20)
    assert long["context_length"] == 20 << 20


def test_a_client_that_disconnected_gets_an_error_that_its_session_ended(
    stories: dict[str, Any],
) -> None:
    """OpenEnv's clients reconnect silently: a step must not run in an empty namespace."""
    impatient = stories["impatient"]

    assert impatient["gave_up"] is True
    assert "NOT_RESET" in impatient["after"]
    assert impatient["fresh"]["observation"]["result"]["value"] == "1"


def test_tools_are_called_in_the_session_of_the_socket(our_server: str) -> None:
    """Older clients step with tools, which only OpenEnv's environments of tools understand."""
    seen = told(NEWEST, "official_client.py", our_server, "tools")["tools"]

    assert seen == {
        "names": ["execute", "reset", "submit_answer"],
        "reset": False,
        "called": "3",
        "step_count": 1,
        "done": True,
        "error": False,
    }


def test_a_key_goes_into_the_url_or_the_headers(
    generation: str, locked_server: tuple[str, str]
) -> None:
    """Older clients cannot send headers."""
    url, key = locked_server
    login = url.replace("http://", f"http://openenv:{key}@")
    stories = told(generation, "official_client.py", login, "episode", "keyed", "keyless")

    assert stories["episode"]["end"]["reward"] == 1.0
    assert stories["keyed"] == ("42" if generation == NEWEST else None)
    assert "401" in stories["keyless"]["failed"]


def test_each_generation_sends_what_the_fast_tests_replay(stories: dict[str, Any]) -> None:
    """tests/server/transport/openenv_frames.json has the frames; its server is OpenEnv's."""
    kept = json.loads(FILE.read_text(encoding="utf-8"))

    for name in STORIES:
        sent = [f["client"] for f in stories[name]["frames"] if "client" in f]
        assert sent == [f["client"] for f in kept[name] if "client" in f]


def test_the_recording_matches_openenv_s_server(their_server: str) -> None:
    """If it differs, `python -m tests.compat.recording` writes the file again."""
    stories = told(GENERATIONS[0], "official_client.py", their_server, *STORIES)

    assert recorded(stories) == json.loads(FILE.read_text(encoding="utf-8"))
