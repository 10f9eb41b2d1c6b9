"""Changes of variables by a cell: new, modified, deleted; at bounded cost, without user code."""

from __future__ import annotations

import gc
import random
import sys
import threading
import weakref

import pytest

from repl_sandbox.types import MORE_CHANGES
from repl_sandbox.worker.evaluation import run_cell
from repl_sandbox.worker.variables import MAX_CHANGES, VariableChanges


@pytest.fixture
def changes(namespace):
    return VariableChanges(namespace)


@pytest.fixture
def after(namespace, changes):
    """Return the changes by the last of some cells, as (kind, name)."""

    def collect(*cells: str) -> list[tuple[str, str]]:
        for cell in cells:
            found = changes.since_last()
            ran = run_cell(cell, 1, namespace)
            assert ran.error is None, ran.error.traceback
            found = changes.since_last()
        return [(change.kind, change.name) for change in found]

    return collect


def test_nothing_changes_by_itself(changes):
    assert changes.since_last() == []
    assert changes.since_last() == []


def test_a_change_has_type_size_and_preview(namespace, changes):
    namespace.globals["x"] = [1, 2]
    (new,) = changes.since_last()
    assert (new.kind, new.name, new.type, new.preview) == ("new", "x", "list", "[1, 2]")
    assert new.size == sys.getsizeof([1, 2])

    namespace.globals["x"].append(3)
    (modified,) = changes.since_last()
    assert (modified.kind, modified.name, modified.preview) == ("modified", "x", "[1, 2, 3]")

    del namespace.globals["x"]
    (deleted,) = changes.since_last()
    assert (deleted.kind, deleted.name, deleted.type) == ("deleted", "x", "list")
    assert (deleted.size, deleted.preview) == (modified.size, "[1, 2, 3]")
    assert changes.since_last() == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = 1", [("new", "x")]),
        ("import os", [("new", "os")]),
        ("def f(): pass", [("new", "f")]),
        ("class C: pass", [("new", "C")]),
        ("for i in range(3): pass", [("new", "i")]),
        ("x = None", [("new", "x")]),
        ("_private = 1", [("new", "_private")]),
        ("a = b = 1; del a", [("new", "b")]),
        ("5", []),
        ("_ = 5", []),
        ("__all__ = []", []),
        ("_out = 1", []),
        ("x: int", []),
        ("b = 1; a = 2", [("new", "b"), ("new", "a")]),
    ],
)
def test_new_names_are_found_in_the_order_of_binding(after, source, found):
    assert after(source) == found


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ("x = 1", "x = 2"),
        ("x = 1000", "x += 1; x += 1"),
        ("x = 1", "x = True"),
        ("x = 1", "x = 1.0"),
        ("x = -1", "x = -2"),
        ("x = 2**100", "x += 1"),
        ("x = 'a'", "x = 'b'"),
        ("x = 'a'", "x = b'a'"),
        ("x = 'a' * 10_000", "x = 'b' * 10_000"),
        ("x = None", "x = 0"),
        ("x = [1]", "x = [1]"),
        ("x = [1]", "x[0] = 2"),
        ("x = [1000]", "x[0] += 1; x[0] += 1"),
        ("x = [-1]", "x[0] = -2"),
        ("x = [1]", "x[0] = True"),
        ("x = [1, 2]", "x.reverse()"),
        ("x = []", "x.append(1)"),
        ("x = list(range(10_000))", "x[0] = 'new'"),
        ("x = list(range(10_000))", "x[-1] = 'new'"),
        ("x = list(range(10_000))", "x.append(1)"),
        ("x = list(range(10_000))", "x.reverse()"),
        ("x = [[]]", "x[0].append(1)"),
        ("x = {}", "x['a'] = 1"),
        ("x = {'a': 1}", "x['a'] = 2"),
        ("x = {'a': 1}", "x['b'] = x.pop('a')"),
        ("x = {'a': []}", "x['a'].append(1)"),
        ("x = dict.fromkeys(range(10_000))", "x[9_999] = 1"),
        ("x = set()", "x.add(1)"),
        ("x = {1}", "x.remove(1); x.add(2)"),
        ("x = ([],)", "x[0].append(1)"),
        ("x = bytearray(10)", "x[3] = 1"),
        ("import collections\nx = collections.deque([1])", "x.append(2)"),
        ("import collections\nx = collections.Counter('a')", "x.update('a')"),
        ("import collections\nx = collections.defaultdict(list)", "x[1].append(2)"),
        ("class L(list): pass\nx = L()", "x.append(1)"),
        ("class L(list): pass\nx = L()", "x.note = 1"),
        ("class C: pass\nx = C()", "x.a = 1"),
        ("class C: pass\nx = C()\nx.a = 1", "x.a = 2"),
        ("class C: pass\nx = C()\nx.a = []", "x.a.append(1)"),
        ("class C: pass\nx = C()", "x = C()"),
        ("def x(): pass", "def x(): pass"),
    ],
)
def test_changes_of_a_value_are_found(after, before, change):
    assert after(before, change) == [("modified", "x")]


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ("x = 1000", "x = 1000"),
        ("x = 'text'", "x = 'te' + str('xt')"),
        ("x = float('nan')", "x"),
        ("x = [float('nan'), 1, 'a', None, {}, object()]", "len(x)"),
        ("x = [1]", "x.append(2); x.pop()"),
        ("x = {'a': 1}", "x['a'] = 1"),
        ("class C: pass\nx = C()", "repr(x)"),
        ("import os", "import os"),
        ("x = list(range(10_000))", "sum(x)"),
        ("x = list(range(10_000))", "x[5_001] = 'between the samples: missed, as documented'"),
    ],
)
def test_an_equal_value_is_no_change(after, before, change):
    assert after(before, change) == []


