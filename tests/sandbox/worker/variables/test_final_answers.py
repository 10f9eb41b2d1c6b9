"""Final answers in every dialect: by value, exact, and sent to the host at once."""

from __future__ import annotations

import copy
import enum
import pickle
import sys

import pytest

from repl_sandbox.protocol.values import MAX_ANSWER, MAX_ANSWER_VALUES
from repl_sandbox.types import Answer
from repl_sandbox.worker.answers import FinalAnswers, PrintedForm, parse
from repl_sandbox.worker.evaluation import CellRun, run_cell
from repl_sandbox.worker.namespace import Namespace


class Session:
    """Runs cells like a worker, and records the answers sent to the host."""

    def __init__(self) -> None:
        self.namespace = Namespace()
        self.told: list[Answer] = []
        self.refuse: str | None = None
        self.answers = FinalAnswers(self.namespace, self.submit)
        self.number = 0

    def submit(self, answer: Answer) -> None:
        if self.refuse is not None:
            raise ValueError(self.refuse)
        self.told.append(answer)

    def __call__(self, source: str) -> CellRun:
        self.number += 1
        ran = run_cell(source, self.number, self.namespace, printed=self.answers.printed)
        self.answers.poll()
        return ran

    def after(self, source: str) -> list[Answer]:
        """Return the answers of a cell that ran to its end."""
        self.told.clear()
        ran = self(source)
        assert ran.error is None, ran.error.traceback
        return list(self.told)


@pytest.fixture
def session():
    main = sys.modules["__main__"]
    yield Session()
    sys.modules["__main__"] = main


# ── functions ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("FINAL(42)", Answer("FINAL", "42", 42)),
        ("FINAL((1, 2))", Answer("FINAL", "(1, 2)", [1, 2])),
        ("FINAL('a) b)')", Answer("FINAL", "a) b)", "a) b)")),
        ("FINAL('smile :( now')", Answer("FINAL", "smile :( now", "smile :( now")),
        ("FINAL('')", Answer("FINAL", "", "")),
        ("FINAL(None)", Answer("FINAL", "None", None)),
        ("FINAL(' é\\n')", Answer("FINAL", " é\n", " é\n")),
        ("FINAL('x' * 100_000)", Answer("FINAL", "x" * 100_000, "x" * 100_000)),
        ("if True:\n    FINAL(1)\ny = 2", Answer("FINAL", "1", 1)),
        ("x = 5\nFINAL_VAR('x')", Answer("FINAL_VAR", "5", 5)),
        ("x = 5\nFINAL_VAR(' \"x\" ')", Answer("FINAL_VAR", "5", 5)),
        ("x = None\nFINAL_VAR('x')", Answer("FINAL_VAR", "None", None)),
        ("x = [5]\nFINAL_VAR(x)", Answer("FINAL_VAR", "[5]", [5])),
        ("x = 'Paris'\nFINAL_VAR(x)", Answer("FINAL_VAR", "Paris", "Paris")),
        ("x = 'two words'\nFINAL_VAR(x + '!')", Answer("FINAL_VAR", "two words!", "two words!")),
        ("final_answer = 'mine'\nFINAL_VAR('final_answer')", Answer("FINAL_VAR", "mine", "mine")),
        ("SUBMIT(7)", Answer("SUBMIT", "7", 7)),
        ("SUBMIT(a=1, b='x')", Answer("SUBMIT", "{'a': 1, 'b': 'x'}", {"a": 1, "b": "x"})),
        ("SUBMIT(value=1)", Answer("SUBMIT", "{'value': 1}", {"value": 1})),
        ("final_answer({'k': (1,)})", Answer("final_answer", "{'k': (1,)}", {"k": [1]})),
        ("final_answer(answer=3)", Answer("final_answer", "3", 3)),
        ("final_answer(value=3)", Answer("final_answer", "3", 3)),
        ("FINAL(answer=3)", Answer("FINAL", "3", 3)),
        ("x = 5\nFINAL_VAR(var_name='x')", Answer("FINAL_VAR", "5", 5)),
        ("x = 5\nFINAL_VAR(variable_name='x')", Answer("FINAL_VAR", "5", 5)),
        (
            "SUBMIT('b', 1, c=2)",
            Answer(
                "arguments",
                "{'values': ('b', 1), 'fields': {'c': 2}}",
                {"values": ["b", 1], "fields": {"c": 2}},
            ),
        ),
    ],
)
def test_a_call_sends_one_answer_with_its_exact_text_and_value(session, source, answer):
    assert session.after(source) == [answer]


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("FINAL((1, 2))", "'FINAL((1, 2))'"),
        ("x = 5\nFINAL_VAR('x')", "'FINAL(5)'"),
        ("SUBMIT(5)", None),
        ("final_answer(5)", "5"),
    ],
)
def test_calls_return_what_code_expects_of_them(session, source, value):
    assert session(source).value == value


