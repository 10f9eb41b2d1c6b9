"""Text and bytes as arguments of host functions: outside JSON, whole, and only where declared."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl_sandbox import Finished, HostFunction, Killed, Limits, Outcome, Sandbox
from repl_sandbox.errors import RemoteProtocolError
from repl_sandbox.protocol.connection import HostConnection, WorkerConnection
from repl_sandbox.protocol.frames import MAX_BLOB
from repl_sandbox.protocol.messages import Execute, HostCall, Ready
from repl_sandbox.protocol.values import MAX_PARTS, RawArgument, dump_json
from repl_sandbox.session.calls import MAX_OPEN_BYTES
from repl_sandbox.session.host_functions import arguments
from tests.sandbox.conftest import Clock

Cells = Callable[..., list[Outcome]]
MIB = 1 << 20


class Taken:
    """Arguments that a host function received."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        self.calls.append((args, kwargs))
        return len(self.calls)

    @property
    def contexts(self) -> list[Any]:
        return [kwargs["context"] for _, kwargs in self.calls]


def offer(function: Callable[..., Any], **arguments: Any) -> HostFunction:
    return HostFunction(function, raw=("context",), **arguments)


def test_text_and_bytes_arrive_unchanged(cells: Cells) -> None:
    taken = Taken()
    (outcome,) = cells(
        {"f": offer(taken)},
        "class Own(str): pass\n"
        "for context in ('', 'größe 🐍\\0', b'', b'\\xff\\0', bytearray(b'a'), memoryview(b'b'),\n"
        "                Own('own'), None, ['a', b'b', None, ''], ('c', 'd'), [], [None],\n"
        "                {'a': ['b']}, 5, ['a', 1], [['a']]):\n"
        "    f('p', context=context, other='o')",
    )
    assert isinstance(outcome, Finished), outcome.error
    assert taken.contexts == [
        *("", "größe 🐍\0", b"", b"\xff\0", b"a", b"b", "own", None),
        *(["a", b"b", None, ""], ["c", "d"], [], [None], {"a": ["b"]}, 5, ["a", 1], [["a"]]),
    ]
    assert all(type(each) in (str, bytes, list, dict, int, type(None)) for each in taken.contexts)
    assert all(
        call == (("p",), {"context": call[1]["context"], "other": "o"}) for call in taken.calls
    )


def test_lone_surrogates_arrive_as_replacement_characters(cells: Cells) -> None:
    taken = Taken()
    cells(
        {"f": offer(taken)}, "f(context='a\\ud800b\\udfff')", "f(context=['\\ud83d\\udc0d', 'x'])"
    )
    assert taken.contexts == ["a\ufffdb\ufffd", ["\ufffd\ufffd", "x"]]


def test_a_parameter_is_raw_by_position_too_where_a_signature_says_which(cells: Cells) -> None:
    taken = Taken()
    signature = "(prompt, context=None, *more)"
    (outcome,) = cells(
        {"f": offer(taken, signature=signature), "g": offer(taken)},
        "f('p', b'c', 'x'), f('p', context=b'c'), f(context=b'c', prompt='p')\ng('p', b'c')",
    )
    assert taken.calls == [
        (("p", b"c", "x"), {}),
        (("p",), {"context": b"c"}),
        ((), {"context": b"c", "prompt": "p"}),
        (("p", {"$bytes": "Yw=="}), {}),
    ]
    assert isinstance(outcome, Finished), outcome.error


def test_only_raw_parameters_take_bytes_as_they_are(cells: Cells) -> None:
    taken = Taken()
    cells({"f": offer(taken)}, "f(b'x')", "f(context=[b'x', 1])", "f(context={'a': b''})")
    assert taken.calls == [
        (({"$bytes": "eA=="},), {}),
        ((), {"context": [{"$bytes": "eA=="}, 1]}),
        ((), {"context": {"a": {"$bytes": ""}}}),
    ]


