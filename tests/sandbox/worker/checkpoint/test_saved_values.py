"""Checkpoints: the values that come back in another session."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from repl_sandbox import (
    AsyncSandbox,
    CheckpointError,
    read_manifest,
)
from tests.sandbox.shown_value import value
from tests.sandbox.worker.checkpoint.conftest import LIMITS, saved

# ── what comes back ───────────────────────────────────────────────────────────────────────────


def test_values_are_restored_with_shared_identity(sandbox):
    data = saved(sandbox, "a = [1, 2]\nb = a\nc = {'a': a}\nc['c'] = c\n_own = 3\ntext = 'größe'")
    with sandbox.restore(data) as session:
        assert value(session, "a, _own, text") == "([1, 2], 3, 'größe')"
        assert value(session, "b is a and c['a'] is a and c['c'] is c") == "True"
        assert session.missing == ()
        assert [row.name for row in session.variables()] == ["a", "b", "c", "_own", "text"]


def test_functions_see_later_changes_of_globals(sandbox):
    data = saved(
        sandbox, "k = 2\ndef times(x: int = 5, *, more=0) -> int:\n    return x * k + more"
    )
    with sandbox.restore(data) as session:
        assert value(session, "times(), times(1, more=1)") == "(10, 3)"
        assert value(session, "k = 100\ntimes()") == "500"
        assert value(session, "times.__globals__ is globals(), times.__annotations__") == (
            "(True, {'x': <class 'int'>, 'return': <class 'int'>})"
        )


def test_closures_share_their_variables_and_may_be_recursive(sandbox):
    code = """
def counter():
    n = 0
    def more():
        nonlocal n
        n += 1
        return n
    def now():
        return n
    return more, now
more, now = counter()
more()
def outer():
    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)
    return factorial
factorial = outer()
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
import functools
cached = functools.lru_cache(fib)
unset = (lambda: later) if False else None
"""
    with sandbox.restore(saved(sandbox, code)) as session:
        assert value(session, "more(), now(), factorial(5), fib(10), cached(10)") == (
            "(2, 2, 120, 55, 55)"
        )


def test_a_function_may_use_what_cannot_be_saved(sandbox):
    data = saved(sandbox, "import threading\nlock = threading.Lock()\ndef free(): return lock")
    with sandbox.restore(data) as session:
        assert [row.name for row in session.missing] == ["lock"]
        assert value(session, "lock = 7\nfree()") == "7"


def test_classes_are_restored_with_their_instances(sandbox):
    code = """
import dataclasses, enum, pickle, typing, collections
class Base:
    kind = "base"
    def __init__(self): self.x = 1
    def get(self): return self.x + offset
class Derived(Base):
    def __init__(self):
        super().__init__()
        self.me = self
    @property
    def double(self): return 2 * self.get()
offset = 1
thing = Derived()
@dataclasses.dataclass
class Point:
    x: int = 0
point = Point(3)
class Colour(enum.Enum):
    RED = 1
red = Colour.RED
Pair = collections.namedtuple("Pair", "a b")
pair = Pair(1, 2)
UserId = typing.NewType("UserId", int)
"""
    with sandbox.restore(saved(sandbox, code)) as session:
        assert value(session, "thing.double, thing.me is thing, type(thing) is Derived") == (
            "(4, True, True)"
        )
        assert value(session, "offset = 10\nthing.get()") == "11"
        assert value(session, "point == Point(3), red is Colour.RED, pair == Pair(1, 2)") == (
            "(True, True, True)"
        )
        again = "pickle.loads(pickle.dumps([thing, point, red]))"
        assert value(session, f"[type(each).__name__ for each in {again}]") == (
            "['Derived', 'Point', 'Colour']"
        )
        assert value(session, "UserId(3)") == "3"


def test_exceptions_are_restored_whatever_arguments_their_init_takes(sandbox):
    """Pickle would call `__init__` with the base class's arguments, or fail."""
    code = """
calls = []
class Refused(ValueError):
    def __init__(self, code, reason, *, retry=False):
        super().__init__(f"{code}: {reason}")
        self.code, self.retry = code, retry
        calls.append(code)
class Worded(Exception):
    def __init__(self, message): super().__init__(f"worded: {message}")
class Exact(Exception):
    __slots__ = ("code",)
    def __init__(self, code): super().__init__(code); self.code = code
class Torn(UnicodeDecodeError):
    def __init__(self, *arguments): super().__init__(*arguments)
found = {}
try: raise Refused(404, "none", retry=True)
except Refused as error: found["error"] = error
found["error"].add_note("a note")
worded, exact = Worded("x"), Exact(3)
torn = Torn("ascii", b"\\xff", 0, 1, "no")
later = [1]
found["later"] = later
"""
    with sandbox.restore(saved(sandbox, code)) as session:
        assert session.missing == ()
        assert value(session, "error = found['error']\ntype(error) is Refused, str(error)") == (
            "(True, '404: none')"
        )
        assert value(session, "error.code, error.retry, error.__notes__, calls") == (
            "(404, True, ['a note'], [404])"
        )
        assert value(session, "str(worded), exact.code, torn.start, found['later'] is later") == (
            "('worded: x', 3, 0, True)"
        )


