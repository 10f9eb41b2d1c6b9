"""Stubs of `HostFunction`s: the values that session code gets, and those it cannot get."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from repl_sandbox import (
    AsyncSandbox,
    Finished,
    HostFunction,
    Outcome,
    Policy,
    Raised,
    Sandbox,
)

Cells = Callable[..., list[Outcome]]
SIGNATURE = "(prompt, model=None, *, context=None)"


class BudgetExceeded(Exception):
    pass


def ask(prompt: Any, model: str | None = None, *, context: Any = None) -> dict[str, Any]:
    """Ask a model."""
    if prompt == "poor":
        raise BudgetExceeded("3 of 3 calls are used")
    if prompt == "wrong":
        raise LookupError("no such model")
    text = str(prompt).upper()
    return {
        "text": text,
        "ok": prompt != "bad",
        "error": None if prompt != "bad" else "refused",
        "usage": {"output_tokens": len(text)},
        "truncated": False,
        "value": [1, {"a": None}],
    }


async def ask_all(prompts: list[str]) -> list[dict[str, Any]]:
    return [ask(prompt) for prompt in prompts]


TEXT = HostFunction(ask, returns="text", signature=SIGNATURE, raises=["BudgetExceeded"])
TEXTS = HostFunction(ask_all, returns="texts")


class Children:
    """The operations that a host has begun for one session."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.ready = {0, 2}

    def begin(self, prompt: str) -> dict[str, Any]:
        """Begin one."""
        self.asked.append(("begin", prompt))
        return {"id": len([each for each in self.asked if each[0] == "begin"]) - 1}

    async def result(self, number: int, timeout: float | None) -> dict[str, Any] | None:
        self.asked.append(("result", number, timeout))
        if not isinstance(number, int) or number > 2:
            raise KeyError(number)
        return {"text": f"child {number}"} if number in self.ready else None

    def done(self, number: int) -> bool:
        self.asked.append(("done", number))
        return number in self.ready

    def cancel(self, number: int) -> bool:
        self.asked.append(("cancel", number))
        return number not in self.ready

    def wait(self, numbers: list[int], timeout: float | None) -> list[int]:
        self.asked.append(("wait", numbers))
        return [number for number in reversed(numbers) if number in self.ready][:1]

    def offer(self) -> HostFunction:
        names = ("result", "done", "cancel", "wait")
        methods = {name: getattr(self, name) for name in names}
        return HostFunction(self.begin, returns="handle", methods=methods)


@pytest.fixture(scope="module")
def jailed() -> Iterator[Sandbox]:
    """The interpreter of the other tier's tests cannot save."""
    with Sandbox(isolation="jailed") as sandbox:
        yield sandbox


def values(outcomes: list[Outcome]) -> list[str | None]:
    for outcome in outcomes:
        assert isinstance(outcome, Finished), outcome.error
    return [outcome.value for outcome in outcomes]


# ── texts ─────────────────────────────────────────────────────────────────────────────────────


def test_a_text_result_is_a_str_with_call_details(cells: Cells) -> None:
    found = values(
        cells(
            {"ask": TEXT},
            "x = ask('hi')\nx, isinstance(x, str), x == 'HI', hash(x) == hash('HI')",
            "x.ok, x.error, x.usage, x.truncated, x.value",
            "bad = ask('bad')\nbad.ok, bad.error",
            "x + '!', f'{x:>4}', x[::-1], x.lower(), {x: 1}['HI'], 'H' in x, '-'.join([x, x])",
            "{type(each).__name__ for each in (x + '', x[:1], x.strip(), str(x), f'{x}')}",
            "import json\njson.dumps([x]), repr(x), str(x), len(x)",
        )
    )
    assert found == [
        "('HI', True, True, True)",
        "(True, None, {'output_tokens': 2}, False, [1, {'a': None}])",
        "(False, 'refused')",
        "('HI!', '  HI', 'IH', 'hi', 1, True, 'HI-HI')",
        "{'str'}",
        "('[\"HI\"]', \"'HI'\", 'HI', 2)",
    ]


def test_a_list_of_texts_keeps_its_length_and_order(cells: Cells) -> None:
    found = values(
        cells(
            {"ask_all": TEXTS},
            "found = ask_all(['b', 'bad', 'a'])\nfound, [each.ok for each in found]",
            "ask_all([])",
        )
    )
    assert found == ["(['B', 'BAD', 'A'], [True, False, True])", "[]"]