@pytest.mark.parametrize("source", ["print(FINAL('x'))", "x = 'x'\nprint(FINAL_VAR('x'))"])
def test_printing_the_call_sends_one_answer(session, source, capsys):
    (answer,) = session.after(source)
    assert answer.text == "x"
    assert capsys.readouterr().out == "FINAL(x)\n"


def test_an_answer_is_sent_when_it_is_given_and_stands_if_the_cell_then_raises(session):
    assert session("FINAL(1)\n1 / 0").error.type == "ZeroDivisionError"
    assert session.told == [Answer("FINAL", "1", 1)]


def test_every_answer_is_reported_in_order(session):
    assert [a.text for a in session.after("FINAL(1)\nSUBMIT(2)\nfinal_answer(3)")] == [
        "1",
        "2",
        "3",
    ]


@pytest.mark.parametrize(
    ("source", "kind", "text"),
    [
        (
            "result = 1\nFINAL_VAR('resutl')",
            "NameError",
            "no variable 'resutl'. Did you mean: 'result'?",
        ),
        ("FINAL_VAR('Paris')", "NameError", "use FINAL"),
        ("SUBMIT()", "TypeError", "SUBMIT takes one value"),
        ("FINAL()", "TypeError", "FINAL()"),
        ("FINAL(1, answer=2)", "TypeError", "FINAL() got multiple values for argument 'value'"),
        ("final_answer(result=2)", "TypeError", "final_answer() got an unexpected keyword"),
        (
            "class C:\n    def __str__(self): raise LookupError('no')\nFINAL(C())",
            "LookupError",
            "no",
        ),
        ("FINAL('x' * 9_000_000)", "ValueError", "larger than 8 MiB"),
        ("FINAL('é' * 5_000_000)", "ValueError", "larger than 8 MiB"),
        ("FINAL([0] * 300_000)", "ValueError", "more than 262,144 values"),
        (
            "class C(list):\n    def __str__(self): return 's'\nFINAL(C(['x' * 9_000_000]))",
            "ValueError",
            "value",
        ),
    ],
)
def test_a_wrong_call_raises_in_the_cell_and_sends_nothing(session, source, kind, text):
    error = session(source).error

    assert error.type == kind
    assert text in error.message
    assert session.told == []


@pytest.mark.parametrize("name", ["FINAL", "FINAL_VAR", "final_answer"])
def test_errors_and_reprs_have_the_names_of_the_functions(session, name):
    assert session(f"{name}()").error.message.startswith(f"{name}() missing 1 required")
    assert session(name).value.startswith(f"<function {name} at")


def test_the_largest_answer_is_sent(session):
    (answer,) = session.after(f"FINAL('x' * {MAX_ANSWER - 2})")
    assert len(answer.text) == MAX_ANSWER - 2
    (answer,) = session.after(f"FINAL([0] * {MAX_ANSWER_VALUES - 2})")
    assert len(answer.value) == MAX_ANSWER_VALUES - 2


@pytest.mark.parametrize(
    "source",
    ["FINAL(1)", "x = 1\nFINAL_VAR('x')", "SUBMIT(1)", "final_answer(1)", "print('FINAL(1)')"],
)
def test_a_refusal_is_raised_in_the_cell(session, source):
    session.refuse = "answer: expected a number"
    error = session(source).error
    assert (error.type, error.message) == ("ValueError", "answer: expected a number")


