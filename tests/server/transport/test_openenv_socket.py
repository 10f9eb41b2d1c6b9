"""`/ws` without a subprotocol: OpenEnv's frames, and what its own server does wrong with them."""

import json

import pytest
from pydantic import model_validator

from repl_env.models import REPLObservation
from tests.server.conftest import ask, peer, serving
from tests.server.server_internals import MOST_WAITING
from tests.server.toy_environments import Add, Adder, Sum
from tests.waiting import PATIENCE, eventually


def test_an_episode(server):
    with peer(server) as one:
        first = one.reset(context="a text", task_prompt="How long?", expected_answer="6")
        assert first["done"] is False and first["reward"] == 0.0
        assert one.run("x = len(context); x")["stdout"] == "6\n"
        state = one.ask("state")
        assert state["type"] == "state" and state["data"]["step_count"] == 1
        last = one.ask("step", {"code": "FINAL(x)"})

    assert last["type"] == "observation"
    assert last["data"]["done"] is True and last["data"]["reward"] == 1.0
    assert last["data"]["observation"]["metadata"]["final_answer"] == "6"
    assert last["data"]["metadata"] == last["data"]["observation"]["metadata"]


def test_the_observation_is_what_its_model_says(server):
    with peer(server) as one:
        data = one.reset()
        seen = REPLObservation(**data["observation"], reward=data["reward"], done=data["done"])

    assert seen.metadata["isolation"]["tier"] == "jailed"
    assert not {"reward", "done"} & data["observation"].keys()


def test_two_sockets_are_two_sessions(server):
    with peer(server) as one, peer(server) as other:
        one.reset()
        other.reset()
        one.run("x = 1")
        assert "NameError" in other.run("x")["stderr"]
        assert one.run("x")["stdout"] == "1\n"


def test_a_session_ends_with_its_socket(server):
    before = set(server.manager.sessions)
    with peer(server) as one:
        one.reset()
        (session,) = set(server.manager.sessions) - before
    eventually(lambda: session not in server.manager.sessions)


def test_close_is_answered_by_the_end_of_the_socket(server):
    with peer(server) as one:
        one.reset()
        one.send("close")
        assert one.closed() == 1000


def test_a_socket_without_compression(server):
    with peer(server) as one:
        assert one.socket.subprotocol is None
        assert one.socket.response.headers.get("Sec-WebSocket-Extensions") is None


# ── what must not end a session ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x00\xff", "INVALID_JSON"),
        ("[1, 2]", "INVALID_JSON"),
        ("7", "INVALID_JSON"),
        ("[" * 50_000, "INVALID_JSON"),
        ('{"type": "reset", "data": {"context": [NaN, Infinity]}}', "INVALID_JSON"),
        ('{"type": "step", "data": {"code": "\\ud800"}}', "INVALID_JSON"),
        ('{"type": "steps", "data": {}}', "UNKNOWN_TYPE"),
        ('{"type": "step", "data": {"code": {}}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"max_iterations": 0}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"context": 5}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"contexts": {"not a name": ""}}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"files": {"../up": ""}}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"files": {"/tmp/x": ""}}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"context": {"$bytes": "no base64!"}}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"answer_schema": {"type": "nonsense"}}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"answer_schema": "int"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"answer_schema": ["int"]}}', "VALIDATION_ERROR"),
    ],
)
def test_a_bad_frame_is_refused_and_the_session_lives(living, frame, code):
    living.socket.send(frame)
    reply = living.take()

    assert (reply["type"], reply["data"]["code"]) == ("error", code)
    assert len(reply["data"]["id"]) == 32
    assert living.run("x")["stdout"] == "1\n"


def test_no_text_of_a_client_is_evaluated(living, tmp_path):
    proof = tmp_path / "evaluated"
    schema = f"__import__('pathlib').Path({str(proof)!r}).touch() or int"

    assert living.refusal("reset", {"answer_schema": schema}) == "VALIDATION_ERROR"
    assert not proof.exists()


@pytest.fixture(scope="module")
def living(server):
    """A socket whose session has `x`."""
    with peer(server) as one:
        one.reset(max_iterations=1000)
        one.run("x = 1")
        yield one


def test_a_step_before_a_reset(server):
    with peer(server) as one:
        assert one.refusal("step", {"code": "1"}) == "NOT_RESET"
        assert one.refusal("state") == "NOT_RESET"
        one.reset()
        assert one.run("1")["stdout"] == "1\n"


def test_a_step_after_the_end_gives_the_last_result_again(server):
    with peer(server) as one:
        one.reset()
        last = one.ask("step", {"code": "FINAL(7)"})["data"]
        error = one.ask("step", {"code": "1"})["data"]
        assert error["code"] == "EPISODE_DONE"
        assert error["result"]["done"] is True
        assert error["result"]["reward"] == last["reward"]
        assert error["result"]["observation"] == last["observation"]
        assert one.reset()["done"] is False


def test_unknown_arguments_of_a_reset_are_named(server):
    with peer(server) as one:
        assert one.reset(dataset="d")["observation"]["metadata"]["ignored"] == ["dataset"]


def test_a_context_over_sixteen_mebibytes(server):
    with peer(server, max_size=None) as one:
        assert one.reset(context="x" * (17 << 20))["observation"]["context_length"] == 17 << 20
        assert one.run("len(context)")["stdout"] == f"{17 << 20}\n"


