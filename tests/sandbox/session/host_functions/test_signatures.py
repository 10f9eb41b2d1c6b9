"""Parameters of a host function, as code in a session sees them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repl_sandbox import HostFunction, Raised, Sandbox, Session
from repl_sandbox.protocol.messages import Configure, FunctionSchema, decode
from repl_sandbox.session.host_functions import signature_of
from repl_sandbox.worker.host_stubs import stand_in
from tests.sandbox.protocol.message_examples import frame_of

NOTHING = object()
SECRET = "sk-0123456789abcdefghijklmnop"


def search(query: str, limit: int = 5, *, mode="fast", key=SECRET, by: list[str] | None = None):
    """Look for documents."""
    return [query, limit, mode, key is SECRET]


def every(a, b=(1, 2), /, c=None, *rest: int, d, e=-1.5, f=NOTHING, **more: str) -> dict[str, Any]:
    return {}


class Tool:
    """Made for calls."""

    def __call__(self, text: str, times: int = 2) -> str:
        return text * times

    def method(self, a, b=1): ...

    @classmethod
    def made(cls, a): ...

    @staticmethod
    def plain(a): ...


@functools.wraps(search)
def wrapper(*args: Any, **kwargs: Any) -> Any:
    return search("given", *args, **kwargs)


async def later(a, b=2): ...


EVERY = "(a, b=(1, 2), /, c=None, *rest: int, d, e=-1.5, f=..., **more: str) -> dict[str, Any]"
FUNCTIONS: dict[str, tuple[Any, str]] = {
    "search": (
        search,
        "(query: str, limit: int = 5, *, mode=..., key=..., by: list[str] | None = None)",
    ),
    "every": (
        every,
        EVERY,
    ),
    "tool": (Tool(), "(text: str, times: int = 2) -> str"),
    "method": (Tool().method, "(a, b=1)"),
    "made": (Tool.made, "(a)"),
    "plain": (Tool.plain, "(a)"),
    "part": (
        functools.partial(search, "q", mode="x"),
        "(limit: int = 5, *, mode=..., key=..., by: list[str] | None = None)",
    ),
    "lambda_": (lambda x, *, y={}: x, "(x, *, y={})"),
    "later": (later, "(a, b=2)"),
    "cached": (functools.cache(every), EVERY),
    "append": ([].append, "(object, /)"),
    "untold": (max, "(*args, **kwargs)"),
    "offered": (
        HostFunction(search, signature="(a, *, b={'x': 1}, c=1)"),
        "(a, *, b={'x': 1}, c=1)",
    ),
    "raw": (
        HostFunction(search, raw=("query",)),
        "(query: str, limit: int = 5, *, mode=..., key=..., by: list[str] | None = None)",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def session(open_python: str) -> Any:
    host = {name: function for name, (function, _) in FUNCTIONS.items()}
    with Sandbox(isolation="process", python=open_python) as sandbox:
        with sandbox.session(host=host) as session:
            yield session


@pytest.mark.parametrize("name", FUNCTIONS)
def test_inspect_and_help_show_the_real_parameters(session: Session, name: str) -> None:
    shown = FUNCTIONS[name][1]
    outcome = session.run(f"import inspect\nprint(inspect.signature({name}))\nhelp({name})")
    assert outcome.ok, outcome.error
    signature, _, helped = outcome.stdout.partition("\n")
    assert signature == shown
    assert f"{name}{shown}" in helped
    assert SECRET not in outcome.stdout


def test_the_docstring_and_defaults_can_be_read(session: Session) -> None:
    code = (
        "p = inspect.signature(search).parameters\n"
        "search.__doc__, p['limit'].default, str(p['mode'].default), p['limit'].annotation is int, "
        "p['key'].kind.name, search.__name__"
    )
    hints = session.run("import typing\ntyping.get_type_hints(search)['limit'] is int")
    assert hints.value == "True"
    assert session.run(f"import inspect\n{code}").value == str(
        ("Look for documents.", 5, "...", True, "KEYWORD_ONLY", "search")
    )


SHORT_SECRET = "hunter2"


def test_no_default_text_of_the_host_reaches_a_session(open_python: str) -> None:
    def plain(a=SHORT_SECRET, b=(SHORT_SECRET,), c="", d=(1, [2.5, None]), *, e=SHORT_SECRET): ...

    def data(a=b"hunter2", b=frozenset({SHORT_SECRET}), c=Path(SHORT_SECRET)): ...

    host = {
        "plain": plain,
        "data": data,
        "part": functools.partial(plain, b=SHORT_SECRET),
        "raw": HostFunction(plain, raw=("a",)),
        "typed": HostFunction(plain, returns="text"),
    }
    code = (
        "import inspect, gc\n"
        "for name in ('plain', 'data', 'part', 'raw', 'typed'):\n"
        "    tool = globals()[name]\n"
        "    print(inspect.signature(tool), vars(tool), tool.__wrapped__.__defaults__)\n"
        "    help(tool)\n"
        "print([each for each in gc.get_objects() if type(each).__name__ == 'StubSignature'])"
    )
    with Sandbox(isolation="process", python=open_python) as sandbox:
        with sandbox.session(host=host) as session:
            outcome = session.run(code)

    assert outcome.ok, outcome.error
    assert outcome.stdout.startswith("(a=..., b=..., c='', d=(1, [2.5, None]), *, e=...)")
    assert SHORT_SECRET not in outcome.stdout


def test_the_docstring_is_of_what_is_called(open_python: str) -> None:
    class Quiet:
        def __call__(self, a):
            """Asks."""

    host = {
        "part": functools.partial(functools.partial(search, "q"), 3),
        "quiet": Quiet(),
        "untold": lambda a: a,
    }
    with Sandbox(isolation="process", python=open_python) as sandbox:
        with sandbox.session(host=host) as session:
            value = session.run("part.__doc__, quiet.__doc__, untold.__doc__").value
    assert value == "('Look for documents.', 'Asks.', 'untold: a function of the host.')"


def test_defaults_are_the_host_s_own(session: Session) -> None:
    assert session.run("search('q')").value == "['q', 5, 'fast', True]"
    assert session.run("search(limit=1, query='q', mode='m')").value == "['q', 1, 'm', True]"


@pytest.mark.parametrize(
    "call",
    ["search()", "search(1, 2, 3)", "search('q', query='q')", "search('q', nothing=1)",
     "every(1)", "every(a=1, d=2)", "method()", "method(1, 2, 3)", "tool(b=1)", "later()",
     "part(1, 2)"],
)  # fmt: skip
def test_wrong_arguments_are_a_type_error_in_python_s_words(session: Session, call: str) -> None:
    name = call.partition("(")[0]
    names = {
        name: stand_in(name, signature) for name in FUNCTIONS if (signature := _signature(name))
    }
    with pytest.raises(TypeError) as expected:
        eval(call, dict(names))
    outcome = session.run(call)
    assert isinstance(outcome, Raised)
    assert outcome.error.type == "TypeError"
    assert outcome.error.message == str(expected.value)
    assert outcome.error.message.startswith(f"{name}() ")


def _signature(name: str) -> Any:
    function = FUNCTIONS[name][0]
    return function.parameters if isinstance(function, HostFunction) else signature_of(function)


def test_a_wrapper_that_takes_other_arguments_can_be_called(open_python: str) -> None:
    with Sandbox(isolation="process", python=open_python) as sandbox:
        with sandbox.session(host={"wrapper": wrapper}) as session:
            assert session.run("wrapper()").value == "['given', 5, 'fast', True]"
            shown = session.run("import inspect\nprint(inspect.signature(wrapper))").stdout
            assert shown.startswith("(query: str, limit: int = 5")
            outcome = session.run("try: wrapper(nothing=1)\nexcept TypeError as e: print(e)")
            assert outcome.stdout == "search() got an unexpected keyword argument 'nothing'\n"


def test_a_signature_crosses_whole() -> None:
    rows = tuple(FunctionSchema(name, signature=_signature(name)) for name in FUNCTIONS)
    assert decode(frame_of(Configure(rows))) == Configure(rows)


class Broken:
    @property
    def __signature__(self) -> inspect.Signature:
        raise RuntimeError("not now")

    def __call__(self, a: int) -> int:
        return a


@pytest.mark.parametrize(
    "function", [Broken(), eval(f"lambda {', '.join(f'p{n}' for n in range(200))}: 0")]
)
def test_a_function_without_a_signature_takes_any_arguments(function: Callable[..., Any]) -> None:
    assert signature_of(function) is None
