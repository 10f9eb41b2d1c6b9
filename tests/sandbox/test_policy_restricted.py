"""Policy("restricted"): ordinary programs run, and what is refused is said with its place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from repl_sandbox import Finished, Policy, Raised, Sandbox, Session, TimedOut
from tests.sandbox.conftest import PATIENT


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(policy=Policy("restricted"), limits=PATIENT) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    with sandbox.session() as session:
        yield session


# What a cell of a model looks like, and the value of its last expression.
PROGRAMS: dict[str, tuple[str, str]] = {
    "word count": (
        """
from collections import Counter
text = "the cat and the hat and the bat"
counts = Counter(text.split())
counts.most_common(2)
""",
        "[('the', 3), ('and', 2)]",
    ),
    "counting into a dict": (
        """
counts = {}
for word in "a b a c a".split():
    if word not in counts:
        counts[word] = 0
    counts[word] += 1
sorted(counts.items(), key=lambda item: (-item[1], item[0]))
""",
        "[('a', 3), ('b', 1), ('c', 1)]",
    ),
    "grouping": (
        """
from collections import defaultdict
groups = defaultdict(list)
for number in range(7):
    groups[number % 3].append(number)
dict(groups)
""",
        "{0: [0, 3, 6], 1: [1, 4], 2: [2, 5]}",
    ),
    "regular expressions": (
        r"""
import re
log = "2024-01-02 ERROR disk\n2024-01-03 INFO ok\n2024-01-04 ERROR net"
pattern = re.compile(r"^(?P<day>\S+) ERROR (?P<what>\w+)$", re.MULTILINE)
[(m.group("day"), m["what"]) for m in pattern.finditer(log)]
""",
        "[('2024-01-02', 'disk'), ('2024-01-04', 'net')]",
    ),
    "substitution by a function": (
        "import re\nre.sub(r'\\d+', lambda m: str(int(m.group()) * 2), 'a1 b22')",
        "'a2 b44'",
    ),
    "json": (
        """
import json
data = json.loads('{"items": [{"n": 1}, {"n": 2}], "ok": true}')
total = sum(item["n"] for item in data["items"])
json.dumps({"total": total, "ok": data["ok"]}, sort_keys=True)
""",
        '\'{"ok": true, "total": 3}\'',
    ),
    "an error of json": (
        """
import json
try:
    json.loads("{")
except json.JSONDecodeError as error:
    found = (type(error).__name__, error.lineno, error.colno)
found
""",
        "('JSONDecodeError', 1, 2)",
    ),
    "dates": (
        """
from datetime import datetime, timedelta
start = datetime.strptime("2024-02-27", "%Y-%m-%d")
[(start + timedelta(days=n)).strftime("%d.%m.") for n in range(3)]
""",
        "['27.02.', '28.02.', '29.02.']",
    ),
    "statistics": (
        "import statistics\nstatistics.mean([1, 2, 3, 4]), statistics.median([5, 1, 3])",
        "(2.5, 3)",
    ),
    "primes": (
        """
def primes(limit):
    sieve = [True] * (limit + 1)
    sieve[0] = sieve[1] = False
    for n in range(2, int(limit ** 0.5) + 1):
        if sieve[n]:
            for multiple in range(n * n, limit + 1, n):
                sieve[multiple] = False
    return [n for n, prime in enumerate(sieve) if prime]
primes(30)
""",
        "[2, 3, 5, 7, 11, 13, 17, 19, 23, 29]",
    ),
    "memory of a recursion": (
        """
from functools import lru_cache
@lru_cache(maxsize=None)
def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)
fib(80)
""",
        "23416728348467685",
    ),
    "shortest path": (
        """
import heapq
graph = {"a": {"b": 1, "c": 4}, "b": {"c": 2, "d": 5}, "c": {"d": 1}, "d": {}}
best = {"a": 0}
queue = [(0, "a")]
while queue:
    cost, node = heapq.heappop(queue)
    if cost > best.get(node, cost):
        continue
    for neighbour, step in graph[node].items():
        if cost + step < best.get(neighbour, float("inf")):
            best[neighbour] = cost + step
            heapq.heappush(queue, (cost + step, neighbour))
