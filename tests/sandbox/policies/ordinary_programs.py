"""Ordinary programs, as models write them, with the value of the last expression."""

from __future__ import annotations

# A cell as a model writes it, and the value of its last expression.
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