def test_a_deleted_and_rebound_variable_is_modified(after):
    assert after("x = 1", "del x\nx = 2") == [("modified", "x")]


def test_deleted_variables_come_last_in_order(after):
    assert after("b = a = 1", "del a, b\nc = 1") == [
        ("new", "c"),
        ("deleted", "a"),
        ("deleted", "b"),
    ]


def test_injected_names_are_no_variables_until_overwritten(namespace, changes):
    namespace.inject("tool", print)
    assert changes.since_last() == []

    namespace.globals["tool"] = 5
    assert [(c.kind, c.name) for c in changes.since_last()] == [("new", "tool")]

    namespace.globals["tool"] = print
    assert [(c.kind, c.name) for c in changes.since_last()] == [("deleted", "tool")]


def test_variables_from_the_start_are_no_change(namespace):
    namespace.globals["context"] = "text"
    assert VariableChanges(namespace).since_last() == []


def test_tracking_a_variable_keeps_no_value_alive(namespace, changes):
    class Value:
        pass

    value = Value()
    value.inner = Value()  # type: ignore[attr-defined]
    alive = [weakref.ref(value), weakref.ref(value.inner)]  # type: ignore[attr-defined]
    namespace.globals["x"] = value
    namespace.globals["items"] = [value, {value: value}, (value,)]
    changes.since_last()

    del value
    namespace.globals.clear()
    gc.collect()

    assert [ref() for ref in alive] == [None, None]


def test_no_code_of_the_user_runs(after):
    """Every hook of the class and of its metaclass records that it ran."""
    assert (
        after(
            "calls = []\n"
            "def hook(*args): calls.append(1); return 1\n"
            "names = '''__eq__ __hash__ __len__ __iter__ __getitem__ __repr__ __str__ __bool__\n"
            "__getattribute__ __sizeof__ __reduce__ __contains__ __reversed__ __instancecheck__\n"
            "__subclasscheck__ items keys values'''.split()\n"
            "hooks = dict.fromkeys(names, hook)\n"
            "Meta = type('Meta', (type,), {**hooks, '__mro__': property(hook)})\n"
            "body = {**hooks, '__class__': property(hook)}\n"
            "bases = object, list, dict, int, str\n"
            "made = [type.__new__(Meta, 'H', (base,), dict(body)) for base in bases]\n"
            "objects = [base.__new__(cls) for base, cls in zip(bases, made)]\n"
            "o, l, d, i, s = objects\n"
            "calls.clear()",
            "pass",
            "pass",
        )
        == []
    )


def test_the_number_of_changes_is_bounded_and_the_rest_is_counted(namespace, changes):
    namespace.globals.update({f"v{n}": n for n in range(5_000)})
    found = changes.since_last()

    assert len(found) == MAX_CHANGES + 1
    assert [c.name for c in found[:3]] == ["v0", "v1", "v2"]
    assert found[-1].name == MORE_CHANGES
    assert found[-1].preview == f"{5_000 - MAX_CHANGES:,} more changes"
    assert changes.since_last() == []

    namespace.globals["v4999"] = "changed"
    assert [(c.kind, c.name) for c in changes.since_last()] == [("modified", "v4999")]

    for n in range(5_000):
        del namespace.globals[f"v{n}"]
    assert len(changes.since_last()) == MAX_CHANGES + 1