def test_missing_attributes_of_a_text_have_defaults(cells: Cells) -> None:
    offer = HostFunction(lambda: {"text": "x", "later": 1}, returns="text")
    code = "x = f()\nx.ok, x.error, x.usage, x.truncated, x.value"
    assert values(cells({"f": offer}, code)) == ["(True, None, None, False, None)"]


@pytest.mark.parametrize("returns", ["text", "texts", "handle"])
@pytest.mark.parametrize("value", [None, 1, {"text": 1}, {"id": None}, {}, [1], [None]])
def test_a_function_that_returns_something_else_is_an_error_in_the_cell(
    sandbox: Sandbox, returns: Any, value: Any
) -> None:
    methods = {"result": ask, "done": ask, "cancel": ask} if returns == "handle" else {}
    with sandbox.session(
        host={"f": HostFunction(lambda: value, returns=returns, methods=methods)}
    ) as session:
        outcome = session.run("f()")
        assert isinstance(outcome, Raised)
        assert outcome.error is not None
        assert outcome.error.message.startswith("TypeError: f returned no")


COPIES = """
import copy, pickle
def parts(x): return str(x), x.ok, x.error, x.usage, x.truncated, x.value
made = [copy.copy(x), copy.deepcopy(x), *(pickle.loads(pickle.dumps(x, n)) for n in range(6))]
{type(each).__name__ for each in made}, [parts(each) == parts(x) for each in made]
"""


def test_texts_can_be_copied_and_pickled(sandbox: Sandbox) -> None:
    with sandbox.session(host={"ask": TEXT}) as session:
        session.run("x = ask('bad')")
        assert session.run(COPIES).value == f"({{'Text'}}, {[True] * 8})"


def test_texts_are_listed_as_text(sandbox: Sandbox) -> None:
    with sandbox.session(host={"ask": TEXT}) as session:
        (change,) = session.run("x = ask('hi')").changes
        assert (change.kind, change.name, change.preview) == ("new", "x", "'HI'")
        assert session.run("y = 1").changes[0].name == "y"
        assert [v.preview for v in session.variables()] == ["'HI'", "1"]
        assert session.get("x") == "HI"
        assert session.run("z = {'found': [x]}").changes[0].preview == "{'found': ['HI']}"


LOOK = "x, x.ok, x.usage, repr(h), h.result()"


def test_texts_and_handles_survive_rollbacks_and_branches(sandbox: Sandbox) -> None:
    host = {"ask": TEXT, "begin": Children().offer()}
    shown = "('BAD', False, {'output_tokens': 3}, '<begin 0: pending>', 'child 0')"
    with sandbox.session(host=host) as session:
        session.run("x, h = ask('bad'), begin('p')")
        assert session.run("import os; x = 1; os._exit(1)").state == "rolled_back"
        with session.branch() as branch:
            assert branch.run(LOOK).value == shown
        assert session.run(LOOK).value == shown


def test_texts_and_handles_are_saved_in_checkpoints(jailed: Sandbox) -> None:
    children = Children()
    host = {"ask": TEXT, "begin": children.offer()}
    shown = "('BAD', False, {'output_tokens': 3}, '<begin 0: pending>', 'child 0')"
    with jailed.session(host=host) as session:
        session.run("x, h, done = ask('bad'), begin('p'), begin('q')")
        session.run("done.id = 2\nkept = done.result()")
        saved = session.checkpoint()
    children.asked.clear()
    with jailed.restore(saved, host=host) as restored:
        assert restored.missing == ()
        assert restored.run("done, done.result()").value == "(<begin 2: done>, 'child 2')"
        assert children.asked == []
        assert restored.run(LOOK).value == shown
    with jailed.restore(saved, host={"ask": TEXT}) as restored:
        assert restored.missing == ()
        assert restored.run("x.usage").value == "{'output_tokens': 3}"
        assert restored.run("done, done.result(), kept is done.result()").value == (
            "(<begin 2: done>, 'child 2', True)"
        )
        outcome = restored.run("h.result()")
        assert outcome.error is not None
        assert outcome.error.message == "NameError: this session offers no 'begin'"


def test_text_results_can_be_answers(sandbox: Sandbox) -> None:
    with sandbox.session(host={"ask": TEXT}, answers="strict") as session:
        (answer,) = session.run("FINAL(ask('hi'))").answers
    assert (answer.text, answer.value) == ("HI", "HI")