best
""",
        "{'a': 0, 'b': 1, 'c': 3, 'd': 4}",
    ),
    "a class": (
        """
class Account:
    interest: float = 0.5
    opened = 0

    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance: float = balance
        Account.opened += 1

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError(f"{amount} is not an amount")
        self.balance += amount
        return self

    @property
    def rich(self):
        return self.balance > 100

    @staticmethod
    def currency():
        return "EUR"

    @classmethod
    def empty(cls, owner):
        return cls(owner)

    def __repr__(self):
        return f"{self.owner}: {self.balance} {self.currency()}"

a = Account("ann").deposit(150)
a, a.rich, Account.empty("bob"), Account.opened
""",
        "(ann: 150 EUR, True, bob: 0 EUR, 2)",
    ),
    "inheritance": (
        """
class Shape:
    def __init__(self, name):
        self.name = name
    def area(self):
        return 0
    def describe(self):
        return f"{self.name} {self.area():.1f}"
class Square(Shape):
    def __init__(self, side):
        super().__init__("square")
        self.side = side
    def area(self):
        return self.side ** 2
Square(1.5).describe()
""",
        "'square 2.2'",
    ),
    "operators of a class": (
        """
class V:
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __add__(self, other):
        return V(self.x + other.x, self.y + other.y)
    def __eq__(self, other):
        return (self.x, self.y) == (other.x, other.y)
    def __hash__(self):
        return hash((self.x, self.y))
    def __len__(self):
        return 2
    def __iter__(self):
        yield self.x
        yield self.y
    def __getitem__(self, index):
        return (self.x, self.y)[index]
v = V(1, 2)
v += V(3, 4)
list(v), len(v), v[1], v == V(4, 6), len({v, V(4, 6)})
""",
        "([4, 6], 2, 6, True, 1)",
    ),
    "an exception of its own": (
        """
class Missing(KeyError):
    pass
def look(table, key):
    try:
        return table[key]
    except KeyError as error:
        raise Missing(key) from error
try:
    look({}, "x")
except Missing as error:
    found = error.args
else:
    found = None
finally:
    done = True
found, done
""",
        "(('x',), True)",
    ),
    "a context manager": (
        """
events = []
class Log:
    def __enter__(self):
        events.append("in")
        return self, 1
    def __exit__(self, kind, error, traceback):
        events.append(kind.__name__ if kind else "out")
        return True
with Log() as (log, number):
    events.append(number)
    1 / 0
events
""",
        "['in', 1, 'ZeroDivisionError']",
    ),
    "generators": (
        """
def chunks(items, size):
    for start in range(0, len(items), size):
        yield items[start:start + size]
def flat(parts):
    for part in parts:
        yield from part
list(chunks("abcdefg", 3)), sum(flat([[1, 2], [3]])), list(n * n for n in range(4))
""",
        "(['abc', 'def', 'g'], 6, [0, 1, 4, 9])",
    ),
    "comprehensions and unpacking": (
        """
pairs = {"a": (1, (2, 3)), "b": (4, (5, 6))}
table = {key: x + y + z for key, (x, (y, z)) in pairs.items()}
first, *rest = sorted(table.values())
(p, q), r = (1, 2), 3
table, first, rest, p + q + r, {n % 2 for n in range(5)}
""",
        "({'a': 6, 'b': 15}, 6, [15], 6, {0, 1})",
    ),
    "texts": (
        """
name, value = "x", 3.14159
"{:>4}|{n!r}|{0}".format(1, n=name) if False else [
    f"{name:>3}={value:.2f}", "{} and {}".format(1, 2), "{0[1]:03d} {k}".format([1, 7], k="v"),
    "{a}".format_map({"a": 1}), "%s-%d" % (name, 2), name.join(["1", "2"]), "a,b".split(","),
]
""",
        "['  x=3.14', '1 and 2', '007 v', '1', 'x-2', '1x2', ['a', 'b']]",
    ),
    "closures": (
        """