def test_partials_and_wrapped_functions_are_restored(sandbox):
    code = """
import functools, typing
class Base: pass
class Derived(Base): pass
@functools.singledispatch
def kind(x): "of what"; return "any"
@kind.register
def _(x: int): return unit
@kind.register(Base)
def _(x): return "base"
kind.calls = 3
unit = "int"
class Circle:
    def __init__(self, r): self.r = r
    @functools.cached_property
    def area(self): "its area"; return 3 * self.r ** 2
    @functools.singledispatchmethod
    def times(self, n): return "what?"
    @times.register
    def _(self, n: int): return Circle(self.r * n)
circle, seen = Circle(2), Circle(3)
seen.area
P, T = typing.ParamSpec("P"), typing.TypeVar("T")
Ts = typing.TypeVarTuple("Ts")
class Job(typing.Generic[P, T]): pass
"""
    with sandbox.restore(saved(sandbox, code)) as session:
        assert session.missing == ()
        assert value(session, "kind('x'), kind(1), kind(Derived()), kind.calls, kind.__doc__") == (
            "('any', 'int', 'base', 3, 'of what')"
        )
        assert value(session, "unit = 'changed'\nkind(1)") == "'changed'"
        assert value(
            session, "circle.area, vars(seen), circle.times(5).area, circle.times('')"
        ) == ("(12, {'r': 3, 'area': 27}, 300, 'what?')")
        assert value(session, "Job.__parameters__ == (P, T), P, P.__module__, Ts") == (
            "(True, ~P, '__main__', Ts)"
        )
        again = session.checkpoint()
    assert read_manifest(again).missing == ()


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 12),
    reason="calls of C code have a limit of their own there, which nothing raises",
)
def test_linked_nodes_are_saved_beyond_the_recursion_limit(sandbox):
    code = """
import sys
class Node:
    def __init__(self, next): self.next = next
head = None
for _ in range(1000): head = Node(head)
def length():
    node, n = head, 0
    while node: node, n = node.next, n + 1
    return n
"""
    with sandbox.session() as session:
        session.run(code)
        data = session.checkpoint()
        assert value(session, "sys.getrecursionlimit()") == "1000"
    with sandbox.restore(data) as session:
        assert value(session, "length()") == "1000"


def test_values_that_share_an_object_with_a_failed_one_are_reported(sandbox):
    code = """
class Fails:
    def __setstate__(self, state): raise LookupError("no")
failing = Fails()
failing.x = 1
first = {"failing": failing}
shared = first["shared"] = [1]
del failing
"""
    with sandbox.restore(saved(sandbox, code)) as session:
        reasons = {row.name: row.reason for row in session.missing}
        assert reasons["first"] == "LookupError: no"
        assert "shares an object with a variable before it" in reasons["shared"]


def test_arrays_and_data_frames_are_restored(sandbox):
    pytest.importorskip("pandas")
    code = "import numpy as np, pandas as pd\na = np.arange(9).reshape(3, 3)\nv = a\n"
    code += "frame = pd.DataFrame({'a': [1, 2]})"
    data = saved(sandbox, code)
    assert {"cloudpickle", "numpy", "pandas"} <= read_manifest(data).packages.keys()
    with sandbox.restore(data) as session:
        assert value(session, "int(a.sum()), v is a, int(frame.a.sum())") == "(36, True, 3)"


