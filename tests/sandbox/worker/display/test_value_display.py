"""Values as text: bounded in time and size; previews run no code of the user's."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import pathlib
import re
import sys
import threading
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_sandbox.worker.namespace import type_name
from repl_sandbox.worker.preview import DISPLAY_LIMIT, display, preview, shallow_size

PREVIEW_LIMIT = 120

plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.sets(st.integers())
        | st.frozensets(st.text())
    ),
)

nested_numbers = st.recursive(
    st.integers(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.integers(), inner),
    max_leaves=5,
)

# ── display ──────────────────────────────────────────────────────────────────────────────────────


@given(plain_values)
def test_a_short_value_is_displayed_by_its_own_repr(value):
    assert display(value) == repr(value).encode("utf-8", "backslashreplace").decode()


@given(plain_values, st.integers(20, 400))
def test_a_display_is_bounded_for_any_value(value, limit):
    shown = display(value, limit)

    assert len(shown) < limit + 60 or shown == repr(value)


@pytest.mark.parametrize(
    ("value", "left_out"),
    [
        ("x" * 50_000_000, "characters left out"),
        (b"x" * 50_000_000, "bytes left out"),
        (bytearray(50_000_000), "bytes left out"),
        (range(3_000_000), "the middle of 3,000,000 items left out"),
        (["x" * 10_000_000] * 5, "left out"),
    ],
    ids=["str", "bytes", "bytearray", "list", "list of long texts"],
)
def test_both_ends_of_a_huge_value_are_shown(value, left_out):
    value = list(value) if type(value) is range else value
    shown = display(value)

    assert left_out in shown
    assert len(shown) < DISPLAY_LIMIT + 200
    assert shown[:4] == repr(value[:8])[:4]
    assert shown[-4:] == repr(value[-8:])[-4:]


def test_the_number_of_characters_left_out_of_a_text_is_true():
    value = "a" * 3_000_000
    shown = display(value)
    left_out = int(re.search(r"about ([\d,]+) characters", shown)[1].replace(",", ""))

    assert left_out == len(value) - DISPLAY_LIMIT


def test_a_cut_list_shows_its_first_and_last_items_and_how_many_there_are():
    value = list(range(100_000))
    shown = display(value, 1_000)
    head, tail = shown.split("\n... [the middle of 100,000 items left out] ...\n")

    assert repr(value).startswith(head)
    assert repr(value).endswith(tail)
    assert len(head) == len(tail) == 500


@given(
    st.lists(nested_numbers, min_size=15)
    | st.tuples(*[nested_numbers] * 15)
    | st.dictionaries(st.integers(), nested_numbers, min_size=15)
)
def test_both_ends_of_a_cut_display_are_those_of_the_repr(value):
    head, _, rest = display(value, 20).partition("\n... [")

    assert repr(value).startswith(head)
    assert repr(value).endswith(rest.partition("] ...\n")[2])


def test_a_huge_dict_shows_its_first_and_last_items():
    shown = display({n: n for n in range(1_000_000)})

    assert shown.startswith("{0: 0, 1: 1, ")
    assert shown.endswith("999998: 999998, 999999: 999999}")
    assert " items left out" in shown


def test_a_huge_set_is_cut():
    shown = display(set(range(1_000_000)), 1_000)
    assert len(shown) < 1_200
    assert " items left out" in shown


def test_a_value_that_contains_itself_is_displayed_as_by_repr():
    value: list = [1]
    value.append(value)
    assert display(value) == "[1, [...]]"


def test_a_value_with_shared_parts_that_unfold_endlessly_is_bounded():
    value: list = []
    for _ in range(100):
        value = [value, value]
    assert len(display(value)) < DISPLAY_LIMIT + 100


def test_deep_nesting_is_displayed():
    value: list = []
    for _ in range(150):
        value = [value]
    assert display(value) == "[" * 151 + "]" * 151


def test_a_repr_of_the_users_is_shown_and_cut():
    class Long:
        def __repr__(self):
            return "<" + "x" * 3_000_000 + ">"

    shown = display(Long())
    assert shown.startswith("<xxx")
    assert shown.endswith("xxx>")
    assert f"{3_000_002 - DISPLAY_LIMIT:,} characters left out" in shown


def test_a_class_whose_metaclass_compares_and_has_no_hash_is_displayed():
    class Meta(type):
        def __eq__(cls, other):
            raise AssertionError

    class Compared(metaclass=Meta):
        def __repr__(self):
            return "shown"

    assert display(Compared()) == "shown"
    assert display([Compared()]) == "[shown]"


def test_a_repr_that_raises_raises():
    class Bad:
        def __repr__(self):
            raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        display([Bad()])


def test_lone_surrogates_from_a_repr_are_escaped():
    class Odd:
        def __repr__(self):
            return "é\ud800"

    assert display(Odd()) == "é\\ud800"


# ── preview ──────────────────────────────────────────────────────────────────────────────────────


class Color(enum.Enum):
    RED = 1


class Flags(enum.IntFlag):
    A = 1


Point = collections.namedtuple("Point", "x y")  # noqa: PYI024 (the untyped form is the claim)


@dataclasses.dataclass
class Record:
    x: int
    y: list


class Slots:
    __slots__ = ("a", "b")


class Names(list):
    pass


def signature(a, b=1, /, c="x", *rest, d, e=None, **others):
    """A function with every kind of parameter."""


def slots() -> Slots:
    made = Slots()
    made.a = 1  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1, "1"),
        (True, "True"),
        (1.5, "1.5"),
        (1j, "1j"),
        (None, "None"),
        (..., "Ellipsis"),
        ("text", "'text'"),
        ("it's", '"it\'s"'),
        (b"ab", "b'ab'"),
        (bytearray(b"ab"), "bytearray(b'ab')"),
        ([], "[]"),
        ([1, "a"], "[1, 'a']"),
        ((), "()"),
        ((1,), "(1,)"),
        (set(), "set()"),
        ({1}, "{1}"),
        (frozenset(), "frozenset()"),
        (frozenset({1}), "frozenset({1})"),
        ({}, "{}"),
        ({"a": [1, {}]}, "{'a': [1, {}]}"),
        ([[[[1]]]], "[[[[...]]]]"),
        (range(3), "range(0, 3)"),
        (10**500, "an int of 1,661 bits"),
        (collections.deque([1]), "deque([1])"),
        (collections.Counter("aab"), "Counter({'a': 2, 'b': 1})"),
        (collections.defaultdict(list, {1: [2]}), "defaultdict({1: [2]})"),
        (collections.OrderedDict(a=1), "OrderedDict({'a': 1})"),
        (Point(1, 2), "Point(x=1, y=2)"),
        (Record(1, [2]), "Record(x=1, y=[2])"),
        (slots(), "Slots(a=1)"),
        (Slots(), "<Slots object>"),
        (object(), "<object object>"),
        (Names([1, 2]), "Names([1, 2])"),
        (Color.RED, "Color.RED"),
        (Flags.A, "Flags.A"),
        (Color, "class Color"),
        (ValueError("no", 1), "ValueError('no', 1)"),
        (sys, "module sys"),
        (len, "built-in len"),
        ([].append, "built-in append"),
        (signature, "def signature(a, b=1, /, c='x', *rest, d, e=None, **others)"),
        (lambda x, *, y: x, "lambda x, *, y"),
        (slots().__init__, "<method-wrapper object>"),
        (Record(1, []).__eq__, "method __eq__ of Record"),
        (datetime.date(2024, 1, 2), "datetime.date(2024, 1, 2)"),
        (datetime.timedelta(1), "datetime.timedelta(days=1)"),
        (decimal.Decimal("1.5"), "Decimal('1.5')"),
        (re.compile("a+"), "re.compile('a+')"),
        (pathlib.PurePosixPath("/a/b"), "PurePosixPath('/a/b')"),
        (types.SimpleNamespace(a=1), "SimpleNamespace(a=1)"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value[:20],
)
def test_a_preview_describes_its_value(value, shown):
    assert preview(value) == shown


@given(plain_values)
def test_a_preview_is_one_short_line(value):
    shown = preview(value)
    assert 0 < len(shown) <= PREVIEW_LIMIT
    assert "\n" not in shown


@pytest.mark.parametrize(
    ("value", "note"),
    [
        ("x" * 10_000_000, "(10,000,000 characters)"),
        ("\n" * 5_000, "(5,000 characters)"),
        (b"\x00" * 5_000, "(5,000 bytes)"),
        (list(range(1_000_000)), "(1,000,000 items)"),
        ({n: n for n in range(10_000)}, "(10,000 items)"),
        (["x" * 100_000] * 3, "..."),
    ],
    ids=["str", "escapes", "bytes", "list", "dict", "long items"],
)
def test_a_preview_of_something_large_says_how_large(value, note):
    shown = preview(value)
    assert len(shown) <= PREVIEW_LIMIT
    assert note in shown


class Trap(type):
    """A metaclass whose hooks all fail the test."""

    def _sprung(cls, *args):
        raise AssertionError("code of the user ran")

    __getattribute__ = __instancecheck__ = __subclasscheck__ = __repr__ = __call__ = _sprung
    __eq__ = __hash__ = _sprung  # type: ignore[assignment]
    __mro__ = __name__ = __module__ = property(_sprung)  # type: ignore[assignment]


def trapped(*bases: type) -> type:
    """Return a class, derived from `bases`, whose hooks all fail the test."""

    def sprung(self, *args, **fields):
        raise AssertionError("code of the user ran")

    hooks = (
        "__getattribute__ __getattr__ __repr__ __str__ __format__ __len__ __iter__ __getitem__"
        " __contains__ __sizeof__ __eq__ __hash__ __bool__ __int__ __index__ __dir__ items keys"
        " values get __reversed__ __reduce_ex__ __float__ __bytes__ bit_length"
    )
    body: dict = dict.fromkeys(hooks.split(), sprung)
    body["__class__"] = body["shape"] = body["dtype"] = property(sprung)
    if not bases:
        body["__dict__"] = property(sprung)
    return type.__new__(Trap, "Hostile", bases, body)


@pytest.mark.parametrize(
    "base",
    [(), (list,), (tuple,), (dict,), (set,), (str,), (int,), (float,), (bytes,), (Exception,)],
)
def test_no_code_of_a_class_runs_for_its_preview_type_or_size(base):
    cls = trapped(*base)
    value = base[0].__new__(cls) if base else object.__new__(cls)

    for held in (value, [value], {1: value}, (value,), cls):
        assert "Hostile" in preview(held)
        assert isinstance(shallow_size(held), int)
    assert type_name(value) == "Hostile"


def test_attributes_are_shown_without_asking_the_object():
    value = object.__new__(type.__new__(Trap, "Open", (), {}))
    object.__setattr__(value, "x", 1)
    assert preview(value) == "Open(x=1)"


def test_a_hostile_namedtuple_look_alike_is_shown_safely():
    class Fake(tuple):
        __slots__ = ()
        _fields = ("a", trapped(str))

    assert preview(Fake((1, 2))) == "Fake(a=1, =2)"


def test_a_class_that_imitates_an_array_is_not_treated_as_one(monkeypatch):
    fake = types.ModuleType("numpy")
    other = type("ndarray", (), {"__module__": "numpy", "shape": property(lambda self: 1 / 0)})
    fake.ndarray = type("ndarray", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numpy", fake)

    assert preview(other()) == "<ndarray object>"


def test_a_class_that_replaces_a_library_s_is_not_invoked(monkeypatch):
    def sprung(self):
        raise AssertionError("code of the user ran")

    fake = types.ModuleType("numpy")
    fake.ndarray = type("ndarray", (), {"shape": property(sprung), "nbytes": property(sprung)})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numpy", fake)

    assert isinstance(preview(fake.ndarray()), str)
    assert isinstance(shallow_size(fake.ndarray()), int)


def test_previews_of_values_that_change_meanwhile_do_not_raise():
    value = {n: n for n in range(50)}
    stop = threading.Event()

    def change() -> None:
        n = 0
        while not stop.is_set():
            value[n := n + 1] = n
            value.pop(n, None)

    thread = threading.Thread(target=change)
    thread.start()
    shown = [preview(value) for _ in range(2_000)]
    stop.set()
    thread.join()

    assert all(shown)


# ── size ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "value",
    [
        1,
        "é" * 100,
        b"x" * 100,
        [1] * 100,
        {1: 2},
        {1},
        (1,),
        1.5,
        None,
        Record(1, []),
        slots(),
        len,
    ],
    ids=lambda value: type(value).__name__,
)
def test_sizes_are_those_of_the_interpreter(value):
    assert shallow_size(value) == sys.getsizeof(value)


def test_a_custom_sizeof_is_not_called():
    class Liar(list):
        def __sizeof__(self):
            return 10**18

    assert sys.getsizeof([1, 2, 3]) <= shallow_size(Liar([1, 2, 3])) < 1_000


# ── libraries, where they are installed ──────────────────────────────────────────────────────────


def test_arrays_are_shown_by_shape_and_type():
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros((1_000, 3))

    assert preview(array) == "ndarray of shape (1000, 3), float64"
    assert shallow_size(array) == shallow_size(array[:]) == 24_000
    assert preview(numpy.int64(3)) == "int64(3)"
    assert preview([array]) == "[ndarray of shape (1000, 3), float64]"


def test_frames_are_shown_by_their_shape():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": range(1_000), "b": 0.5})

    assert preview(frame) == "DataFrame of shape (1000, 2)"
    assert shallow_size(frame) == 16_000
    assert preview(frame["b"]) == "Series of shape (1000,)"
    assert shallow_size(frame["b"]) == 8_000
