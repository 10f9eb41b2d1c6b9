"""Exceptions of host functions: a session catches them as their built-in base class."""

from __future__ import annotations

import asyncio
import builtins
import json
import pickle
from collections.abc import Iterator

import pytest

from repl_sandbox import AsyncSandbox, HostFunction, Outcome, Sandbox
from repl_sandbox.session.batch import SessionBatch
from repl_sandbox.worker.host_stubs import host_error


class Wrong(ValueError):
    """A class of the host's own."""


class Own(Exception):
    """A class without a built-in base other than Exception."""


class Mute(KeyError):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Ends(StopIteration):
    pass


def _decode_error() -> UnicodeDecodeError:
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte")


# An exception; the class that catches it; its text in the session.
CAUGHT: list[tuple[BaseException, str, str]] = [
    (ValueError("no"), "ValueError", "no"),
    (ValueError(), "ValueError", ""),
    (KeyError("a"), "KeyError", "'a'"),
    (KeyError("a"), "LookupError", "'a'"),
    (FileNotFoundError(2, "No such file", "x"), "OSError", "[Errno 2] No such file: 'x'"),
    (FileNotFoundError(2, "No such file", "x"), "FileNotFoundError", "[Errno 2] No such file: 'x'"),
    (TimeoutError("late"), "TimeoutError", "late"),
    (SyntaxError("bad"), "SyntaxError", "bad"),
    (MemoryError("full"), "MemoryError", "full"),
    (UserWarning("w"), "Warning", "w"),
    (json.JSONDecodeError("x", "doc", 0), "ValueError", "x: line 1 column 1 (char 0)"),
    (Wrong("own"), "ValueError", "own"),
    (Mute("a"), "KeyError", "<its message cannot be shown: __str__ raised RuntimeError>"),
    (type("no name", (IndexError,), {})("odd"), "IndexError", "odd"),
]
# No exception of these classes can be made, or Python itself reacts to them.
PLAIN: list[BaseException] = [
    Own("x"), _decode_error(), ExceptionGroup("many", [ValueError()]), StopIteration(1), Ends(),
    StopAsyncIteration(), SystemExit(3), KeyboardInterrupt(), GeneratorExit(),
    asyncio.CancelledError(),
]  # fmt: skip

CODE = """
seen = []
try:
    fail()
except {catch} as error:
    seen = [isinstance(error, HostCallError), str(error), error.message, error.type]
seen
"""


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_an_error_is_of_the_built_in_class_that_it_derives_from(
    sandbox: Sandbox, kind: str
) -> None:
    raised: list[BaseException] = []

    def plain() -> None:
        raise raised[-1]

    async def coroutine() -> None:
        await asyncio.sleep(0)
        raise raised[-1]

    fail = plain if kind == "plain" else coroutine
    with sandbox.session(host={"fail": fail}) as session:
        for error, catch, text in CAUGHT:
            raised.append(error)
            outcome = session.run(CODE.format(catch=catch))
            assert outcome.value == repr([True, text, text, type(error).__name__])
        for error in PLAIN:
            if kind == "coroutine" and isinstance(error, (StopIteration, StopAsyncIteration)):
                continue  # Python turns it into a RuntimeError
            raised.append(error)
            code = "try: fail()\nexcept Exception as error: kept = error\n"
            outcome = session.run(f"{code}type(kept).__mro__[1] is Exception, kept.type")
            assert outcome.value in (
                repr((True, type(error).__name__)),
                repr((True, "Cancelled")),  # a coroutine, which the host has then cancelled
            )


# An exception, and the attributes that code reads besides its text.
READ: list[tuple[BaseException, str, object]] = [
    (FileNotFoundError(2, "No such file", "x"), "errno", 2),
    (FileNotFoundError(2, "No such file", "x"), "strerror", "No such file"),
    (FileNotFoundError(2, "No such file", "x"), "filename", "x"),
    (FileNotFoundError(2, "No such file", "x"), "args", (2, "No such file")),
    (FileNotFoundError(2, "No such file", "a", None, "b"), "errno", 2),
    (FileNotFoundError(2, "No such file", "it's"), "strerror", 'No such file: "it\'s"'),
    (ConnectionResetError(104, "reset"), "args", (104, "reset")),
    (BlockingIOError(11, "again"), "errno", 11),
    (OSError(5, "a\nb: 'c'"), "strerror", "a\nb"),
    (OSError("no number"), "errno", None),
    (OSError("[Errno x] y"), "args", ("[Errno x] y",)),
    (KeyError("a"), "args", ("a",)),
    (KeyError(5), "args", (5,)),
    (KeyError("it's"), "args", ('"it\'s"',)),
    (KeyError("9" * 5_000), "args", ("9" * 5_000,)),
    (KeyError(), "args", ("",)),
    (SyntaxError("bad"), "msg", "bad"),
    (ModuleNotFoundError("no m"), "msg", "no m"),
]