def test_growing_beyond_many_variables_modifies_none(namespace, changes):
    namespace.globals["x"] = list(range(50))
    changes.since_last()
    namespace.globals.update({f"v{n}": list(range(50)) for n in range(1_000)})
    assert "x" not in [c.name for c in changes.since_last()]
    assert changes.since_last() == []

    namespace.globals["x"][25] = "new"
    assert [c.name for c in changes.since_last()] == ["x"]


def test_variables_that_threads_change_meanwhile_do_no_harm(namespace, changes):
    space, stop = namespace.globals, threading.Event()
    space["d"] = {n: n for n in range(50)}

    def change() -> None:
        n = 100
        while not stop.is_set():
            n += 1
            space["d"][n] = space[f"v{n % 50}"] = n
            space["d"].pop(n)
            space.pop(f"v{n % 50}")

    thread = threading.Thread(target=change)
    thread.start()
    for _ in range(500):
        changes.since_last()
    stop.set()
    thread.join()

    changes.since_last()
    assert changes.since_last() == []


def test_all_variables_are_listed(namespace, changes):
    namespace.inject("tool", print)
    namespace.globals.update(x=1, name="text", sys=sys, _hidden=2)

    assert [(v.name, v.type, v.preview) for v in changes.variables()] == [
        ("x", "int", "1"),
        ("name", "str", "'text'"),
        ("sys", "module", "module sys"),
        ("_hidden", "int", "2"),
    ]


# ── libraries, where they are installed ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "change",
    [
        "x += 1",
        "x[0, 0] = 1",
        "x[-1, -1] = 7",
        "x.resize((20, 10), refcheck=False)",
        "x = x.copy()",
        "x.sort()",
    ],
)
def test_changes_of_arrays_are_found(after, change):
    pytest.importorskip("numpy")
    before = "import numpy\nx = numpy.arange(200, 0, -1).reshape(10, 20)"
    assert after(before, change) == [("modified", "x")]


def test_arrays_that_stay_the_same_are_no_change(after):
    pytest.importorskip("numpy")
    assert after("import numpy\nx = numpy.zeros((1000, 1000))[::2, ::3]", "x.sum() and None") == []


@pytest.mark.parametrize("change", ["x['c'] = 1", "x.loc[0, 'a'] = 9", "x.insert(0, 'c', 1)"])
def test_changes_of_frames_are_found(after, change):
    pytest.importorskip("pandas")
    before = "import pandas\nx = pandas.DataFrame({'a': [1, 2], 'b': ['x', 'y']})"
    assert after(before, change) == [("modified", "x")]
    assert after("x.sum() is None") == []


def test_every_transition_between_two_namespaces_is_reported(namespace, changes):
    """Compared with a plain comparison of all bindings, whatever was there before and after."""
    values = [1, 2, 1.5, "a", "b", None, True, 10**30, [1], [2], "t" * 100, sys]
    numbers = random.Random(1)
    names = ["x", "y", "z", "_", "__doc__", "FINAL", "_out"]
    ours = {"FINAL": object(), "_out": object()}
    for name, value in ours.items():
        namespace.inject(name, value)
    changes.since_last()
    for _ in range(5_000):
        before = dict(namespace.variables())
        for name in numbers.sample(names, numbers.randrange(3)):
            if numbers.random() < 0.3:
                namespace.globals.pop(name, None)
            elif name in ours and numbers.random() < 0.5:
                namespace.globals[name] = ours[name]
            else:
                namespace.globals[name] = numbers.choice(values)
        after = dict(namespace.variables())
        expected = {(name, "deleted") for name in before.keys() - after.keys()}
        expected |= {(name, "new") for name in after.keys() - before.keys()}
        expected |= {
            (name, "modified")
            for name in before.keys() & after.keys()
            if type(before[name]) is not type(after[name]) or before[name] != after[name]
        }
        assert {(each.name, each.kind) for each in changes.since_last()} == expected


def test_tracking_keeps_no_value_alive(namespace, changes):
    class Thing:
        pass

    namespace.globals.update(x=Thing(), _=Thing(), __doc__=Thing())
    things = [weakref.ref(namespace.globals[name]) for name in ("x", "_", "__doc__")]
    changes.since_last()
    for name in ("x", "_", "__doc__"):
        del namespace.globals[name]
    gc.collect()
    assert [thing() for thing in things] == [None] * 3