def test_process_bound_values_are_listed_with_the_reason(sandbox):
    code = """
import multiprocessing, socket, threading
def numbers(): yield 1
async def later(): pass
generator = numbers()
coroutine = later()
written = open("f", "w")
read = open("f")
raw = open("f", "rb")
one, two = socket.socketpair()
ends = {"deep": multiprocessing.Pipe()}
lock = threading.Lock()
thread = threading.Thread()
inside = {"deep": [lock]}
class Stubborn:
    def __reduce__(self): raise LookupError("no, thank you")
stubborn = Stubborn()
class Leaver:
    def __reduce__(self): raise SystemExit
leaver = Leaver()
kept = inside["deep"]
good = 1
"""
    data = saved(sandbox, code)
    missing = {row.name: row for row in read_manifest(data).missing}
    assert list(missing) == [
        "generator", "coroutine", "written", "read", "raw", "one", "two", "ends", "lock",
        "thread", "inside", "stubborn", "leaver", "kept",
    ]  # fmt: skip
    assert missing["generator"].reason == "a generator is a running frame"
    assert missing["written"].type == "TextIOWrapper"
    assert "in this process only" in missing["ends"].reason
    assert "lock" in missing["inside"].reason
    assert missing["stubborn"].reason == "LookupError: no, thank you"
    with sandbox.restore(data) as session:
        assert [row.name for row in session.missing] == list(missing)
        assert value(session, "good, list(numbers())") == "(1, [1])"


def test_many_failed_values_are_listed_and_the_rest_is_complete(sandbox):
    code = """
shared = [[str(n)] for n in range(1000)]
for n in range(30):
    globals()[f"bad{n}"] = [shared, (i for i in [])]
    globals()[f"good{n}"] = [shared, shared[n]]
"""
    with sandbox.restore(saved(sandbox, code)) as session:
        assert [row.name for row in session.missing] == [f"bad{n}" for n in range(30)]
        same = "all(globals()[f'good{n}'][1] is shared[n] for n in range(30))"
        assert value(session, f"{same}, shared[7]") == "(True, ['7'])"


def test_unreadable_state_affects_no_other_value(sandbox):
    code = """
import os, random
os.mkdir("gone")
os.chdir("gone")
os.rmdir(os.getcwd())
random.getstate = None
x = 1
"""
    with sandbox.restore(saved(sandbox, code)) as session:
        assert session.get("x") == 1
        assert [row.name for row in session.missing] == ["(sys.path)", "(random)"]


def test_a_failed_load_is_undone_completely(sandbox):
    """Objects shared with other variables are written once and whole, with those."""
    code = "shared = None\nbad = [x := {'big': [1, 2]}, (n for n in x)]\nshared = [x]\nother = x"
    with sandbox.restore(saved(sandbox, code)) as session:
        assert [row.name for row in session.missing] == ["bad"]
        assert value(session, "shared[0] is other is x, x") == "(True, {'big': [1, 2]})"


def test_values_that_fail_to_load_are_listed_and_the_rest_is_loaded(sandbox):
    code = """
class Two(int):
    def __new__(cls, a, b): return super().__new__(cls, a)
first = Two(1, 2)
second = [first]
third = "here"
"""
    with sandbox.restore(saved(sandbox, code)) as session:
        lost = {row.name: row.reason for row in session.missing}
        assert list(lost) == ["first", "second"]
        assert lost["first"].startswith("TypeError")
        assert value(session, "third") == "'here'"


def test_a_value_may_need_what_was_bound_after_it(sandbox):
    code = """
late = None
class Key:
    def __init__(self, n): self.n = n
    def __hash__(self): return number(self.n)
    def __setstate__(self, state): self.n = number(state["n"])
table = None
def number(n): return n
table = {Key(1): "one"}
"""
    with sandbox.restore(saved(sandbox, code)) as session:
        assert session.missing == ()
        assert value(session, "list(table.values())") == "['one']"


def test_random_numbers_go_on_where_they_were(sandbox):
    code = "import random\nfirst = random.random()"
    with sandbox.session(seed=5) as session:
        session.run(code)
        data = session.checkpoint()
        after = value(session, "random.random()")
    with sandbox.restore(data) as session:
        assert value(session, "random.random()") == after