@pytest.mark.parametrize(("error", "name", "value"), READ)
def test_an_error_has_the_attributes_that_its_text_mentions(
    error: BaseException, name: str, value: object
) -> None:
    made = host_error(type(error).__name__, str(error))
    for each in (made, pickle.loads(pickle.dumps(made))):
        assert getattr(each, name) == value
        assert str(each) == str(error)


@pytest.mark.parametrize("kind", ["generator", "returned", "awaited"])
def test_an_exception_of_a_generator_is_the_error_of_its_function(
    sandbox: Sandbox, kind: str
) -> None:
    def generator() -> Iterator[int]:
        yield 1
        raise ValueError("in its body")

    async def awaited() -> Iterator[int]:
        return generator()

    fail = {"generator": generator, "returned": lambda: generator(), "awaited": awaited}[kind]
    with sandbox.session(host={"fail": fail}) as session:
        outcome = session.run("try: fail()\nexcept ValueError as error: print(error)")
        assert outcome.stdout == "in its body\n"


def test_an_argument_s_own_error_has_no_other_as_its_context(sandbox: Sandbox) -> None:
    code = "def given():\n    yield 1\n    raise KeyError('own')\ntake(given())"
    with sandbox.session(host={"take": lambda given: None}) as session:
        error = session.run(code).error
        assert error is not None
        assert error.type == "KeyError"
        assert "During handling" not in error.traceback


def test_session_drivers_and_host_functions_raise_alike(sandbox: Sandbox, open_python: str) -> None:
    def fail() -> None:
        raise Wrong("no")

    code = "try:\n    fail()\nexcept ValueError as error:\n    print('fallback', error)"
    host = {"fail": fail}
    offered = {"fail": HostFunction(fail, returns="text")}
    outcomes: list[Outcome] = []
    for each in (host, offered):
        with sandbox.session(host=each) as session:
            outcomes.append(session.run(code))
    with sandbox.session(host=host) as one, sandbox.session(host=host) as other:
        outcomes += SessionBatch().run([(one, code, None), (other, code, None)])

    async def by_loop() -> Outcome:
        async with AsyncSandbox(isolation="process", python=open_python) as made:
            async with made.session(host=host) as session:
                return await session.run(code)

    outcomes.append(asyncio.run(by_loop()))
    assert [outcome.stdout for outcome in outcomes] == ["fallback no\n"] * 5


def test_an_error_says_that_it_is_of_the_host_and_gets_no_hint(sandbox: Sandbox) -> None:
    def fail() -> None:
        raise MemoryError("full")

    with sandbox.session(host={"fail": fail}) as session:
        error = session.run("fail()").error
    assert error is not None
    assert (error.type, error.message) == ("host.MemoryError", "full")
    assert error.traceback.endswith("\nhost.MemoryError: full\n")


def test_errors_are_copied_pickled_and_kept_in_checkpoints() -> None:
    def fail() -> None:
        raise KeyError("a")

    code = (
        "import copy, pickle\ntry: fail()\nexcept KeyError as error: kept = error\n"
        "kept.add_note('n')\n"
        "both = [copy.copy(kept), pickle.loads(pickle.dumps(kept))]\n"
        "[(type(e) is type(kept), str(e), e.type, e.__notes__) for e in both]"
    )
    with Sandbox() as jailed, jailed.session(host={"fail": fail}) as session:
        assert session.run(code).value == str([(True, "'a'", "KeyError", ["n"])] * 2)
        assert session.run("again = type(kept)('other')\nagain.type, str(again)").ok
        saved = session.checkpoint()
        with jailed.restore(saved, host={"fail": fail}) as restored:
            code = "isinstance(kept, KeyError), isinstance(kept, HostCallError), str(kept)"
            assert restored.run(code).value == str((True, True, "'a'"))


def test_every_class_of_python_has_its_own() -> None:
    for name, cls in vars(builtins).items():
        if isinstance(cls, type) and issubclass(cls, BaseException):
            made = host_error(name, "text", name)
            assert made.type == name
            assert made.message == "text"
            if isinstance(made, cls) and type(made).__name__ == name:
                assert (str(made), made.args) == ("text", ("text",))