# ── values ───────────────────────────────────────────────────────────────────────────────────────


class Text(str):
    __slots__ = ()


KEYS = {"1": "a", "false": "b", "2.5": "c", "null": "d"}


class Number(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (True, True),
        (1.5, 1.5),
        (10**30, 10**30),
        (Text("t"), "t"),
        (Number.ONE, 1),
        ([Text("t"), (1, (2,))], ["t", [1, [2]]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        ({1: "a", False: "b", 2.5: "c", None: "d"}, KEYS),
        ("\ud800", "\ud800"),
        (float("nan"), None),
        ([1, float("inf")], None),
        ({(1, 2): 3}, None),
        (b"bytes", {"$bytes": "Ynl0ZXM="}),
        (object(), None),
        ({1, "mixed"}, ["mixed", 1]),
    ],
)
def test_a_value_is_sent_as_json_carries_it_and_the_text_is_kept(session, given, value):
    session.namespace.globals["x"] = given
    (answer,) = session.after("FINAL(x)")

    assert answer.text == str(given)
    assert type(answer.text) is str
    assert answer.value == value
    assert type(answer.value) is type(value)


def test_values_that_contain_themselves_or_nest_without_end_have_text_only(session):
    (answer,) = session.after("x = []\nx.append(x)\nFINAL(x)")
    assert answer == Answer("FINAL", "[[...]]", None)

    (answer,) = session.after(
        "class Deep(list):\n    def __str__(self): return 'deep'\n"
        "x = Deep()\nfor _ in range(100_000): x = Deep([x])\nFINAL(x)"
    )
    assert answer == Answer("FINAL", "deep", None)


def test_a_value_is_a_copy(session):
    (answer,) = session.after("x = [1]\nFINAL(x)\nx.append(2)")
    assert answer.value == [1]


def test_numbers_and_arrays_of_numpy_are_values(session):
    pytest.importorskip("numpy")
    for source, value in [
        ("numpy.int64(3)", 3),
        ("numpy.float64(0.5)", 0.5),
        ("[numpy.float32(0.5), numpy.bool_(True)]", [0.5, True]),
        ("numpy.arange(4).reshape(2, 2)", [[0, 1], [2, 3]]),
        ("{'a': numpy.str_('t')}", {"a": "t"}),
    ]:
        (answer,) = session.after(f"import numpy\nFINAL({source})")
        assert answer.value == value


# ── the dict ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "source",
    [
        "answer['content'] = 5\nanswer['ready'] = True",
        "answer.update(content=5, ready=True)",
        "answer.update({'content': 5, 'ready': True})",
        "answer |= {'content': 5, 'ready': True}",
        "answer = {'content': 5, 'ready': True}",
        "answer = dict(answer, content=5, ready=1)",
        "answer = answer | {'content': 5, 'ready': True}",
        "answer['content'] = 5\nanswer.pop('ready')\nanswer.setdefault('ready', True)",
        "a = answer\na['content'] = 5\na['ready'] = 'yes'",
        "def f():\n    answer['content'] = 5\n    answer['ready'] = True\nf()",
        "import types\nanswer = types.SimpleNamespace(d=answer).d\nanswer['content'] = 5\n"
        "answer['ready'] = True",
    ],
)
def test_the_answer_dict_sends_its_content_once_when_ready(session, source):
    assert session.after(source) == [Answer("answer", "5", 5)]
    assert session.after("x = 1") == []


@pytest.mark.parametrize(
    "source",
    [
        "answer['content'] = 5",
        "answer['ready'] = False",
        "answer = 'a plain variable'",
        "answer = {'content': 5}",
        "answer = {}",
        "del answer",
        "answer.clear()",
        "other = {'content': 5, 'ready': True}",
    ],
)
def test_an_answer_dict_that_is_not_ready_sends_nothing(session, source):
    assert session.after(source) == []
    assert session.after("x = 1") == []


def test_an_answer_is_reported_while_the_cell_runs(session):
    session.namespace.globals["told"] = session.told
    session("answer['content'] = 5\nanswer['ready'] = True\nseen = len(told)")
    assert session.namespace.globals["seen"] == 1