def counter():
    count = 0
    def step(by=1):
        nonlocal count
        count += by
        return count
    return step
step = counter()
step(), step(), step(by=5)
""",
        "(1, 2, 7)",
    ),
    "decorators": (
        """
from functools import wraps
def shout(function):
    @wraps(function)
    def call(*args, **keywords):
        return function(*args, **keywords).upper()
    return call
@shout
def greet(name, *, mark="!"):
    return "hello " + name + mark
greet("ann", mark="?"), greet.__name__
""",
        "('HELLO ANN?', 'greet')",
    ),
    "functions of functions": (
        """
from functools import partial, reduce
import operator
add3 = partial(operator.add, 3)
reduce(operator.mul, [1, 2, 3, 4]), list(map(add3, [1, 2])), list(filter(None, [0, 1])), \
    max("a bb ccc".split(), key=len), sorted([(2, "b"), (1, "c")], key=operator.itemgetter(1))
""",
        "(24, [4, 5], [1], 'ccc', [(2, 'b'), (1, 'c')])",
    ),
    "iterators": (
        """
from itertools import accumulate, chain, groupby, islice, count, product
rows = [("a", 1), ("a", 2), ("b", 3)]
grouped = {key: [n for _, n in part] for key, part in groupby(rows, key=lambda row: row[0])}
grouped, list(accumulate([1, 2, 3])), list(islice(count(5), 2)), len(list(product("ab", repeat=3)))
""",
        "({'a': [1, 2], 'b': [3]}, [1, 3, 6], [5, 6], 8)",
    ),
    "exact numbers": (
        """
from decimal import Decimal, getcontext
from fractions import Fraction
getcontext().prec = 6
Decimal(1) / Decimal(7), Fraction(1, 3) + Fraction(1, 6), divmod(17, 5), round(2.675, 2)
""",
        "(Decimal('0.142857'), Fraction(1, 2), (3, 2), 2.67)",
    ),
    "mathematics": (
        """
import math
math.sqrt(16), math.factorial(5), math.gcd(12, 18), math.isclose(math.sin(math.pi), 0, abs_tol=1e-9)
""",
        "(4.0, 120, 6, True)",
    ),
    "matrices": (
        """
def multiply(a, b):
    return [[sum(x * y for x, y in zip(row, column)) for column in zip(*b)] for row in a]
matrix = [[1, 2], [3, 4]]
matrix[0][1] += 3
multiply(matrix, [[1, 0], [0, 1]]), [list(row) for row in zip(*matrix)]
""",
        "([[1, 5], [3, 4]], [[1, 3], [5, 4]])",
    ),
    "changing lists and dicts": (
        """
items = [5, 3, 1]
items.append(2); items.sort(); items[1:3] = [9]; del items[0]
table = {"a": 1, "b": 2}
del table["a"]
table.update(c=3)
table |= {"d": 4}
items, table, items[::-1], items[-1:]
""",
        "([9, 5], {'b': 2, 'c': 3, 'd': 4}, [5, 9], [5])",
    ),
    "a table of text": (
        """
rows = "name,age\\nann,31\\nbob,27"
header, *lines = [line.split(",") for line in rows.splitlines()]
people = [dict(zip(header, line)) for line in lines]
oldest = max(people, key=lambda person: int(person["age"]))
oldest["name"], [p["age"] for p in people if p.get("name", "").startswith("b")]
""",
        "('ann', ['27'])",
    ),
    "named tuples and search": (
        """
from collections import namedtuple, deque, OrderedDict
import bisect
Point = namedtuple("Point", "x y")
line = [Point(1, 2), Point(3, 4)]
queue = deque([1, 2, 3], maxlen=3)
queue.append(4)
queue[0] = 0
[p.x for p in line], list(queue), bisect.bisect([1, 3, 5], 4), list(OrderedDict(a=1))
""",
        "([1, 3], [0, 3, 4], 2, ['a'])",
    ),
    "random with a seed": (
        "import random\nrandom.seed(7)\na = random.random()\nrandom.seed(7)\n"
        "a == random.random(), random.choice([1]), sorted(random.sample([1, 2], 2))",
        "(True, 1, [1, 2])",
    ),
    "kinds of values": (
        """