@pytest.mark.parametrize("code", ["#" * (8 << 20) + "#", "#" + "é" * (4 << 20)])
def test_code_that_is_too_long_is_refused_by_its_length(server, caplog, code):
    with peer(server) as one:
        one.reset()
        error = one.ask("step", {"code": code})["data"]
        assert error["code"] == "VALIDATION_ERROR" and error["errors"][0]["loc"] == ["code"]
        assert "8,388,608 bytes" in error["message"]
        assert one.run("1")["value"] == "1"
    assert "Traceback" not in caplog.text  # it is no fault of the server's


def test_bytes_go_in_as_base64(server):
    with peer(server) as one:
        one.reset(context={"$bytes": "AAH/"}, files={"a.bin": {"$bytes": "AAH/"}, "b": "text"})
        assert one.run("context, open('a.bin', 'rb').read(), open('b').read()")["value"] == (
            "(b'\\x00\\x01\\xff', b'\\x00\\x01\\xff', 'text')"
        )


def test_lone_surrogates_in_output_lose_nothing(server):
    with peer(server) as one:
        one.reset()
        result = one.run("print('before'); print('a' + chr(0xd800) + 'b'); chr(0xdfff)")
        assert result["success"] is True
        assert result["stdout"].startswith("before\na") and "b\n" in result["stdout"]


# ── environments of others ───────────────────────────────────────────────────────────────────────


def test_a_validator_that_raises_is_a_validation_error(adders):
    with peer(adders) as one:
        one.reset(start=5)
        error = one.ask("step", {"number": 1, "note": "bad"})["data"]
        assert error["code"] == "VALIDATION_ERROR"
        assert error["errors"] == [
            {"type": "value_error", "loc": ["note"], "msg": "Value error, a bad note"}
        ]
        assert one.ask("step", {"number": 1})["data"]["observation"]["total"] == 6


class Brittle(Add):
    """Its validator raises an unexpected exception."""

    @model_validator(mode="before")
    @classmethod
    def _counted(cls, data):
        return {**data, "number": data["number"] + 0}


def test_an_action_that_breaks_ends_its_socket_and_is_written_down(caplog):
    with serving(environment=Adder, action=Brittle, observation=Sum) as server, peer(server) as one:
        one.reset()
        for number in range(3):  # more than were read while the session was made
            one.ask("step", {"number": number})
        one.send("step", {"note": "a secret"})
        assert one.closed() == 1011
    faults = [each.getMessage() for each in caplog.records if "KeyError" in each.getMessage()]
    assert faults and not any("a secret" in each for each in faults)
    assert {each.name for each in caplog.records} == {"repl_server"}


def test_a_client_that_does_not_wait_for_replies_is_read_up_to_the_queue_limit(adders):
    Adder.gate.clear()
    try:
        with peer(adders) as one:
            one.reset()
            (session,) = adders.manager.sessions
            one.send("step", {"number": 1, "note": "wait"})
            assert Adder.waiting.acquire(timeout=PATIENCE)
            for number in range(MOST_WAITING):  # each comes by itself, while the last one waits
                one.send("step", {"number": 1})
                eventually(lambda number=number: session.queued > number)
            for _ in range(MOST_WAITING):
                one.send("step", {"number": 1})
            # The whole message of the other connection arrives before this one.
            assert ask(adders, "GET", "/health")[0] == 200
            assert session.queued == MOST_WAITING
            Adder.gate.set()
            totals = [one.take()["data"]["observation"]["total"] for _ in range(33)]
            assert totals == list(range(1, 34))
    finally:
        Adder.gate.set()


def test_an_environment_that_raises_keeps_its_session_and_its_secrets(adders):
    with peer(adders) as one:
        one.reset(start=5)
        error = one.ask("step", {"number": 1, "note": "raise"})["data"]
        assert error["code"] == "EXECUTION_ERROR"
        assert error["message"].startswith("LookupError: ")
        assert "/etc" not in json.dumps(error) and "Traceback" not in json.dumps(error)
        assert one.ask("step", {"number": 1})["data"]["observation"]["total"] == 6


def test_text_that_is_no_unicode_is_shown_as_far_as_it_is(adders):
    with peer(adders) as one:
        one.reset()
        shown = one.ask("step", {"number": 1, "note": "surrogate"})["data"]
        assert shown["observation"]["text"] == "a?b"


def test_a_reward_that_is_no_number_is_an_error(adders):
    with peer(adders) as one:
        one.reset()
        error = one.ask("step", {"number": 1, "note": "nan"})["data"]
        assert error["code"] == "EXECUTION_ERROR" and "finite" in error["message"]


def test_unknown_fields_are_left_out_for_custom_environments(adders):
    with peer(adders) as one:
        assert one.reset(start=2, unknown=1)["observation"]["total"] == 2


def test_requests_are_answered_in_order(adders):
    with peer(adders) as one:
        one.send("reset", {"start": 0})
        for _ in range(40):
            one.send("step", {"number": 1})
            one.socket.send("[]")
        assert one.take()["data"]["observation"]["total"] == 0
        for count in range(1, 41):
            assert one.take()["data"]["observation"]["total"] == count
            assert one.take()["data"]["code"] == "INVALID_JSON"


def test_metadata_beside_the_observation(adders):
    with peer(adders) as one:
        first = one.reset()
        assert "metadata" not in first
        assert one.ask("step", {"number": 1})["data"]["metadata"] == {"usage": 1}


def test_state_has_what_the_environment_adds(adders):
    with peer(adders) as one:
        one.reset(start=3)
        assert one.ask("state")["data"] == {"episode_id": "e", "step_count": 0, "total": 3}


def test_the_routes_are_described(adders):
    schema = ask(adders, "GET", "/schema")[2]

    assert schema["action"]["properties"].keys() == {"metadata", "number", "note"}
    assert ask(adders, "GET", "/metadata")[2]["name"] == "Adder"
