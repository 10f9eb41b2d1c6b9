"""Tables from a client: in the request or as uploads, as variables, and what is refused."""

from __future__ import annotations

import base64
from typing import Any

import numpy
import pandas
import polars
import pytest

from repl_env import REPLEnv
from repl_sandbox.tables import Table
from tests.server.conftest import Serving, peer

FRAME = pandas.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"]})
LARGE = pandas.DataFrame({"a": numpy.arange(300_000)})
SHAPE = "type(context).__module__.split('.')[0], context.shape"


@pytest.mark.parametrize(
    ("table", "value"),
    [
        (FRAME, "('pandas', (3, 2))"),
        (polars.DataFrame({"k": [1, 2]}), "('polars', (2, 1))"),
        (LARGE, "('pandas', (300000, 1))"),
    ],
    ids=["pandas", "polars", "uploaded"],
)
def test_a_client_gives_a_table_as_context(server: Serving, table: Any, value: str) -> None:
    sent: list[Any] = []
    with REPLEnv(server.url).sync() as env:
        result = env.reset(context=table, on_upload=lambda *each: sent.append(each))
        assert result.observation.context_length == len(table)
        assert env.execute(SHAPE).observation.result.value == value
    assert bool(sent) == (table is LARGE)


def test_a_large_table_beside_a_large_text_is_read_by_the_session(server: Serving) -> None:
    with REPLEnv(server.url).sync() as env:
        env.reset(contexts={"table": LARGE, "text": "x" * 2_000_000})
        value = env.execute("table.shape, len(text)").observation.result.value
    assert value == "((300000, 1), 2000000)"


def test_a_client_gives_tables_as_variables_of_a_follow_up(server: Serving) -> None:
    with REPLEnv(server.url).sync() as env:
        env.reset(context="x")
        env.follow_up(task_prompt="And now?", variables={"frame": FRAME})
        assert env.execute("frame.shape").observation.result.value == "(3, 2)"


@pytest.mark.parametrize(
    "content",
    ["no base64", 7, base64.b64encode(b"no table").decode(), base64.b64encode(b"{}\n").decode()],
)
def test_a_table_that_is_none_is_refused_and_named(server: Serving, content: Any) -> None:
    with peer(server) as client:
        reply = client.ask("reset", {"context": {"$table": content}})
    assert reply["data"]["code"] == "VALIDATION_ERROR"
    assert "context" in str(reply["data"])


def test_a_table_that_the_session_cannot_read_is_refused(server: Serving) -> None:
    table = Table.of(polars.DataFrame({"a": [1]}))
    assert table is not None
    broken = base64.b64encode(table.data[:-150]).decode()
    with peer(server) as client:
        reply = client.ask("reset", {"context": {"$table": broken}})
    assert reply["type"] == "error"
    assert "cannot be read here" in str(reply["data"])