# ── handles ───────────────────────────────────────────────────────────────────────────────────


def test_a_handle_waits_for_its_result_once(cells: Cells) -> None:
    children = Children()
    found = values(
        cells(
            {"begin": children.offer()},
            "a, b = begin('x'), begin('y')\na, b, a.id, b.id",
            "a.done(), b.done()",
            "a.result(), a.result(timeout=3), a.done(), a, type(a.result()).__name__",
            "try: b.result(0.5)\nexcept TimeoutError as error: print(error)",
            "b.cancel(), b",
        )
    )
    assert found == [
        "(<begin 0: pending>, <begin 1: pending>, 0, 1)",
        "(True, False)",
        "('child 0', 'child 0', True, <begin 0: done>, 'Text')",
        None,
        "(True, <begin 1: cancelled>)",
    ]
    assert children.asked == [
        ("begin", "x"),
        ("begin", "y"),
        ("done", 0),
        ("done", 1),
        ("result", 0, None),
        ("result", 1, 0.5),
        ("cancel", 1),
    ]


def test_handles_can_be_copied_and_pickled(sandbox: Sandbox) -> None:
    with sandbox.session(host={"begin": Children().offer()}) as session:
        session.run("import copy, pickle\nh = begin('x')")
        code = "[each.result() for each in (copy.deepcopy(h), pickle.loads(pickle.dumps(h)))]"
        assert session.run(code).value == "['child 0', 'child 0']"


def test_handles_come_as_they_are_completed(cells: Cells) -> None:
    children = Children()
    found = values(
        cells(
            {"begin": children.offer()},
            "handles = [begin(n) for n in range(3)]\n"
            "found = []\n"
            "try:\n    for h in begin.as_completed(handles): found.append(h.id)\n"
            "except TimeoutError as error: found.append(str(error))\nfound",
        )
    )
    assert found == ["[2, 0, '1 of 3 have no result yet']"]


def test_a_handle_is_listed_without_being_asked(sandbox: Sandbox) -> None:
    children = Children()
    with sandbox.session(host={"begin": children.offer()}) as session:
        assert session.run("h = begin('x')").changes[0].preview == "<begin 0: pending>"
        session.run("type(h).__repr__ = lambda self: 1 / 0\ntype(h).id = property(lambda s: 1 / 0)")
        (variable,) = session.variables()
        assert variable.preview.startswith("<begin")
    assert children.asked == [("begin", "x")]


# ── signatures ────────────────────────────────────────────────────────────────────────────────