@pytest.mark.parametrize("size", [3 * MIB, 60 * MIB])
def test_a_large_context_is_copied_and_not_escaped(cells: Cells, size: int) -> None:
    lengths: list[tuple[str, int, str]] = []

    def measure(*, context: Any) -> None:
        lengths.append((type(context).__name__, len(context), str(context[-3:])))

    # As JSON each of these characters would take 6 bytes, and the second argument would not fit.
    (outcome,) = cells(
        {"f": offer(measure)},
        f"f(context='é' * ({size} // 2 - 3) + 'end')\nf(context=bytes({size}))",
    )
    assert isinstance(outcome, Finished), outcome.error
    assert lengths == [("str", size // 2, "end"), ("bytes", size, str(bytes(3)))]


def test_more_than_a_frame_carries_is_a_clear_error_and_the_session_goes_on(cells: Cells) -> None:
    taken = Taken()
    outcomes = cells(
        {"f": offer(taken)},
        f"f(context=bytes({MAX_BLOB}))",
        f"f(context=[bytes({MAX_BLOB} // 2)] * 3)",
        f"f(context=[b''] * {MAX_PARTS + 1})",
        f"f(context=['x'] * {MAX_PARTS + 1})",
        f"f(context=['x', None] * {MAX_PARTS // 2})",
        "f(context=[[0] * 300_000] * 4)",
    )
    messages = [outcome.error.message if outcome.error else "" for outcome in outcomes]
    assert "the arguments of f() are 67,108,8" in messages[0]
    assert "the limit is 67,108,864" in messages[1]
    assert messages[5] == "the arguments of f() have more than 1,048,576 values"
    # As much data as bytes or text in JSON.
    lengths = [len(context) for context in taken.contexts]
    assert lengths == [MAX_PARTS + 1, MAX_PARTS + 1, MAX_PARTS]


def test_arguments_of_open_calls_are_bounded_together(sandbox: Sandbox) -> None:
    # As many as fit; each call waits until one is refused.
    refused = asyncio.Event()
    held = 0

    async def hold(*, context: bytes) -> None:
        nonlocal held
        held += len(context)
        await refused.wait()

    async def let_go() -> None:
        refused.set()

    code = (
        "import threading\n"
        "def call():\n"
        "    try: hold(context=bytes(60 << 20))\n"
        "    except HostCallError as error: print(error.type); let_go()\n"
        "threads = [threading.Thread(target=call) for _ in range(5)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()"
    )
    with sandbox.session(host={"hold": offer(hold), "let_go": let_go}) as session:
        outcome = session.run(code)
    assert isinstance(outcome, Finished), outcome
    assert outcome.stdout == "TooManyCalls\n"
    assert held <= MAX_OPEN_BYTES


# ── the host's side ───────────────────────────────────────────────────────────────────────────

PLACES = frozenset({1, "context"})


def call(args: Any, *parts: Any) -> HostCall:
    return HostCall(1, 1, "f", dump_json(args), parts)


def test_parts_replace_the_null_placeholders() -> None:
    text, data = RawArgument("str", "é".encode()), RawArgument("bytes", b"\xff")
    assert arguments(call([["p", None], {}], (1, text)), PLACES) == (["p", "é"], {})
    given = call([["p", None], {"context": None}], (1, data), ("context", (text, None, data)))
    assert arguments(given, PLACES) == (["p", b"\xff"], {"context": ["é", None, b"\xff"]})


@pytest.mark.parametrize(
    "given",
    [
        call([[None], {}], (0, RawArgument("str", b"x"))),
        call([["p"], {}], (1, RawArgument("str", b"x"))),
        call([["p", "not null"], {}], (1, RawArgument("str", b"x"))),
        call([["p", []], {}], (1, RawArgument("str", b"x"))),
        call([[], {"other": None}], ("other", RawArgument("str", b"x"))),
        call([[], {}], ("context", RawArgument("str", b"x"))),
        call([[], {"context": "twice"}], ("context", RawArgument("str", b"x"))),
        call([[], {"context": None}], ("context", RawArgument("str", b"\xff\xfe"))),
        call([[], {"context": None}], ("context", (None, RawArgument("str", b"\xc3")))),
        call({"context": None}, ("context", RawArgument("str", b"x"))),
        call([[], None], ("context", RawArgument("str", b"x"))),
    ],
)
def test_a_part_without_a_placeholder_is_a_breach(given: HostCall) -> None:
    with pytest.raises(RemoteProtocolError):
        arguments(given, PLACES)


contents = st.binary(max_size=40) | st.text(st.characters(exclude_categories=()), max_size=20)


@given(st.lists(contents | st.lists(st.none() | contents, min_size=1, max_size=4), max_size=4))
@settings(deadline=None)
def test_raw_arguments_arrive_unchanged(held: list[Any]) -> None:
    def part(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, str):
            return RawArgument("str", value.encode("utf-8", "surrogatepass"))
        return RawArgument("bytes", value)

    def clean(value: Any) -> Any:
        if isinstance(value, list):
            return [clean(each) for each in value]
        if isinstance(value, str):
            return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in value)
        return value

    parts = tuple(
        (place, tuple(map(part, value)) if isinstance(value, list) else part(value))
        for place, value in enumerate(held)
    )
    host, worker = HostConnection(), WorkerConnection()
    list(host.receive(worker.send(Ready(2))))
    list(worker.receive(host.send(Execute(1, b""))))
    sent = HostCall(1, 1, "f", dump_json([[None] * len(held), {}]), parts)
    (taken,) = host.receive(worker.send(sent))
    assert taken == sent
    assert isinstance(taken, HostCall)
    assert arguments(taken, frozenset(range(len(held)))) == (clean(held), {})


# ── workers that break the rules ──────────────────────────────────────────────────────────────

RAW = """
import json, os, struct
def raw(parts, args, tail=b'', name='f'):
    header = dict(type='call', call=7, cell=CELL, name=name, parts=parts)
    head, blob = json.dumps(header).encode(), json.dumps(args).encode() + tail
    os.write(1000, struct.pack('!II', len(head), len(blob)) + head + blob)
CELL = int(__import__('sys')._getframe().f_code.co_filename.strip('<>').split()[-1])
"""
FORGED = {
    "a size beyond the blob": "raw([['context', 'str', 1 << 40]], [[], {'context': None}])",
    "a size below nothing": "raw([['context', 'str', -5]], [[], {'context': None}])",
    "sizes that eat the JSON": "raw([['context', 'str', 20]], [[], {'context': None}])",
    "sizes that leave bytes over": "raw([['context', 'str', 1]], [[], {'context': None}], b'xyz')",
    "an argument that is not raw": "raw([['other', 'str', 1]], [[], {'other': None}], b'x')",
    "a position without a signature": "raw([[0, 'str', 1]], [[None], {}], b'x')",
    "a position of nothing": "raw([[10**6, 'str', 1]], [[None], {}], b'x')",
    "a function that takes none": "raw([[0, 'str', 1]], [[None], {}], b'x', 'g')",
    "a place that is taken": "raw([['context', 'str', 1]], [[], {'context': 'a'}], b'x')",
    "a place twice": "raw([['context', 'str', 1]] * 2, [[], {'context': None}], b'xx')",
    "text that is none": "raw([['context', 'str', 1]], [[], {'context': None}], b'\\xff')",
    "a kind that is none": "raw([['context', 'pickle', 1]], [[], {'context': None}], b'x')",
    "a list in a list": "raw([['context', 'list', [['list', 1]]]], [[], {'context': None}], b'x')",
    "more parts than may be": "raw([['context', 'list', [None] * 20000]], [[], {'context': None}])",
    "no parts at all": "raw(None, [[], {}])",
}


@pytest.mark.parametrize("code", FORGED.values(), ids=FORGED)
def test_forged_parts_are_a_breach_and_reach_no_function(sandbox: Sandbox, code: str) -> None:
    taken = Taken()
    with sandbox.session(host={"f": offer(taken), "g": taken}) as session:
        session.run("x = 1")
        outcome = session.run(RAW + code + "\nwhile True: pass")
        assert isinstance(outcome, Killed)
        assert outcome.reason == "protocol"
        assert taken.calls == []
        assert session.run("f(context=b'still'), x").value == "(1, 1)"
    assert taken.contexts == [b"still"]


def test_a_forged_call_that_keeps_the_rules_is_a_call(sandbox: Sandbox) -> None:
    """Shows that the forgeries above fail for their specific fault."""
    taken = Taken()
    code = (
        "rows = [['str', 1], None, ['bytes', 2]]\n"
        "raw([['context', 'list', rows]], [[], {'context': None}], b'xyz')"
    )
    with sandbox.session(host={"f": offer(taken)}) as session:
        assert session.run(RAW + code + "\nos.read(1000, 100)").ok
    assert taken.contexts == [["x", None, b"yz"]]


def test_announced_sizes_allocate_no_memory(sandbox: Sandbox, clock: Clock) -> None:
    # The code ignores the interrupt, so it is killed.
    limits = Limits(timeout=60, grace=0.1)
    with sandbox.session(host={"f": offer(Taken())}, limits=limits) as session:
        session.run("f(context=b'')")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        session.run(
            RAW + "head = json.dumps(dict(type='call', call=7, cell=CELL, name='f',\n"
            "    parts=[['context', 'bytes', 60 << 20]])).encode()\n"
            "os.write(1000, struct.pack('!II', len(head), (60 << 20) + 9) + head)\n"
            "print('announced'); import time; time.sleep(1000)",
            on_output=clock.strike,
        )
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10  # KiB
        assert session.run("f(context=b'')").value == "2"
