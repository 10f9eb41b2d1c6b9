"""Tables of pandas, polars and pyarrow: as tables into a session, as lists of rows out of it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy
import pandas
import polars
import pytest

from repl_sandbox import AsyncSandbox, Limits, Policy, Sandbox, Session
from repl_sandbox.tables import Table

FRAME = pandas.DataFrame(
    {
        "count": [1, 2, 3],
        "name": ["x", None, "z"],
        "share": [0.5, numpy.nan, 1.0],
        "at": pandas.to_datetime(["2024-01-02", None, "2024-03-04"]),
    }
)
# Tables whose types, index or attributes a plain form would lose.
FRAMES = {
    "plain": FRAME,
    "index": FRAME.set_index("name"),
    "levels": FRAME.set_index(["count", "name"]),
    "objects": pandas.DataFrame({"a": pandas.Series([[1], {"b": (2,)}, None], dtype=object)}),
    "category": FRAME.assign(name=FRAME["name"].astype("category")),
    "nullable": FRAME.assign(count=FRAME["count"].astype("Int64").replace(2, pandas.NA)),
    "zone": FRAME.assign(at=FRAME["at"].dt.tz_localize("Europe/Vienna")),
    "numbers as names": pandas.DataFrame(numpy.eye(3)),
    "names twice": pandas.DataFrame([[1, 2]], columns=["a", "a"]),
    "dates": pandas.DataFrame({"a": [1, 2]}, index=pandas.date_range("2024", periods=2, freq="D")),
    "empty": pandas.DataFrame(),
    "no rows": FRAME.head(0),
}
COMPARE = """
import pickle, pandas.testing
original = pickle.loads(expected)
pandas.testing.assert_frame_equal(frame, original)
freq = [getattr(each.index, "freq", None) for each in (frame, original)]
frame.attrs == original.attrs, type(frame.index) is type(original.index), freq[0] == freq[1]
"""


@pytest.fixture(scope="module")
def session() -> Any:
    with Sandbox() as sandbox, sandbox.session() as session:
        yield session


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_of_pandas_arrives_as_it_was(session: Session, name: str) -> None:
    frame = FRAMES[name].copy()
    frame.attrs = {"source": "test"} if name == "index" else {}
    session.set("frame", frame)
    session.set("expected", pickle.dumps(frame))
    outcome = session.run(COMPARE)
    assert outcome.error is None, outcome.error
    assert outcome.value == "(True, True, True)"


def test_a_frame_can_be_changed_and_is_a_copy(session: Session) -> None:
    session.set("frame", FRAME)
    assert session.run("frame.loc[0, 'count'] = 7\nint(frame['count'].sum())").value == "12"
    assert FRAME["count"].sum() == 6


def test_a_series_of_pandas_arrives_with_its_index_and_name(session: Session) -> None:
    session.set("series", FRAME.set_index("name")["share"])
    outcome = session.run("series.name, series.index.name, series.to_dict()['z']")
    assert outcome.value == "('share', 'name', 1.0)"


def test_tables_of_polars_arrive_as_they_were(session: Session) -> None:
    frame = polars.DataFrame({"a": [1, None], "b": ["x", "y"], "c": [[1.5], []]})
    session.set("frame", frame)
    session.set("column", frame["b"])
    assert session.run("type(frame).__module__.split('.')[0], frame.schema").value == repr(
        ("polars", frame.schema)
    )
    assert session.run("frame.rows(), column.name, column.to_list()").value == repr(
        (frame.rows(), "b", ["x", "y"])
    )


def test_a_large_frame_arrives_as_it_was(session: Session) -> None:
    frame = pandas.DataFrame(numpy.arange(400_000).reshape(-1, 4), columns=list("abcd"))
    session.set("frame", frame)
    assert session.run("frame.shape, int(frame.to_numpy().sum())").value == repr(
        (frame.shape, int(frame.to_numpy().sum()))
    )


async def test_an_asyncio_session_takes_tables() -> None:
    async with AsyncSandbox() as sandbox, await sandbox.session() as session:
        await session.set("frame", FRAME)
        assert (await session.run("len(frame)")).value == "3"


def test_a_host_function_returns_a_table(session: Session) -> None:
    told: list[Any] = []
    with (
        Sandbox() as sandbox,
        sandbox.session(host={"load": lambda: FRAME, "take": told.append}) as own,
    ):
        outcome = own.run("frame = load()\ntake(frame.head(2))\ntype(frame).__name__, frame.shape")
    assert outcome.value == "('DataFrame', (3, 4))"
    # A session is not trusted: what it sends is plain.
    assert told == [
        [
            {"count": 1, "name": "x", "share": 0.5, "at": "2024-01-02T00:00:00"},
            {"count": 2, "name": None, "share": None, "at": None},
        ]
    ]


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("pandas.DataFrame({'a': [1.5, float('nan')]})", [{"a": 1.5}, {"a": None}]),
        ("pandas.DataFrame({'a': [1, 2]}, index=['x', 'y'])",
         [{"index": "x", "a": 1}, {"index": "y", "a": 2}]),
        ("pandas.DataFrame({'a': ['x', None]})", [{"a": "x"}, {"a": None}]),
        ("pandas.DataFrame({'a': [pandas.NaT]})", [{"a": None}]),
        ("pandas.Series([1.0, None])", [1.0, None]),
        ("pandas.Series([1.0, None], index=['x', 'y'])", {"x": 1.0, "y": None}),
        ("polars.DataFrame({'a': [1.0, None, float('nan')]})",
         [{"a": 1.0}, {"a": None}, {"a": None}]),
        ("polars.Series([1.0, None, float('nan')])", [1.0, None, None]),
        ("pandas.DataFrame()", []),
        ("pandas.DataFrame(index=[0, 1])", [{}, {}]),
    ],
)  # fmt: skip
def test_a_table_comes_out_as_rows_with_none_for_missing_values(
    session: Session, code: str, value: Any
) -> None:
    session.run(f"import pandas, polars\ntable = {code}")
    assert session.get("table") == value


def test_infinities_of_a_table_are_refused(session: Session) -> None:
    session.run("import pandas\ntable = pandas.DataFrame({'a': [float('inf')]})")
    with pytest.raises(TypeError, match="nan and infinities are no JSON"):
        session.get("table")


class Opaque:
    """A class that the session does not have, and cannot be pickled at all with `open` set."""

    def __init__(self, *, opened: bool = False) -> None:
        self.opened = opened

    def __reduce__(self) -> Any:
        if self.opened:
            raise OSError("this is open")
        return super().__reduce__()


@pytest.mark.parametrize(
    "frame",
    [
        polars.DataFrame({"a": polars.Series(["Object"], dtype=polars.Enum(["Object"]))}),
        polars.DataFrame({"a": [{"ObjectId": 1}], "Object": [2]}),
    ],
)
def test_a_column_may_have_object_in_a_name(session: Session, frame: polars.DataFrame) -> None:
    session.set("frame", frame)
    assert session.run("frame.rows()").value == repr(frame.rows())


def test_a_table_larger_than_the_memory_of_a_session_names_the_limit() -> None:
    with Sandbox(limits=Limits(memory="200MiB")) as small, small.session() as other:
        other.set("frame", FRAME)
        frame = pandas.DataFrame({"a": numpy.zeros(40_000_000)})
        with pytest.raises(ValueError, match=r"40,000,000 rows, does not fit .*Limits\.memory"):
            other.set("frame", frame)
        assert other.run("frame.shape").value == "(3, 4)"


def test_a_table_that_cannot_be_written_is_refused_by_name(session: Session) -> None:
    frame = pandas.DataFrame({"a": pandas.Series([Opaque(opened=True)], dtype=object)})
    with pytest.raises(
        TypeError, match="an object in the DataFrame cannot be pickled: this is open"
    ):
        session.set("frame", frame)
    column = polars.Series("a", [Opaque()], dtype=polars.Object)
    with pytest.raises(TypeError, match="Arrow has no form for column 'a' of the Series"):
        session.set("frame", column)


def test_a_table_that_the_session_cannot_read_is_refused_and_nothing_is_lost(
    session: Session,
) -> None:
    session.set("frame", FRAME)
    frame = pandas.DataFrame({"a": pandas.Series([Opaque()], dtype=object)})
    with pytest.raises(ValueError, match="frame: the DataFrame of pandas cannot be read here"):
        session.set("frame", frame)
    assert session.run("frame.shape").value == "(3, 4)"


_table = Table.of(polars.DataFrame({"a": [1, 2]}))
TABLE = b"" if _table is None else _table.data
LIES = {
    "a stream that is cut": lambda data: data[:-150],
    "no stream": lambda data: data[: data.index(b"\n") + 1] + b"ARROW1" * 10,
    "huge lengths": lambda data: data[: data.index(b"\n") + 1] + b"\xff" * 64,
}


@pytest.mark.parametrize("name", LIES)
def test_arrow_that_lies_is_an_error(session: Session, name: str) -> None:
    session.set("kept", 1)
    with pytest.raises(ValueError, match="cannot be read here"):
        session.set("frame", Table.from_bytes(LIES[name](TABLE)))
    assert session.run("kept").value == "1"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"[]\n",
        TABLE.replace(b'"polars"', b'"sqlite"', 1),
        b"{}\n",
        b'{"rows": -1}\n',
        b"x" * 100_000,
        b"[" * 60_000 + b"\n",
    ],
)
def test_bytes_that_are_no_table_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="this is no table"):
        Table.from_bytes(data)


@pytest.mark.parametrize("language", ["lint", "restricted"])
def test_a_table_of_the_host_needs_no_leave_to_import(language: Any) -> None:
    policy = Policy(language=language, imports=["math"])
    with Sandbox(policy=policy) as sandbox, sandbox.session() as own:
        own.set("frame", FRAME[["count"]])
        refused = own.run("import pandas").error
        assert refused is not None
        assert refused.type == "PolicyError"
        assert own.get("frame") == [{"count": 1}, {"count": 2}, {"count": 3}]


@pytest.mark.parametrize("letter", ["c", "\u00e9", "\U0001f600", '"', "\n"])
def test_the_description_of_a_table_is_bounded(session: Session, letter: str) -> None:
    wide = pandas.DataFrame(numpy.zeros((2, 5_000)))
    wide = wide.set_axis([f"{letter * 300}{n}" for n in range(5_000)], axis=1)
    table = Table.of(wide)
    assert table is not None
    assert table.size == "2 rows x 5000 columns"
    assert len(table.columns) == 200
    assert len(table.shown) <= 4_000
    session.set("wide", table)
    assert session.run("wide.shape, len(wide.columns[0])").value == "((2, 5000), 301)"


def test_tables_of_pyarrow_arrive_as_they_were(session: Session) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="make test-libraries")
    table = pyarrow.table({"a": [1, None], "b": ["x", "y"]})
    session.set("table", table)
    session.set("batch", table.to_batches()[0])
    assert session.run("type(table).__name__, table.to_pylist() == batch.to_pylist()").value == (
        "('Table', True)"
    )
    assert session.get("table") == table.to_pylist()