def test_a_signature_is_shown_and_holds(cells: Cells) -> None:
    reached: list[Any] = []

    def function(*args: Any, **kwargs: Any) -> Any:
        """What it does."""
        reached.append((args, kwargs))
        return len(reached)

    outcomes = cells(
        {"f": HostFunction(function, signature=SIGNATURE)},
        "import inspect\nstr(inspect.signature(f)), f.__name__, f.__doc__",
        "help(f)",
        "f('a'), f('a', 'm', context={'x': [1]}), f(model='m', prompt='b')",
        *("f('a', modle=1)", "f()", "f('a', 'b', 'c')", "f('a', prompt='b')"),
    )
    assert outcomes[0].value == f"('{SIGNATURE}', 'f', 'What it does.')"
    assert f"f{SIGNATURE}\n    What it does." in outcomes[1].stdout
    assert outcomes[2].value == "(1, 2, 3)"
    # Arguments as given: a default of the session's signature is no argument.
    assert reached == [
        (("a",), {}),
        (("a", "m"), {"context": {"x": [1]}}),
        ((), {"model": "m", "prompt": "b"}),
    ]
    for outcome in outcomes[3:]:
        assert outcome.error is not None
        assert outcome.error.type == "TypeError"
        assert outcome.error.message.startswith("f() ")
        assert outcome.error.line == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"returns": "pretty"},
        {"raw": "context"},
        {"raw": ["not a name"]},
        {"raw": [1]},
        {"raw": ["other"], "signature": SIGNATURE},
        {"signature": 5},
        {"signature": "prompt"},
        {"signature": "(a): pass\nimport os\ndef g()"},
        {"signature": "(a=print())"},
        {"signature": "(a, a)"},
        {"signature": "(a: int)"},
        {"signature": "() -> int"},
        {"signature": "_evil(a)"},
        {"signature": "(" * 500},
        {"raises": ["ValueError"]},
        {"raises": ["_Hidden"]},
        {"raises": "BudgetExceeded"},
        {"methods": {"result": ask}},
        {"methods": [ask]},
        {"returns": "handle"},
        {"returns": "handle", "methods": {"result": ask, "done": ask, "cancel": 1}},
        {"returns": "handle", "methods": {"result": ask, "done": ask, "cancel": ask, "more": ask}},
    ],
)
def test_an_invalid_host_function_is_refused_by_its_field(arguments: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as refusal:
        HostFunction(ask, **arguments)
    field = "returns" if arguments == {"returns": "pretty"} else list(arguments)[-1]
    if arguments.get("raw") == ["other"]:
        field = "raw"
    if arguments == {"returns": "handle"}:
        field = "methods"
    assert field in str(refusal.value)


def test_a_host_function_is_frozen_and_has_a_callable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TEXT.returns = "plain"  # type: ignore[misc]
    with pytest.raises(TypeError, match="function"):
        HostFunction("ask")


def test_a_name_is_a_function_or_an_error_and_not_both(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="raises"):
        sandbox.session(host={"Failed": HostFunction(ask, raises=["Failed"])})


def test_a_branch_has_the_host_functions_of_its_session(sandbox: Sandbox) -> None:
    with sandbox.session(host={"ask": TEXT}) as session:
        session.run("x = 1")
        for host in ({"ask": ask}, {"ask": dataclasses.replace(TEXT, returns="plain")}, {}):
            with pytest.raises(ValueError, match="ask"):
                session.branch(host=host)
        other = dataclasses.replace(TEXT, function=lambda prompt: {"text": "other"})
        with session.branch(host={"ask": other}) as branch:
            assert branch.run("ask('x')").value == "'other'"
        assert session.run("ask('x')").value == "'X'"


# ── errors with a class ───────────────────────────────────────────────────────────────────────


def test_an_error_of_the_host_has_its_class_where_that_is_available(cells: Cells) -> None:
    outcomes = cells(
        {"ask": TEXT, "ask_all": TEXTS},
        "ask('poor')",
        "try: ask('poor')\n"
        "except BudgetExceeded as error:\n"
        "    print(error, '|', error.type, '|', error.message, '|', error.__context__)\n"
        "    print(isinstance(error, HostCallError), type(error) is BudgetExceeded)",
        "import copy\ntwin = copy.copy(error) if 'error' in dir() else None\n"
        "try: ask('wrong')\nexcept BudgetExceeded: pass",
        "try: ask_all(['poor'])\nexcept HostCallError as error: print(type(error), error.type)",
    )
    first = outcomes[0].error
    assert first is not None
    assert (first.type, first.message) == ("BudgetExceeded", "3 of 3 calls are used")
    assert first.traceback.endswith("\nBudgetExceeded: 3 of 3 calls are used\n")
    assert outcomes[1].stdout == (
        "3 of 3 calls are used | BudgetExceeded | 3 of 3 calls are used | None\nTrue True\n"
    )
    other = outcomes[2].error
    assert other is not None
    assert (other.type, other.message) == ("host.LookupError", "no such model")
    # Not an error class of this function: the name alone does not make it one.
    assert outcomes[3].stdout == ("<class 'repl_sandbox.HostCallError'> BudgetExceeded\n")


def test_errors_can_be_copied_and_saved_and_are_put_back(jailed: Sandbox) -> None:
    code = (
        "import copy, pickle\n"
        "kept = []\n"
        "for prompt in ('poor', 'wrong'):\n"
        "    try: ask(prompt)\n"
        "    except HostCallError as error: kept.append(error)\n"
        "[(str(e), e.type) for error in kept\n"
        " for e in (copy.copy(error), pickle.loads(pickle.dumps(error)))]"
    )
    poor, wrong = (
        ("3 of 3 calls are used", "BudgetExceeded"),
        ("no such model", "LookupError"),
    )
    with jailed.session(host={"ask": TEXT}) as session:
        assert session.run(code).value == str([poor, poor, wrong, wrong])
        session.run("BudgetExceeded = ValueError")
        assert session.run("BudgetExceeded").value == "<class '__main__.BudgetExceeded'>"
        saved = session.checkpoint()
    with jailed.restore(saved, host={"ask": TEXT}) as restored:
        assert restored.missing == ()
        assert restored.run("type(kept[0]) is BudgetExceeded, kept[0].type").value == (
            "(True, 'BudgetExceeded')"
        )


# ── what is the session's is no more than that ────────────────────────────────────────────────


def test_changes_of_texts_and_handles_have_no_effect_on_the_host(sandbox: Sandbox) -> None:
    children = Children()
    host = {"ask": TEXT, "begin": children.offer()}
    with sandbox.session(host=host) as session:
        session.run(
            "x, h = ask('bad'), begin('p')\n"
            "x.ok, x.usage = True, {'output_tokens': -10**9}\n"
            "type(x).ok = property(lambda self: True)\n"
            "type(h).result = lambda self: 'forged'\n"
            "begin.methods['cancel'] = lambda id: True\n"
            "h.cancel(), h.result()"
        )
        # Nothing was sent to the host, and no state there could change.
        assert children.asked == [("begin", "p")]
    with sandbox.session(host=host) as other:
        assert other.run("x = ask('bad')\nx.ok, x.usage").value == "(False, {'output_tokens': 3})"


def test_a_forged_id_is_validated_by_the_host(sandbox: Sandbox) -> None:
    children, others = Children(), Children()
    with sandbox.session(host={"begin": children.offer()}) as session:
        session.run("h = begin('p')\nh.id = 99")
        outcome = session.run("h.result()")
        assert outcome.error is not None
        assert outcome.error.message == "99"
        assert session.run("h.id = {'a': [1]}\nh.result()").error is not None
    with sandbox.session(host={"begin": others.offer()}) as session:
        assert session.run("begin('q').result()").value == "'child 0'"
    assert [each for each in others.asked if each[1] == 99] == []


def test_methods_are_not_injected_as_names(sandbox: Sandbox) -> None:
    with sandbox.session(host={"begin": Children().offer()}) as session:
        assert session.run("[n for n in globals() if 'result' in n or '.' in n]").value == "[]"
        # A user's own names cannot collide with them.
        with pytest.raises(ValueError, match="host"):
            sandbox.session(host={"begin.result": ask})


def test_return_types_are_restored_after_a_restart(sandbox: Sandbox) -> None:
    with sandbox.session(host={"ask": TEXT}) as session:
        session.run("import os; os._exit(1)")
        assert session.run("ask('bad').ok, BudgetExceeded.__name__").value == (
            "(False, 'BudgetExceeded')"
        )


def test_host_functions_work_under_a_language_policy() -> None:
    children = Children()
    host = {"ask": TEXT, "ask_all": TEXTS, "begin": children.offer()}
    with Sandbox(policy=Policy("restricted")) as sandbox, sandbox.session(host=host) as session:
        assert session.run("x = ask('bad')\nx.ok, x.usage, x.lower()").value == (
            "(False, {'output_tokens': 3}, 'bad')"
        )
        assert session.run("[each.ok for each in ask_all(['a', 'bad'])]").value == "[True, False]"
        assert session.run("[h.result() for h in begin.as_completed([begin('p')])]").value == (
            "['child 0']"
        )
        code = "try: ask('poor')\nexcept BudgetExceeded as error: print(error.message)"
        assert session.run(code).stdout == "3 of 3 calls are used\n"


def test_a_session_without_return_types_does_not_load_them(sandbox: Sandbox) -> None:
    look = "import sys\n'repl_sandbox.worker.return_types' in sys.modules"
    for host, loaded in (({}, False), ({"f": ask}, False), ({"f": TEXT}, True)):
        with sandbox.session(host=host) as session:
            assert session.run(look).value == str(loaded)


async def test_an_asynchronous_session_with_return_types_serves_beside_plain_ones(
    sandbox: Sandbox,
) -> None:
    face = AsyncSandbox.of(sandbox)
    before = sandbox.statistics().open
    async with face, face.session(host={"ask": TEXT}) as session:
        with sandbox.session(host={"ask": TEXT}) as plain:
            assert face.statistics().open == before + 2
            assert (await session.run("ask('a').ok")).value == "True"
            assert plain.run("ask('a').ok").value == "True"
    await face.close()
    assert face.plain is sandbox
    with sandbox.session() as plain:  # a parent's sandbox stays open
        assert plain.run("1 + 1").value == "2"
    async with await face.with_shared(text="abc") as shared, shared.session() as session:
        assert (await session.run("text")).value == "'abc'"
    with pytest.raises(TypeError, match="sandbox"):
        AsyncSandbox.of(face)  # type: ignore[arg-type]
