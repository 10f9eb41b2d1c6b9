"""Values between host and session: one conversion, in every direction (docs/values.md)."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import itertools
import json
import pathlib
import types
import uuid
from typing import Any, NamedTuple

import pytest

from repl_sandbox import HostFunction, Raised, Sandbox, Session
from repl_sandbox.protocol import values
from repl_sandbox.protocol.values import MAX_DEPTH, dump_json


class Place(NamedTuple):
    x: int
    y: int


class Color(enum.Enum):
    RED = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


class Kind(enum.StrEnum):
    A = "a"


@dataclasses.dataclass
class Item:
    name: str
    tags: Any = ()
    seen: dataclasses.InitVar[int] = 0


class Odd(collections.UserList[int]):
    pass


UTC = datetime.UTC
# A value, as source for both the session's names and the host's, and its converted form.
CASES: list[tuple[str, Any]] = [
    ("{3, 1, 10}", [1, 10, 3]),
    ("frozenset({'b', 'a'})", ["a", "b"]),
    ("{1, 'a', (2,)}", ["a", 1, [2]]),
    ("{frozenset({2, 1})}", [[1, 2]]),
    ("{'b': 1, 'a': 2}.keys()", ["b", "a"]),
    ("{'b': 1, 'a': 2}.values()", [1, 2]),
    ("{'b': 1}.items()", [["b", 1]]),
    ("(n * n for n in range(3))", [0, 1, 4]),
    ("map(str, [1])", ["1"]),
    ("zip('ab', (1, 2))", [["a", 1], ["b", 2]]),
    ("iter([1])", [1]),
    ("range(3)", [0, 1, 2]),
    ("collections.deque([1, 2])", [1, 2]),
    ("collections.OrderedDict(a=1)", {"a": 1}),
    ("collections.Counter('aab')", {"a": 2, "b": 1}),
    ("collections.defaultdict(list, a=[1])", {"a": [1]}),
    ("collections.ChainMap({'a': 1})", {"a": 1}),
    ("collections.UserDict(a=1)", {"a": 1}),
    ("collections.UserList([1])", [1]),
    ("collections.UserString('ab')", "ab"),
    ("types.MappingProxyType({'a': {1}})", {"a": [1]}),
    ("types.SimpleNamespace(a=1)", {"a": 1}),
    ("collections.namedtuple('P', 'x y')(1, 2)", [1, 2]),
    ("datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)",
     "2024-01-02T03:04:05+00:00"),
    ("datetime.date(2024, 1, 2)", "2024-01-02"),
    ("datetime.time(3, 4)", "03:04:00"),
    ("datetime.timedelta(minutes=1, milliseconds=500)", 60.5),
    ("decimal.Decimal('0.10')", "0.10"),
    ("fractions.Fraction(1, 3)", "1/3"),
    ("uuid.UUID(int=1)", "00000000-0000-0000-0000-000000000001"),
    ("pathlib.Path('a/b')", "a/b"),
    ("pathlib.PureWindowsPath('a/b')", "a\\b"),
    ("enum.Enum('Color', {'RED': (1, 2)}).RED", [1, 2]),
    ("enum.IntEnum('Level', 'LOW').LOW", 1),
    ("b'\\xff'", {"$bytes": "/w=="}),
    ("bytearray(b'a')", {"$bytes": "YQ=="}),
    ("memoryview(b'a')", {"$bytes": "YQ=="}),
    ("__import__('array').array('i', [1, 2])", [1, 2]),
    ("dataclasses.make_dataclass('D', ['n', 't'])('x', {2, 1})", {"n": "x", "t": [1, 2]}),
    ("[{'deep': [{'set': {1}}]}]", [{"deep": [{"set": [1]}]}]),
    ("10**100", 10**100),
    ("type('S', (str,), {})('s')", "s"),
    ("type('F', (float,), {})(0.5)", 0.5),
]  # fmt: skip
MODULES = (
    collections, dataclasses, datetime, decimal, enum, fractions, itertools, pathlib, types, uuid
)  # fmt: skip
NAMES = {module.__name__: module for module in MODULES}
IMPORTS = f"import {', '.join(NAMES)}"


@pytest.fixture(scope="module")
def told() -> list[Any]:
    """The argument of the function `take`."""
    return []


@pytest.fixture(scope="module")
def session(open_python: str, told: list[Any]) -> Any:
    host = {
        "take": lambda value: told.append(value),
        "give": lambda source: eval(source, dict(NAMES)),
    }
    with Sandbox(isolation="process", python=open_python) as sandbox:
        with sandbox.session(host=host, answers="strict") as session:
            session.run(IMPORTS)
            yield session


@pytest.mark.parametrize(("source", "arrives"), CASES, ids=[source for source, _ in CASES])
def test_a_value_arrives_the_same_in_every_direction(
    session: Session, told: list[Any], source: str, arrives: Any
) -> None:
    told.clear()
    outcome = session.run(f"take({source})\nresult = give({source!r})\nvalue = {source}")
    assert outcome.ok, outcome.error
    assert told == [arrives]
    assert session.get("result") == arrives
    answers = session.run(f"_ = FINAL({source})").answers
    assert [answer.value for answer in answers] == [arrives]
    assert session.get("value") == arrives
    value = eval(source, dict(NAMES))
    if not isinstance(value, (bytes, bytearray, memoryview)):  # `set` binds these as bytes
        session.set("bound", value)
        assert session.get("bound") == arrives
        assert session.run("type(bound) in (list, dict, str, int, float)").value == "True"


REFUSED = [
    ("float('nan')", "ValueError", "nan and infinities are no JSON"),
    ("[float('-inf')]", "ValueError", "nan and infinities are no JSON"),
    ("{float('inf')}", "ValueError", "nan and infinities are no JSON"),
    ("{1: 'a'}", "TypeError", "the key 1 of a dict is int; JSON has texts alone for keys"),
    ("[{True: 1}]", "TypeError", "the key True of a dict is bool"),
    ("{(1, 2): 3}", "TypeError", "a key of a dict is tuple; JSON has texts"),
    ("collections.Counter([1])", "TypeError", "the key 1 of a dict is int"),
    ("types.MappingProxyType({1: 2})", "TypeError", "the key 1 of a dict is int"),
    ("dataclasses.make_dataclass('D', ['n'])({1: 2})", "TypeError", "the key 1 of a dict is int"),
    ("{1: 'a', '1': 'b'}", "ValueError", "its keys 1 and '1' are one key in JSON"),
    ("1j", "TypeError", "an object of type complex has no form in JSON"),
    ("object()", "TypeError", "an object of type object has no form in JSON"),
    ("print", "TypeError", "has no form in JSON"),
    ("int", "TypeError", "an object of type type has no form in JSON"),
    ("collections", "TypeError", "an object of type module has no form in JSON"),
    ("__import__('io').StringIO('a')", "TypeError", "an object of type StringIO has no form"),
    ("itertools.count()", "ValueError", "type count has more than 1,048,576 elements"),
    ("range(10**12)", "ValueError", "type range has more than 1,048,576 elements"),
    ("(lambda held: (held.append(held), held)[1])([])", "ValueError", "Circular reference"),
    ("(lambda d: (d.append(d), d)[1])(collections.deque())", "ValueError", "Circular reference"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "kind", "problem"), REFUSED, ids=[source for source, _, _ in REFUSED]
)
def test_values_that_json_would_change_are_refused_in_every_direction(
    session: Session, told: list[Any], source: str, kind: str, problem: str
) -> None:
    told.clear()
    outcome = session.run(f"take({source})")
    assert isinstance(outcome, Raised)
    assert outcome.error.type == kind
    assert problem in outcome.error.message
    assert told == []
    outcome = session.run(f"give({source!r})")
    assert isinstance(outcome, Raised)
    assert problem in outcome.error.message
    value = eval(source, dict(NAMES))
    with pytest.raises((TypeError, ValueError)) as caught:
        session.set("value", value)
    assert type(caught.value).__name__ == kind
    assert problem in str(caught.value)


@pytest.mark.parametrize("make", ["[{}]", "collections.deque([{}])", "D({})"])
def test_endless_nesting_is_refused(session: Session, make: str) -> None:
    step = make.format("x")
    outcome = session.run(
        f"D = dataclasses.make_dataclass('D', ['n'])\nx = 1\n"
        f"for _ in range(100_000): x = {step}\ntake(x)"
    )
    assert isinstance(outcome, Raised)
    assert "nested" in outcome.error.message


def test_a_class_that_fails_when_it_is_read_raises_in_the_cell(session: Session) -> None:
    code = (
        "from collections.abc import Mapping\n"
        "class Bad(Mapping):\n"
        "    def __len__(self): return 1\n"
        "    def __iter__(self): return iter('a')\n"
        "    def __getitem__(self, key): raise LookupError('not now')\n"
    )
    outcome = session.run(f"{code}take(Bad())")
    assert isinstance(outcome, Raised)
    assert (outcome.error.type, outcome.error.message) == ("LookupError", "not now")


# ── libraries, which sessions of this suite need not have ─────────────────────────────────────


def converted(value: object) -> Any:
    return json.loads(values.encoded(value))


def test_numpy_converts() -> None:
    numpy = pytest.importorskip("numpy")
    for given, arrives in [
        (numpy.int64(2), 2),
        ([numpy.float32(0.5), numpy.bool_(True), numpy.str_("t")], [0.5, True, "t"]),
        (numpy.longdouble(0.5), 0.5),
        (numpy.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (numpy.array(5), 5),
        (numpy.array(["a", None, {1}], dtype=object), ["a", None, [1]]),
        (numpy.array([(1, 2.5)], dtype="i4,f8"), [{"f0": 1, "f1": 2.5}]),
        (numpy.array([[(1, "a")]], dtype=[("n", "i4"), ("t", "U1")]), [[{"n": 1, "t": "a"}]]),
        (
            numpy.array([(1, "2024-01-02")], dtype=[("n", "i4"), ("t", "M8[ns]")])[0],
            {"n": 1, "t": "2024-01-02T00:00:00"},
        ),
        (
            numpy.rec.array([(1, [2, 3])], dtype=[("n", "i4"), ("v", "i4", (2,))]),
            [{"n": 1, "v": [2, 3]}],
        ),
        (numpy.bytes_(b"a"), {"$bytes": "YQ=="}),
        (numpy.datetime64("2024-01-02"), "2024-01-02"),
        (numpy.datetime64("2024-01-02T03:04:05.000000001"), "2024-01-02T03:04:05"),
        (numpy.array(["2024-01-02", "NaT"], dtype="M8[ns]"), ["2024-01-02T00:00:00", None]),
        (numpy.timedelta64(1500, "ms"), 1.5),
        (numpy.timedelta64(1, "ns"), 0.0),
        ({"k": numpy.int64(2), "s": {1}}, {"k": 2, "s": [1]}),
    ]:
        assert converted(given) == arrives
        assert type(converted(given)) is type(arrives)
    for bad in (numpy.float64("nan"), numpy.array([1.0, numpy.inf])):
        with pytest.raises(ValueError, match="nan and infinities"):
            values.encoded(bad)
    for late in (numpy.datetime64("12024-01-02"), numpy.array(["12024-01-02"], dtype="M8[us]")):
        with pytest.raises(ValueError, match="outside of the years"):
            values.encoded(late)
    with pytest.raises(TypeError, match="int64; JSON has texts"):
        values.encoded({numpy.int64(1): 2})
    with pytest.raises(TypeError, match="complex has no form"):
        values.encoded(numpy.complex128(1))


def test_pandas_converts() -> None:
    pandas = pytest.importorskip("pandas")
    day = pandas.Timestamp("2024-01-02")
    for given, arrives in [
        (pandas.Series(["a", "b"]), ["a", "b"]),
        (pandas.Series(["a", "b"], index=[0, 1]), ["a", "b"]),
        (pandas.Series([], dtype="float64"), []),
        (pandas.Index([1, 2]), [1, 2]),
        (pandas.Categorical(["a"]), ["a"]),
        (pandas.Series([day, pandas.NaT]), ["2024-01-02T00:00:00", None]),
        (pandas.array([1, None], dtype="Int64"), [1, None]),
        (day, "2024-01-02T00:00:00"),
        ([pandas.NaT, pandas.NA], [None, None]),
        (pandas.Timedelta(minutes=1), 60.0),
        (pandas.Period("2024-01"), "2024-01"),
        (pandas.DataFrame({"a": [1, 2], "d": [day, day]}),
         [{"a": n, "d": "2024-01-02T00:00:00"} for n in (1, 2)]),
    ]:  # fmt: skip
        assert converted(given) == arrives
    with pytest.raises(TypeError, match="the key 0 of a dict is int"):
        values.encoded(pandas.DataFrame([[1]]))
    with pytest.raises(ValueError, match="two columns of a DataFrame have one name"):
        values.encoded([pandas.DataFrame([[1, 2]], columns=["a", "a"])])


def test_the_index_of_pandas_objects_is_kept_or_refused() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"key": ["a", "b", "a"], "n": [1, 1, 2], "v": [1, 2, 3]})
    days = pandas.date_range("2024-01-01", periods=2)
    for given, arrives in [
        (table.groupby("key").v.sum(), {"a": 4, "b": 2}),
        (table.groupby("key").v.sum().sort_values(), {"b": 2, "a": 4}),
        (table.key.value_counts(), {"a": 2, "b": 1}),
        (table.v.describe().round(1)[["count", "min"]], {"count": 3.0, "min": 1.0}),
        (table.dtypes.map(str), {"key": str(table.key.dtype), "n": "int64", "v": "int64"}),
        (table.iloc[0], {"key": "a", "n": 1, "v": 1}),
        (pandas.Series([1, 2], index=days), {"2024-01-01T00:00:00": 1, "2024-01-02T00:00:00": 2}),
        (pandas.Series([1, 2], index=days.date), {"2024-01-01": 1, "2024-01-02": 2}),
        (pandas.Series([1], index=days.to_period("M")[:1]), {"2024-01": 1}),
        (pandas.Series([1], index=pandas.CategoricalIndex(["a"])), {"a": 1}),
        (table.groupby("key")[["v"]].sum(), [{"key": "a", "v": 4}, {"key": "b", "v": 2}]),
        (table.groupby(["key", "n"]).v.sum().reset_index(),
         [{"key": k, "n": n, "v": v} for k, n, v in [("a", 1, 1), ("a", 2, 3), ("b", 1, 2)]]),
        (table.groupby(["key", "n"])[["v"]].sum().head(1), [{"key": "a", "n": 1, "v": 1}]),
        (pandas.DataFrame({"v": [1]}, index=["x"]), [{"index": "x", "v": 1}]),
        (pandas.DataFrame({"v": [1]}, index=[2019]), [{"index": 2019, "v": 1}]),
        (table[table.v > 2][["v"]], [{"index": 2, "v": 3}]),
        (table.pivot_table(index="key", values="v"), [{"key": k, "v": 2.0} for k in "ab"]),
        (pandas.MultiIndex.from_tuples([("a", 1)]), [["a", 1]]),
        ({"sums": table.groupby("key").v.sum()}, {"sums": {"a": 4, "b": 2}}),
    ]:  # fmt: skip
        assert converted(given) == arrives
    for bad, message in [
        (table.groupby(["key", "n"]).v.sum(), "several levels.*reset_index"),
        (table.groupby("n").v.sum(), r"the label 1 of a Series is int.*\.tolist\(\)"),
        (pandas.Series([1, 2], index=["a", "a"]), "have one label"),
        (pandas.Series([1], index=[5]), "the label 5 of a Series is int"),
        (pandas.Series([3, 3, 4]).value_counts(), "the label 3 of a Series is int"),
        (table.pivot_table(index="key", columns="n", values="v", fill_value=0),
         "the key 1 of a dict is int"),
        (table.set_index("key", drop=False), "index of a DataFrame cannot be made a column"),
        (table.groupby("key").agg({"v": ["min", "max"]}), "a key of a dict is tuple"),
    ]:  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=message):
            values.encoded(bad)
    # An answer may have numbers as keys.
    sums = table.groupby("n").v.sum()
    assert json.loads(values.encoded(sums, any_keys=True)) == {"1": 3, "2": 3}


def test_models_of_pydantic_convert() -> None:
    model: Any = pytest.importorskip("pydantic").BaseModel

    class Inner(model):  # type: ignore[misc]
        when: datetime.date
        tags: set[str]

    class Outer(model):  # type: ignore[misc]
        inner: Inner
        counts: dict[int, int] = {}

    inner = Inner(when="2024-01-02", tags={"b", "a"})
    assert converted(Outer(inner=inner)) == {
        "inner": {"when": "2024-01-02", "tags": ["a", "b"]}, "counts": {}
    }  # fmt: skip
    with pytest.raises(TypeError, match="the key 1 of a dict is int"):
        values.encoded(Outer(inner=inner, counts={1: 2}))


def test_a_dataclass_crosses_with_its_fields_alone() -> None:
    assert converted([Item("x", {1}), Color.RED, Level.LOW, Kind.A, Place(1, 2), Odd([1])]) == [
        {"name": "x", "tags": [1]}, [1, 2], 1, "a", [1, 2], [1]
    ]  # fmt: skip


def test_depth_is_counted_after_conversion() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH + 1):
        value = (each for each in [value])
    with pytest.raises(ValueError, match="nested"):
        dump_json(value)


def test_a_replaced_json_encoder_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("json.JSONEncoder.default", lambda _, value: str(value))
    assert converted({"s": {2, 1}}) == {"s": [1, 2]}
    with pytest.raises(TypeError, match="has no form in JSON"):
        values.encoded(object())


def test_a_series_is_its_values_where_a_function_takes_texts_raw() -> None:
    pytest.importorskip("pandas")
    told: list[Any] = []

    def ask(prompts: list[str]) -> None:
        told.append(prompts)

    host = {"ask": HostFunction(ask, raw=("prompts",))}
    code = "import pandas\nt = pandas.DataFrame({'t': ['a', 'b', 'c']})\nask(t[t.t > 'a'].t)"
    with Sandbox() as sandbox, sandbox.session(host=host) as session:
        outcome = session.run(code)
        assert outcome.ok, outcome
    assert told == [["b", "c"]]