from collections.abc import Mapping
[isinstance(1, int), isinstance({}, Mapping), type(1) is int, type("") == str, callable(len),
 hasattr("", "upper"), hasattr("", "uper"), getattr("a", "nothing", None), issubclass(bool, int)]
""",
        "[True, True, True, True, True, True, False, None, True]",
    ),
    "names of classes and annotations": (
        """
from typing import Dict, List, Optional
def total(table: Dict[str, List[int]], key: Optional[str] = None) -> int:
    values: List[int] = table.get(key, []) if key else []
    return sum(values)
error = ValueError("x")
type = type(error)
total({"a": [1, 2]}, "a"), error.__class__.__name__, type.__name__, total.__name__
""",
        "(3, 'ValueError', 'ValueError', 'total')",
    ),
    "attributes by name": (
        """
class Box: pass
box = Box()
for name, value in [("a", 1), ("b", 2)]:
    setattr(box, name, value)
delattr(box, "a")
del box.b
hasattr(box, "a"), getattr(box, "b", "gone")
""",
        "(False, 'gone')",
    ),
    "walrus, conditions, loops with else": (
        """
values = [3, 8, 12]
if (n := len(values)) > 2 and not all(v > 5 for v in values):
    for v in values:
        if v > 20:
            break
    else:
        result = "none" if n else "?"
