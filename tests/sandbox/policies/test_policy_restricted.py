"""Policy("restricted"): ordinary programs run, and refusals name their place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from repl_sandbox import Finished, Policy, Raised, Sandbox, Session, TimedOut
from tests.sandbox.conftest import PATIENT
from tests.sandbox.policies.ordinary_programs import PROGRAMS


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(policy=Policy("restricted"), limits=PATIENT) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    with sandbox.session() as session:
        yield session


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_ordinary_program_runs_as_without_the_policy(session, program):
    code, value = PROGRAMS[program]
    outcome = session.run(code)

    assert isinstance(outcome, Finished), outcome.error
    assert outcome.value == value


def test_the_programs_mean_the_same_without_the_policy():
    """Otherwise they would show Python as changed by the guards."""
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
def test_injected_objects_do_not_expose_their_internals(sandbox, name, inside):
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
def test_underscore_attributes_of_other_objects_are_refused(session, body, other):
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
def test_code_is_refused_before_the_cell_runs(session, cell, line, column, text):
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
def test_errors_of_the_guards_name_their_line(session, cell, text):
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


def test_timeouts_apply_and_the_state_is_kept(session, clock):
    session.run("x = 1")
    endless = "while True:\n    x += 1\n    if x == 2:\n        print(x)"

    assert isinstance(session.run(endless, on_output=clock.strike), TimedOut)
    assert session.run("x > 1").value == "True"


def test_imports_lists_the_allowed_modules():
    with Sandbox(policy=Policy("restricted", imports=["collections", "copy"])) as sandbox:
        with sandbox.session() as session:
            nested = "import copy, collections.abc\na = [[1]]\nb = copy.deepcopy(a)\n"
            assert session.run(nested + "b[0][0] = 2\na, b").value == "([[1]], [[2]])"
            refused = session.run("import math").error.message
    assert refused.endswith("imports allowed: collections, collections.abc, copy")


def test_one_module_of_a_package_does_not_allow_the_package():
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


def test_python_s_builtins_are_unchanged():
    """The policy applies to cells only: preloaded modules work with all of Python."""
    with Sandbox(policy=Policy("restricted"), preload=["json", "email"]) as sandbox:
        with sandbox.session(seed=3) as session:
            assert session.run("import email").error.type == "PolicyError"
            assert session.run("import json, random\njson.dumps(random.randint(1, 1))").ok


def test_a_policy_error_that_a_cell_makes_itself_is_an_error_like_others(session):
    session.run("def fail():\n    raise PolicyError('mine', 'no line', [])")
    error = session.run("fail()").error

    assert (error.type, error.line) == ("PolicyError", 1)
    assert session.run("try:\n    getattr(1, '_x')\nexcept PolicyError as e:\n    y = e.line\ny").ok
