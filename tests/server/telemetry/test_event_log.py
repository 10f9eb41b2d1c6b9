"""Log lines are JSON with the fields of their event; contents only on request."""

from __future__ import annotations

import io
import json
import logging

import pytest

from repl_server.telemetry import EVENTS, LOGGER, PER_SECOND, EventLog, written_to
from tests.manual_clock import Clock


def lines_of(stream: io.StringIO) -> list[dict]:
    """Return the logged events, without `session_closed`: shared sessions may end meanwhile."""
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [each for each in told if each["event"] != "session_closed"]


def test_a_line_has_time_level_event_and_the_fields() -> None:
    stream = io.StringIO()
    with written_to(stream):
        EventLog().record("refused", id="1", code="TOO_LARGE", tenant="key alice", path="/step")
    (told,) = lines_of(stream)

    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "warning",
        "event": "refused",
        "id": "1",
        "code": "TOO_LARGE",
        "tenant": "key alice",
        "path": "/step",
    }


def test_events_are_logged_under_another_asgi_server_too(caplog) -> None:
    EventLog().record("refused", id="1f", code="TOO_LARGE", path="/" * 1000)
    (line,) = caplog.messages
    assert line.startswith('refused {"id": "1f", "code": "TOO_LARGE", "path": "//')
    assert len(line) < 300


@pytest.mark.parametrize("contents", [False, True])
def test_code_and_output_are_logged_only_on_request(contents) -> None:
    stream = io.StringIO()
    with written_to(stream, contents=contents):
        event_log = EventLog(contents=contents)
        event_log.record(
            "step", session="1", outcome="ok", code="x = 'secret'", stdout="secret" * 100
        )
        event_log.record_fault(ValueError("secret"), id="2")

    assert ("secret" in stream.getvalue()) is contents
    if contents:
        assert lines_of(stream)[0]["stdout"] == "secret" * 100


def test_events_outside_the_table_cannot_be_logged() -> None:
    with pytest.raises(KeyError):
        EventLog().record("no_such_event")
    with pytest.raises(ValueError, match="no fields \\['token'\\]"):
        EventLog().record("session_opened", token="secret")


def test_no_event_has_a_field_for_a_secret() -> None:
    names = {name for event in EVENTS.values() for name in event.fields | event.contents}

    assert not names & {"token", "key", "api_key", "hf_token", "authorization", "expected_answer"}


def test_texts_of_clients_are_truncated_and_escaped() -> None:
    stream = io.StringIO()
    with written_to(stream):
        EventLog().record("refused", id="1", path="/\n{}\ud800\x1b[2J" + "x" * 1000)
    (told,) = lines_of(stream)

    assert len(told["path"]) < 250
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("contents", [False, True])
def test_log_lines_of_libraries_have_no_arguments(contents) -> None:
    stream = io.StringIO()
    with written_to(stream, contents=contents):
        try:
            raise ValueError("secret")
        except ValueError:
            logging.getLogger("asyncio").exception("Task failed\ntask: <Task 'secret'>")
    (told,) = lines_of(stream)

    assert ("secret" in stream.getvalue()) is contents
    assert told["event"] == "log"
    assert told["logger"] == "asyncio"
    assert told["message"].startswith("Task failed")
    assert told["error"].startswith("ValueError")
    assert __file__ in told["traceback"][0]


def test_a_flood_of_one_event_is_sampled_and_counted() -> None:
    stream, clock = io.StringIO(), Clock()
    with written_to(stream):
        event_log = EventLog(clock=clock)
        for _ in range(PER_SECOND * 20):
            event_log.record("refused", id="1")
        event_log.record("server_stopped")
        clock.now += 1
        event_log.record("refused", id="2")
    told = lines_of(stream)

    assert len(told) == PER_SECOND * 10 + 2
    assert told[-2]["event"] == "server_stopped"
    assert (told[-1]["id"], told[-1]["suppressed"]) == ("2", PER_SECOND * 10)


def test_a_flood_of_library_logs_is_sampled_too() -> None:
    """A client can make them: by what is no HTTP, or a step that its environment fails at."""
    stream, clock = io.StringIO(), Clock()
    with written_to(stream, clock=clock):
        for _ in range(PER_SECOND * 20):
            logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        EventLog(clock=clock).record("server_stopped")
        clock.now += 1
        logging.getLogger("asyncio").warning("later")
    told = lines_of(stream)

    assert len(told) == PER_SECOND * 10 + 2
    assert told[-2]["event"] == "server_stopped"
    assert (told[-1]["message"], told[-1]["suppressed"]) == ("later", PER_SECOND * 10)


def test_logging_is_restored_afterwards() -> None:
    def state() -> list:
        loggers = logging.root, logging.getLogger(LOGGER)
        return [(each.level, list(each.handlers)) for each in loggers]

    before = state()
    with written_to(io.StringIO()):
        assert state() != before

    assert state() == before