result, [y for v in values if (y := v // 2) > 3]
""",
        "('none', [4, 6])",
    ),
    "bytes and bits": (
        "b = bytearray(b'abc')\nb[0] = 120\nbytes(b), 'é'.encode('utf-8'), bin(10 ^ 3), ~5, 1 << 4",
        "(b'xbc', b'\\xc3\\xa9', '0b1001', -6, 16)",
    ),
    "wrapped text": (
        "import textwrap, string\ntextwrap.shorten('a long text here', 12), "
        "string.capwords('a b'), string.Template('$who').substitute(who='me')",
        "('a long [...]', 'A B', 'me')",
    ),
    "a function with memory of its own": (
        "def f(x):\n    f.calls += 1\n    return x\nf.calls = 0\nf(1); f(2)\nf.calls",
        "2",
    ),
    "assignment to several targets": (
        """
calls = []
def pair():
    calls.append(1)
    return 1, (2, 3)
a, (b, c) = whole = first, *rest = pair()
class Box: pass
box = Box()
box.x, d = e, *f = [7, 8]
a, b, c, whole, first, rest, box.x, d, e, f, len(calls)
""",
        "(1, 2, 3, (1, (2, 3)), 1, [(2, 3)], 7, 8, 7, [8], 1)",
    ),
    "a future statement": (
        "from __future__ import annotations\ndef f(x: Unknown) -> Unknown:\n    return x\nf(1)",
        "1",
    ),
    "the main idiom": (
        "def main():\n    return 'ran'\nif __name__ == '__main__':\n    result = main()\nresult",
        "'ran'",
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_ordinary_program_runs_as_without_the_policy(session, program):
    code, value = PROGRAMS[program]
    outcome = session.run(code)

    assert isinstance(outcome, Finished), outcome.error
    assert outcome.value == value


def test_the_programs_mean_the_same_without_the_policy():
    """Else they would show what the guards make of Python, and not what Python is."""
    with Sandbox() as sandbox:
        for code, value in PROGRAMS.values():
            with sandbox.session() as session:
                assert session.run(code).value == value


def test_print_writes_to_stdout_from_functions_classes_and_comprehensions(session):
    outcome = session.run(
        "def f(*values):\n    print(*values, sep='-', end='.\\n')\n"
        "class A:\n    print('in a class')\n"
        "f(1, 2)\n[print(n) for n in range(2)]\nlist(map(print, 'a'))\n"
        "print()\nprint('x', file=None)"
    )

    assert outcome.stdout == "in a class\n1-2.\n0\n1\na\n\nx\n"
    assert {change.name for change in outcome.changes} == {"f", "A"}


def test_variables_functions_and_classes_stay_from_cell_to_cell(session):
    session.run("import math\nx = 2\ndef f(n):\n    return math.sqrt(n) * x\nclass A:\n    v = 1")
    outcome = session.run("x = 3\nf(16)")

    assert outcome.value == "12.0"
    assert [(change.kind, change.name) for change in outcome.changes] == [("modified", "x")]
    assert session.run("_ + A.v").value == "13.0"
    assert session.get("x") == 3


def test_values_of_the_host_and_its_functions_are_there(sandbox):
    def ask(question: str, times: int = 1) -> list[str]:
        if not question:
            raise LookupError("nothing asked")
        return [question.upper()] * times

    with sandbox.session(host={"ask": ask}) as session:
        session.set("context", {"text": "hello"})
        assert session.run("ask(context['text'], times=2)").value == "['HELLO', 'HELLO']"
        failed = session.run(
            "try:\n    ask('')\nexcept HostCallError as error:\n    seen = error.type\nseen"
        )
        assert failed.value == "'LookupError'"
        assert session.run("ask('')").error.type == "host.LookupError"


@pytest.mark.parametrize(
    "code",
    [
        "FINAL(sum([1, 2]))",
        "total = 3\nFINAL_VAR('total')",
        "SUBMIT(3)",
        "final_answer(3)",
        "answer['content'] = 3\nanswer['ready'] = True",
        "answer.update(content=3, ready=True)",
        "answer = {'content': 3, 'ready': True}",
        "print(f'FINAL({1 + 2})')",
        "'FINAL({})'.format(3)",
    ],
)
def test_every_form_of_answer_works(sandbox, code):
    with sandbox.session(answers="compatible") as session:
        outcome = session.run(code)

    assert [answer.text for answer in outcome.answers] == ["3"], outcome.error


@pytest.mark.parametrize("name", ["FINAL", "FINAL_VAR", "SUBMIT", "SHOW_VARS", "ask", "_out"])
@pytest.mark.parametrize("inside", ["__globals__", "__closure__", "__code__", "__self__"])
def test_what_the_session_offers_shows_none_of_its_insides(sandbox, name, inside):
    with sandbox.session(host={"ask": len}, answers="strict") as session:
        for cell in (f"{name}.{inside}", f"getattr({name}, '__' + {inside[2:]!r})"):
            assert session.run(cell).error.type == "PolicyError"


def test_earlier_output_can_be_paged(session):
    session.run("print('abc' * 100)")

    assert session.run("_out[1].page(0, 5), str(_out[-1])[-4:]").value == "('abcab', 'abc\\n')"


MATCHING = """
class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y
def told(value):
    match value:
        case None | True | False:
            return "one"
        case 0 | -1 | 1.5 | 2 - 3j | "zero" | b"z":
            return "literal"
        case int(n) if n > 10:
            return f"big {n}"
        case int() | float(_):
            return "number"
        case Point() as p if p.x == p.y:
            return f"diagonal {p.x}"
        case Point():
            return "point"
        case {"kind": "call", "args": [first, *others], **rest}:
            return f"call {first} {others} {sorted(rest)}"
        case []:
            return "empty"
        case [str(name), [int(n), _]] | {"name": name, "n": n}:
            return f"{name} {n}"
        case (a, *_) as whole:
            return f"{a} of {len(whole)}"
        case str(text):
            return text.upper()
        case other:
            return type(other).__name__
"""


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("None", "one"),
        ("-1", "literal"),
        ("2-3j", "literal"),
        ("b'z'", "literal"),
        ("11", "big 11"),
        ("10", "number"),
        ("0.5", "number"),
        ("Point(2, 2)", "diagonal 2"),
        ("Point(2, 3)", "point"),
        ("{'kind': 'call', 'args': [1, 2, 3], 'id': 7}", "call 1 [2, 3] ['id']"),
        ("()", "empty"),
        ("['n', [3, 4]]", "n 3"),
        ("{'name': 'm', 'n': 5}", "m 5"),
        ("(7, 8, 9)", "7 of 3"),
        ("'text'", "TEXT"),
        ("{1}", "set"),
    ],
)
def test_match_takes_values_apart(session, value, told):
    assert session.run(f"{MATCHING}print(told({value}))").stdout == f"{told}\n"


STACK = """
class Stack:
    def __init__(self, items=()):
        self._items, self._n = list(items), 0
        self._kept: dict = {}
    def _checked(self, x):
        if x is None:
            raise ValueError("none")
        return x
    def push(self, x):
        self._items.append(self._checked(x))
        self._n += 1
        Stack._last = self
    def __eq__(self, other):
        return self._items == other._items
    def forget(self):
        del self._n
class Sub(Stack):
    def size(self):
        return len(self._items) + self._n
class Wrong(ValueError):
    def __init__(self, m):
        super().__init__(m)
        self._m = m
    def tell(self):
        return self._m
s = Sub([1])
s.push(2)
"""


def test_objects_of_a_cells_own_classes_have_attributes_with_an_underscore(session):
    told = "s == Sub([1, 2]), s.size(), Wrong('x').tell(), getattr(s, '_n'), hasattr(s, '_no')"
    assert session.run(f"{STACK}{told}").value == "(True, 3, 'x', 1, False)"
    assert session.run("f'{s.size()}', '{0._n}'.format(s), Stack is Sub").value == (
        "('3', '1', False)"
    )
    assert session.run("s.forget()\nhasattr(s, '_n')").value == "False"


@pytest.mark.parametrize(
    "body",
    [
        "def f(self, o): return o._x",
        "def f(self, o): o._x = 1",
        "def f(self, o): o._x += 1",
        "def f(self, o): del o._x",
        "def f(self, o): setattr(o, '_x', 1)",
        "def f(self, o):\n        for o._x in [1]: pass",
    ],
)
@pytest.mark.parametrize(
    "other",
    [
        "[]",
        "len",
        "lambda: 0",
        "ValueError()",
        "ValueError",
        "json",
        "Own()",
        "Own",
        "super(A, A())",
    ],
)
def test_those_of_all_other_objects_are_refused(session, body, other):
    outcome = session.run(
        "import collections, json\n"
        "class Own(collections.OrderedDict): pass\n"
        f"class A:\n    {body}\nA().f({other})"
    )
    assert isinstance(outcome, Raised)
    assert outcome.error.type == "PolicyError", outcome.error


@pytest.mark.parametrize(
    "body",
    [
        "def f(self): self._guarded_writes = 1",
        "def _guarded_writes(self): pass",
        "def _getattr_(self): pass",
        "def _write_(self): pass",
        "def _own_(self): pass",
        "def f(self): self.__x = 1",
        "def f(self): self._x_ = 1",
        "def f(self): return self.__dict__",
        "def f(self, _x): pass",
        "def f(self):\n        def _g(): pass",
        "_x = 1",
    ],
)
def test_no_guard_has_the_name_of_one_that_a_class_may_have(session, body):
    outcome = session.run(f"class A:\n    {body}")
    assert isinstance(outcome, Raised)
    assert (outcome.error.type, outcome.changes) == ("PolicyError", ())


@pytest.mark.parametrize(
    ("cell", "line", "column", "text"),
    [
        ("x = 1\nimport os", 2, 8, "import of 'os' is not allowed; imports allowed: bisect"),
        ("import json.decoder", 1, 8, "import of 'json.decoder' is not allowed"),
        ("from json import load", 1, 18, "json.load is not offered; json offers JSONDecodeError"),
        ("from math import *", 1, 1, '"*" imports are not allowed'),
        ("if 1:\n    y = ().__class__", 2, 9, '"__class__" is an invalid attribute name'),
        ("_private = 1", 1, 1, '"_private" is an invalid variable name'),
        ("async def f(): pass", 1, 1, "AsyncFunctionDef"),
        ("await f()", 1, 1, "Await"),
        ("x = [i async for i in y]", 1, 18, "AsyncFor"),
        ("match 1:\n    case a.b: pass", 2, 10, "A dotted name in a pattern"),
        ("match 1:\n    case {a.b: 1}: pass", 2, 11, "A dotted name in a pattern"),
        ("match 1:\n    case a.B(): pass", 2, 10, "A dotted name in a pattern"),
        ("match 1:\n    case A(x): pass", 2, 10, "Attributes in a pattern"),
        ("match 1:\n    case str(format=f): pass", 2, 10, "Attributes in a pattern"),
        ("match 1:\n    case [str(x, y)]: pass", 2, 11, "Attributes in a pattern"),
        ("match 1:\n    case int(1 | 2): pass", 2, 10, "Attributes in a pattern"),
        ("match 1:\n    case _write_: pass", 2, 10, '"_write_" is an invalid variable name'),
        ("match 1:\n    case int(_write_): pass", 2, 14, '"_write_" is an invalid variable'),
        ("match 1:\n    case [*_iter_]: pass", 2, 11, '"_iter_" is an invalid variable name'),
        ("match 1:\n    case {**_own_}: pass", 2, 10, '"_own_" is an invalid variable name'),
        ("match 1:\n    case [1 as _x]: pass", 2, 11, '"_x" is an invalid variable name'),
        ("match 1:\n    case _Hidden(): pass", 2, 10, '"_Hidden" is an invalid variable name'),
        ("match 1:\n    case x if x.__class__: pass", 2, 15, '"__class__" is an invalid attr'),
        ("match [].__class__:\n    case x: pass", 1, 7, '"__class__" is an invalid attribute'),
        ("try:\n    pass\nexcept* ValueError:\n    pass", 1, 1, "TryStar"),
        ("class A(metaclass=type): pass", 1, 1, "metaclass"),
        ("class B: pass\nclass A(B, x=1): pass", 2, 1, "Keyword arguments of a class"),
        ("class A:\n    def __getattr__(self, n): pass", 2, 5, "__getattr__"),
        ("self = 1\nself._x = 2", 2, 1, '"_x" is an invalid attribute name'),
        ("self = 1\nself._x += 2", 2, 1, '"_x" is an invalid attribute name'),
        ("x = 1\nx.__class__.__name__ = 2", 2, 1, '"__class__" is an invalid attribute name'),
        ("print = 1", 1, 1, '"print" is a reserved name'),
        ("exec('1')", 1, 1, "Exec calls are not allowed"),
        ("g = 1\ng.gi_frame", 2, 1, "gi_frame"),
    ],
)
def test_what_is_refused_is_refused_before_the_cell_runs(session, cell, line, column, text):
    outcome = session.run(f"{cell}")

    assert isinstance(outcome, Raised)
    assert outcome.error.type == "PolicyError"
    assert outcome.error.message.startswith(f"line {line}, column {column}: ")
    assert text in outcome.error.message
    assert outcome.error.line == line
    assert outcome.changes == ()


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("getattr(1, '__class__')", "'__class__' begins with '_'"),
        ("setattr(1, 'x', 2)", "an object of type 'int' cannot be changed"),
        ("import math\nmath.tau = 6", "an object of type 'module' cannot be changed"),
        ("import math\nmath.sinn(1)", "math.sinn is not offered; math offers acos"),
        ("open('x')", "open() is not offered: the policy offers no files"),
        ("input()", "input() is not offered: there is no terminal"),
        ("globals()", "globals() is not offered"),
        ("type('A', (), {})", "type() takes one value"),
        ("print('x', file=3)", "file= is not offered"),
        ("'{0.__class__}'.format(1)", "'__class__' begins with '_'"),
        ("'{a.__class__}'.format_map({'a': 1})", "'__class__' begins with '_'"),
    ],
)
def test_what_the_guards_refuse_is_an_error_of_its_line(session, cell, text):
    outcome = session.run(f"before = 1\n{cell}\n")

    assert outcome.error.type == "PolicyError"
    assert text in outcome.error.message
    assert outcome.error.line == 2 + cell.count("\n")
    assert cell.splitlines()[-1] in outcome.error.traceback
    assert session.get("before") == 1


def test_an_ordinary_error_has_its_ordinary_traceback(session):
    outcome = session.run("def f(x):\n    y = x[0]\n    return y / 0\n\nf([1])")

    assert (outcome.error.type, outcome.error.line) == ("ZeroDivisionError", 3)
    for line in ("line 5, in <module>", "line 3, in f", "return y / 0"):
        assert line in outcome.error.traceback
    assert "guards" not in outcome.error.traceback
    assert session.run("nothing").error.type == "NameError"
    assert session.run("class").error.type == "SyntaxError"
    assert session.run("(" * 5000).error.type == "SyntaxError"
    assert session.run("-" * 50_000 + "1").error.type == "SyntaxError"


def test_a_hint_names_nothing_that_the_policy_refuses(session):
    session.run("counts = 1")

    assert "Did you mean: 'counts'?" in session.run("count").error.traceback
    assert "Did you mean: 'sorted'?" in session.run("sortd([1])").error.traceback
    assert "import" not in session.run("os.getcwd()").error.traceback
    assert "_getattr_" not in session.run("getattr_").error.traceback


def test_the_clock_runs_and_the_state_is_kept(session, clock):
    session.run("x = 1")
    endless = "while True:\n    x += 1\n    if x == 2:\n        print(x)"

    assert isinstance(session.run(endless, on_output=clock.strike), TimedOut)
    assert session.run("x > 1").value == "True"


def test_imports_is_the_list_of_what_there_is():
    with Sandbox(policy=Policy("restricted", imports=["collections", "copy"])) as sandbox:
        with sandbox.session() as session:
            nested = "import copy, collections.abc\na = [[1]]\nb = copy.deepcopy(a)\n"
            assert session.run(nested + "b[0][0] = 2\na, b").value == "([[1]], [[2]])"
            refused = session.run("import math").error.message
    assert refused.endswith("imports allowed: collections, collections.abc, copy")


def test_one_module_of_a_package_does_not_bring_the_package():
    with Sandbox(policy=Policy("restricted", imports=["collections.abc"])) as sandbox:
        with sandbox.session() as session:
            assert session.run("from collections.abc import Sized").ok
            assert session.run("import collections.abc\nisinstance([], collections.abc.Sized)").ok
            assert "not offered" in session.run("collections.Counter").error.message
            assert session.run("import collections").error.type == "PolicyError"


def test_denied_calls_are_denied_here_too():
    with Sandbox(policy=Policy("restricted", calls_denied=["print", "math.factorial"])) as sandbox:
        with sandbox.session() as session:
            assert "the call of 'print'" in session.run("print(1)").error.message
            assert (
                "'math.factorial'"
                in session.run("from math import factorial as f\nf(3)").error.message
            )
            assert session.run("import math\nmath.sqrt(4)").value == "2.0"


def test_sessions_have_random_numbers_of_their_own(sandbox):
    """The proxies are made in the template, and so is the generator behind them."""
    draw = "import random\n[random.random() for _ in range(4)]"

    def drawn(**arguments):
        with sandbox.session(**arguments) as session:
            return session.run(draw).value

    assert drawn() != drawn()
    assert drawn(seed=5) == drawn(seed=5) != drawn(seed=6)


def test_python_s_own_builtins_are_as_they_were():
    """The policy is the sandbox's: what is preloaded works with all of Python."""
    with Sandbox(policy=Policy("restricted"), preload=["json", "email"]) as sandbox:
        with sandbox.session(seed=3) as session:
            assert session.run("import email").error.type == "PolicyError"
            assert session.run("import json, random\njson.dumps(random.randint(1, 1))").ok


def test_a_policy_error_that_a_cell_makes_itself_is_an_error_like_others(session):
    session.run("def fail():\n    raise PolicyError('mine', 'no line', [])")
    error = session.run("fail()").error

    assert (error.type, error.line) == ("PolicyError", 1)
    assert session.run("try:\n    getattr(1, '_x')\nexcept PolicyError as e:\n    y = e.line\ny").ok
