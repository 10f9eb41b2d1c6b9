"""Large JSON texts: a limit to the values in them, and turns to read them."""

import asyncio
import json
from collections import deque

import pytest

from repl_env.models import CodeBlockResult, Observation, REPLObservation
from repl_server.json_codec import LARGE, MOST_VALUES, JSONCodec, checked_values, count_values
from repl_server.protocol import observation_text
from repl_server.tenants import RequestError, Tenant
from tests.server.conftest import ask, peer
from tests.server.server_internals import large_message_lock, set_piece

ANN, BOB = Tenant("key", "ann"), Tenant("key", "bob")


def last(counts):
    """Return the last of `counts`."""
    return deque(counts, maxlen=1).pop()


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ([1, 2, 3], 3),
        ({"a": [[], {}], "b": 1}, 6),
        ("a, [b], {c}", 0),
        ('say "a, b", [c]\\', 0),
        (["\\", 'x", "y', "\\\\"], 3),
        ("é, ü, 日本, [", 0),
    ],
)
def test_values_are_counted_outside_of_strings(value, count):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert last(count_values(text)) == last(count_values(text.encode())) == count


@pytest.mark.parametrize("piece", [2, 3, 5, 8])
def test_pieces_split_no_escape_and_no_string(piece, monkeypatch):
    set_piece(monkeypatch, piece)
    for value, count in [
        (["\\", 'x", "y', "\\\\", ["é, [", '\\"']], 6),
        ({"a, b": 'c\\",', "日": [[1, 2], "[{"]}, 6),
    ]:
        for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
            assert last(count_values(text)) == last(count_values(text.encode())) == count
    assert last(count_values('["' + "\\" * 7)) == 1


@pytest.mark.parametrize("unit", ["[],", '{"a":1},', '"x",', "1,", '"\\"",'])
def test_too_many_values_are_refused_before_they_are_read(unit):
    text = "[" + unit * (MOST_VALUES + 1) + "1]"
    with pytest.raises(RequestError, match="TOO_LARGE"):
        last(checked_values(text))
    with pytest.raises(RequestError, match="TOO_LARGE"):
        last(checked_values(text.encode()))


def test_a_long_text_counts_as_one_value():
    text = json.dumps({"context": json.dumps([{"a": [1, "b"]}] * 100_000)})
    assert last(checked_values(text)) == 1


async def test_large_texts_are_read_one_at_a_time_and_small_ones_at_once():
    reading, order = JSONCodec(), []

    def read(text):
        order.append(text[:1])
        return text[:1]

    large = [asyncio.create_task(reading.read(name * LARGE, read, ANN)) for name in "ab"]
    await asyncio.sleep(0)
    assert await reading.read("c", read, ANN) == "c"
    assert [await each for each in large] == ["a", "b"]
    assert order == ["c", "a", "b"]


async def test_large_replies_are_written_one_at_a_time_and_small_ones_at_once():
    reading, order = JSONCodec(), []

    def pieces(name):
        for piece in (name * LARGE, f"[{name * LARGE}]", f"{{{name * LARGE}}}"):
            order.append(name)
            yield piece

    large = [asyncio.create_task(reading.written(pieces(name))) for name in "ab"]
    await asyncio.sleep(0)
    small = await reading.written(iter(["[c]"]))
    whole = [await each for each in large]
    assert small == "[c]"
    assert [each[:2] for each in whole] == ["{a", "{b"]
    assert "".join(order) == "abaabb"  # how large one is, only its first piece says


async def test_a_reply_is_large_if_its_first_piece_is():
    reading, waited = JSONCodec(), []

    def pieces():
        yield LARGE * "l"
        waited.append(large_message_lock(reading).locked())
        yield "whole"

    assert await reading.written(pieces()) == "whole"
    assert waited == [True]


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("kind", [Observation, REPLObservation])
def test_an_observation_is_written_in_pieces(kind, beside):
    answer = {"metadata": {"final_answer": "x" * LARGE}}
    own = {"result": CodeBlockResult()} if kind is REPLObservation else {}
    observed = kind(done=True, reward=1.0, **own, **answer)
    *pieces, whole = observation_text(observed, beside=beside)
    inner = observed.model_dump(mode="json", exclude={"reward", "done"})
    outer = answer if beside else {}
    assert json.loads(whole) == {"observation": inner, "reward": 1.0, "done": True, **outer}
    assert max(map(len, pieces)) > LARGE
    *_, whole = observation_text(observed.model_copy(update={"metadata": {}}), beside=True)
    assert "metadata" not in json.loads(whole)


async def test_many_texts_of_one_tenant_delay_another_by_one():
    reading, order = JSONCodec(), []

    def read(text):
        order.append(text[:1])

    asked = [(name, ANN) for name in "abcd"] + [("z", BOB)]
    tasks = [asyncio.create_task(reading.read(n * LARGE, read, tenant)) for n, tenant in asked]
    await asyncio.gather(*tasks)
    assert "".join(order) == "azbcd"


async def test_an_invalid_text_does_not_delay_the_next():
    reading = JSONCodec()
    with pytest.raises(ValueError, match="Expecting"):
        await reading.read("x" * LARGE, json.loads, ANN)
    assert await reading.read(json.dumps("x" * LARGE), json.loads, ANN) == "x" * LARGE


def test_the_limits_apply_to_sockets_and_bodies(server):
    bomb = '{"type": "reset", "data": {"context": [' + "[]," * (MOST_VALUES + 1) + "1]}}"
    with peer(server, max_size=None) as one:
        one.socket.send(bomb)
        error = one.take()["data"]
        assert (error["code"], error["limit"]) == ("TOO_LARGE", MOST_VALUES)
        text = json.dumps([{"a": 1}] * 150_000)
        assert one.reset(context=text)["observation"]["context_length"] == len(text)
    status, _, body = ask(server, "POST", "/reset", bomb.encode())
    assert (status, body["code"]) == (413, "TOO_LARGE")
    status, _, body = ask(server, "POST", "/mcp", bomb.encode())
    assert body["error"]["data"]["code"] == "TOO_LARGE"