def test_each_change_while_ready_is_reported(session):
    found = session.after(
        "answer['ready'] = True\nanswer['content'] = 'a'\nanswer['content'] = 'b'"
    )
    assert [a.value for a in found] == ["", "a", "b"]


def test_a_change_inside_of_the_content_is_seen_when_the_cell_ends(session):
    found = session.after("answer.update(content=[1], ready=True)\nanswer['content'].append(2)")
    assert [a.value for a in found] == [[1], [1, 2]]


def test_a_content_set_in_an_earlier_cell_is_sent_when_it_is_ready(session):
    assert session.after("answer['content'] = 'text'") == []
    assert session.after("answer['ready'] = True") == [Answer("answer", "text", "text")]


def test_a_refused_dict_is_no_longer_ready_and_the_cell_gets_an_error(session):
    session.refuse = "expected a number"
    error = session("answer['content'] = 'x'\nanswer['ready'] = True\nnever = 1").error

    assert (error.type, error.message, error.line) == ("ValueError", "expected a number", 2)
    assert session.namespace.globals["answer"] == {"content": "x", "ready": False}

    session.refuse = None
    assert session.after("answer.update(content=1, ready=True)") == [Answer("answer", "1", 1)]


def test_a_refusal_when_the_cell_has_ended_goes_to_standard_error(session, capfd):
    session.refuse = "expected a number"
    assert session("answer = {'content': 'x', 'ready': True}").error is None

    assert session.namespace.globals["answer"]["ready"] is False
    assert "expected a number" in capfd.readouterr().err
    session.refuse = None
    assert session.after("x = 1") == []


@pytest.mark.parametrize(
    "member", ["def __str__(self): raise SystemError('no')", "def __str__(self): return 5"]
)
def test_a_content_without_a_text_form_has_no_effect(session, member, capfd):
    session(f"class Bad:\n    {member}\nanswer = {{'content': Bad(), 'ready': True}}")

    assert session.told == []
    assert "answer was not accepted" in capfd.readouterr().err
    assert session("1 + 1").value == "2"


def test_the_dict_looks_like_a_dict(session):
    assert session("answer").value == "{'content': '', 'ready': False}"
    assert session("isinstance(answer, dict)").value == "True"


def test_copies_of_the_dict_are_plain_dicts(session):
    found = session.namespace.globals["answer"]
    for copied in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert type(copied) is dict
        assert copied == {"content": "", "ready": False}


# ── printed forms ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("FINAL(42)", "42"),
        ("FINAL( 42 )", "42"),
        ("FINAL()", ""),
        ("FINAL((1, 2))", "(1, 2)"),
        ("FINAL(f(g(x)))", "f(g(x))"),
        ('FINAL("a) b)")', '"a) b)"'),
        ("FINAL('a) b)')", "'a) b)'"),
        ("FINAL('it\\'s ) x')", "'it\\'s ) x'"),
        ("FINAL(It's (really) done)", "It's (really) done"),
        ("FINAL(the dogs' bone)", "the dogs' bone"),
        ('FINAL(5" (five) inches)', '5" (five) inches'),
        ("FINAL(smile :( now)", "smile :( now"),
        ("FINAL(smile :)", "smile :"),
        ("FINAL(a) and (b)", "a"),
        ("FINAL(one\ntwo)", "one\ntwo"),
        ("FINAL(It's one\nand two)\nrest)", "It's one\nand two"),
        ("FINAL(1)\nFINAL(2)", "1"),
    ],
)
def test_the_text_between_the_parentheses_is_the_answer(text, inner):
    assert parse(text) == PrintedForm(inner, None)


@pytest.mark.parametrize(
    "text", ["FINAL(42", "FINAL(", "FINAL", "FINAL_VAR(", "FINAL_VAR(a b)", "x"]
)
def test_an_incomplete_form_is_no_answer(session, text):
    assert parse(text) is None
    session.answers.printed(text, False)
    assert session.told == []


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("FINAL(" + "a" * 1_000_000, None),
        ("FINAL(" + "(" * 1_000_000, None),
        ("FINAL('" + "\\'" * 500_000, None),
        ('FINAL("' + "'\\\"" * 300_000 + "\n)", '"' + "'\\\"" * 300_000),
    ],
)
def test_a_printed_form_is_parsed_in_linear_time(text, inner):
    assert parse(text) == (
        None if inner is None else PrintedForm(inner, None)
    )  # in seconds, not hours