def test_the_last_value_sources_and_cell_numbers_are_restored(sandbox):
    data = saved(sandbox, "def fail():\n    raise KeyError('a note')", "6 * 7")
    assert read_manifest(data).cell == 2
    with sandbox.restore(data) as session:
        assert value(session, "_") == "42"
        error = session.run("fail()").error
        assert error is not None
        assert "<cell 4>" in error.traceback
        assert "raise KeyError('a note')" in error.traceback


def test_future_statements_are_restored(sandbox):
    data = saved(sandbox, "from __future__ import annotations")
    with sandbox.restore(data) as session:
        assert value(session, "def f(x: Unknown): pass\nf.__annotations__") == "{'x': 'Unknown'}"


def test_restored_sessions_use_the_new_host_functions(sandbox):
    code = "ask = shout\nnames = {'f': shout, 'g': globals()}\ndef use(x): return shout(x)"
    data = saved(sandbox, code, host={"shout": str.upper})
    assert [row.name for row in read_manifest(data).variables] == ["ask", "names", "use"]
    with sandbox.restore(data, host={"shout": str.title}) as session:
        assert value(session, "ask('a b'), names['f'] is shout, use('b c')") == (
            "('A B', True, 'B C')"
        )
        assert value(session, "names['g'] is globals()") == "True"
    with sandbox.restore(data) as session:
        assert [row.name for row in session.missing] == ["ask", "names"]
        assert "offers no 'shout'" in session.missing[0].reason


def test_the_draft_is_restored_and_not_sent_twice(sandbox):
    taken: list[Any] = []
    with sandbox.session(answers="strict", on_answer=taken.append) as session:
        session.run("answer['content'] = 'draft'\nmine = answer")
        data = session.checkpoint()
        session.run("answer['ready'] = True")
        ready = session.checkpoint()
    assert [answer.text for answer in taken] == ["draft"]
    with sandbox.restore(data, answers="strict", on_answer=taken.append) as session:
        assert value(session, "answer, mine is answer") == (
            "({'content': 'draft', 'ready': False}, True)"
        )
    with sandbox.restore(ready, answers="strict", on_answer=taken.append) as session:
        session.run("1")
        assert len(taken) == 1
        session.run("answer['content'] = 'better'")
    assert [answer.text for answer in taken] == ["draft", "better"]


def test_modules_of_the_workspace_are_found_where_their_files_are_given(sandbox):
    files = {"mine.py": "def two(): return 2"}
    with sandbox.session() as session:
        session.files.put("mine.py", files["mine.py"])
        assert session.run("import sys\nsys.path.insert(0, '.')\nimport mine as h").ok
        data = session.checkpoint()
    with sandbox.restore(data, files=files) as session:
        assert value(session, "h.two()") == "2"
    with sandbox.restore(data) as session:
        assert [row.name for row in session.missing] == ["h"]


def test_a_checkpoint_is_no_cell_and_changes_nothing(sandbox):
    with sandbox.session() as session:
        session.run("x = [1]")
        data = session.checkpoint()
        outcome = session.run("y = 2")
        assert [change.name for change in outcome.changes] == ["y"]
        error = session.run("1 / 0").error
        assert error is not None and "<cell 3>" in error.traceback
        assert value(session, "x") == "[1]"
    with sandbox.restore(data) as session:
        assert session.run("z = 1").changes[0].name == "z"
        with sandbox.restore(session.checkpoint()) as third:
            assert value(third, "x, z") == "([1], 1)"


def test_output_of_pickling_belongs_to_no_cell(sandbox):
    code = (
        "class Loud:\n    def __reduce__(self):\n        print('saved')\n        return int, ()\n"
    )
    with sandbox.session() as session:
        session.run(code + "loud = Loud()")
        session.checkpoint()
        assert session.run("print('mine')").stdout == "mine\n"
        assert value(session, "len(_out[-2])") == "0"


async def test_asynchronous_saving_and_loading(sandbox):
    async with AsyncSandbox(isolation="jailed", limits=LIMITS) as other:
        async with other.session() as session:
            await session.run("x = [1]\ngenerator = (n for n in x)")
            data = await session.checkpoint()
        async with other.restore(data) as session:
            assert await session.get("x") == [1]
            assert [row.name for row in session.missing] == ["generator"]
        with pytest.raises(CheckpointError, match="damaged"):
            await other.restore(data[:-1])
    with sandbox.restore(data) as session:
        assert session.get("x") == [1]