@pytest.mark.parametrize(
    "text", ["FINAL_VAR(x)", "FINAL_VAR('x')", 'FINAL_VAR( "x" )', "FINAL_VAR(x) etc"]
)
def test_a_printed_variable_is_sent_by_value(session, text):
    session.namespace.globals["x"] = (1, 2)
    session.answers.printed(text, False)
    assert session.told == [Answer("printed", "(1, 2)", [1, 2], text)]


def test_a_printed_variable_that_is_unknown_is_ignored(session):
    assert session.after("print('FINAL_VAR(nothing)')") == []


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("print('FINAL(42)')", Answer("printed", "42", "42", "FINAL(42)")),
        ("n = 4\nprint(f'FINAL({n})')", Answer("printed", "4", "4", "FINAL(4)")),
        ("n = 4\nprint(f'\\n  FINAL({n})')", Answer("printed", "4", "4", "  FINAL(4)")),
        ("n = 4\nprint('\\tFINAL_VAR(n)')", Answer("printed", "4", 4, "\tFINAL_VAR(n)")),
        ("n = 4\nprint('FINAL_VAR(n)')", Answer("printed", "4", 4, "FINAL_VAR(n)")),
        ("n = 4\nf'FINAL({n})'", Answer("printed", "4", "4", None)),
        ("'FINAL_VAR(n)' if False else 0\nn = 4\n'FINAL_VAR(n)'", Answer("printed", "4", 4, None)),
        (
            "print('FINAL(a)\\nmore')",
            Answer("printed", "a", "a", "FINAL(a)\nmore"),
        ),
    ],
)
def test_a_printed_form_is_sent_with_the_output_that_must_show_it(session, source, answer):
    assert session.after(source) == [answer]


@pytest.mark.parametrize("document", ["FINAL(42)", "# FINAL step\nFINAL(42)", "FINAL_VAR(context)"])
def test_a_document_never_gives_an_answer(session, document):
    session.namespace.globals["context"] = document
    for source in (
        "print(context)",
        "# FINAL step\nprint(context)",
        "context",
        "print('FINAL:', context)",
        "print(f'{context}')  # FINAL(1)",
        "for line in context.splitlines():\n    print(line)  # FINAL(",
        "str(context) + ' FINAL('",
    ):
        assert session.after(source) == []


# ── names ────────────────────────────────────────────────────────────────────────────────────────


def test_the_answer_functions_have_docstrings(session):
    for name in ("FINAL", "FINAL_VAR", "SUBMIT", "SHOW_VARS", "final_answer"):
        function = session.namespace.globals[name]
        assert function.__name__ == name
        assert len(function.__doc__.splitlines()) == 1


def test_injected_names_are_no_variables(session):
    assert list(session.namespace.variables()) == []


def test_variables_are_listed_with_their_types(session):
    assert session.answers.show_variables() == "No variables created yet."
    session("x = 1\ndata = {}")
    assert session.answers.show_variables() == "Available variables: {'x': 'int', 'data': 'dict'}"
    assert session("SHOW_VARS()").value == repr(session.answers.show_variables())
    session("answer['content'] = 'c'\nanswer = {'content': 'mine', 'ready': False}")
    assert session.answers.show_variables() == "Available variables: {'x': 'int', 'data': 'dict'}"


def test_overwritten_answer_functions_are_restored(session, capfd):
    session("FINAL = FINAL_VAR = SUBMIT = SHOW_VARS = 5")
    assert session.after("FINAL(1)") == [Answer("FINAL", "1", 1)]
    assert capfd.readouterr().err.count("was put back") == 4


def test_common_variable_names_belong_to_the_code(session):
    session("final_answer = 'mine'")
    assert session("final_answer").value == "'mine'"
    assert session.after("FINAL_VAR('final_answer')") == [Answer("FINAL_VAR", "mine", "mine")]
