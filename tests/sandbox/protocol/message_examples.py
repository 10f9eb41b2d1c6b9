"""An example of each message, the documented messages, and frames made from parts."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from repl_sandbox.errors import RemoteProtocolError
from repl_sandbox.protocol.frames import Frame, FrameReader
from repl_sandbox.protocol.messages import (
    MAX_COUNT,
    Answered,
    Assign,
    Configure,
    Default,
    Execute,
    Failed,
    Fetch,
    FunctionSchema,
    HostCall,
    HostReply,
    ListVariables,
    Load,
    Message,
    Parameter,
    Ready,
    Restored,
    Result,
    Save,
    Signature,
    Value,
    Variables,
    decode,
    encode,
)
from repl_sandbox.protocol.values import RawArgument, dump_json
from repl_sandbox.types import Answer, Change, Display, ErrorInfo, Variable

PROTOCOL = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
PNG = b"\x89PNG\r\n\x1a\n and the rest"
ERROR = ErrorInfo("ValueError", "no", "Traceback …\nValueError: no\n", 3)
CHANGE = Change("modified", "größe", "list", 88, "[1, 2, …]")

TAKES = Signature(
    (
        Parameter("p", 1, None, "int"),
        Parameter("c", 3, Default(None)),
        Parameter("d", 3, Default(text="...")),
    ),
    "list[str]",
    False,
)


DISPLAYS = (
    Display("größe 🐍", {"text/html": "<b>größe 🐍</b>", "application/json": "{}"}, is_value=True),
    Display("", {"text/markdown": "# größe"}),
)

EXAMPLES: dict[str, list[Message]] = {
    "ready": [Ready(1)],
    "restored": [Restored(0, ()), Restored(9, ("thread 'größe'", "a file"))],
    "configure": [
        Configure(),
        Configure(
            (
                FunctionSchema("llm_query", "Ask a model."),
                FunctionSchema("größe"),
                FunctionSchema("ask", "", "text", TAKES, ("c",), ("done", "result"), ("E",)),
            ),
            0,
            "strict",
        ),
        Configure((), MAX_COUNT - 1, "compatible"),
        Configure((), None, None, (Assign("x", "str", b""),)),
        Configure(
            (FunctionSchema("ask"),),
            variables=(Assign("größe", "json", b"[1]"), Assign("x", "bytes", b"\x00")),
        ),
    ],
    "execute": [
        Execute(1, b""),
        Execute(2, "print('größe \ud800')".encode("utf-8", "surrogatepass")),
    ],
    "assign": [Assign("x", "bytes", b"\x00\xff"), Assign("größe", "json", b"", 1 << 40)],
    "fetch": [Fetch("x"), Fetch("größe")],
    "list": [ListVariables()],
    "save": [Save(1, 0), Save((1 << 53) - 1, 1 << 50)],
    "load": [Load(1, b""), Load((1 << 53) - 1, b'{"variables":[]}')],
    "reply": [HostReply(1, True, b"null"), HostReply(MAX_COUNT - 1, False, b'["TypeError","no"]')],
    "call": [
        HostCall(1, 1, "llm_query", b"[[],{}]"),
        HostCall(0, 0, "", b""),
        HostCall(2, 1, "f", b"[[null],{}]", ((0, RawArgument("bytes", b"\x00\xff")),)),
        HostCall(
            3,
            1,
            "f",
            dump_json([[], {"a": None, "größe": None}]),
            (
                ("a", (RawArgument("str", "größe 🐍".encode()), None, RawArgument("bytes", b""))),
                ("größe", RawArgument("str", b"\xed\xa0\x80")),
            ),
        ),
    ],
    "answered": [
        Answered(1, 1, Answer("FINAL", "42", 42)),
        Answered(2, 1, Answer("answer", "größe 🐍", {"a": [1, None, 2.5, "🐍"]})),
        Answered(3, 1, Answer("printed", "x", "x", "FINAL(x)\nand more")),
        Answered(4, 1, Answer("SUBMIT", "", None, "")),
    ],
    "result": [
        Result(1, None, None, (), (), 0),
        Result(2, "größe 🐍", ERROR, (CHANGE, CHANGE), (PNG, PNG + b"2"), 1 << 33),
        Result(3, "", dataclasses.replace(ERROR, line=None), (), (PNG,), 1),
        Result(4, "größe 🐍", ERROR, (CHANGE, CHANGE), (PNG, PNG + b"2"), 1 << 33, DISPLAYS),
    ],
    "value": [Value(b"null"), Value(b"")],
    "variables": [Variables(()), Variables((Variable("x", "int", 28, "6"),) * 3)],
    "failed": [
        Failed("unknown", "no variable 'x'"),
        Failed("not json", ""),
        Failed("too large", ""),
    ],
}
# Messages whose header is not JSON: the kind, and the numbers.
SHORT = [
    (Execute(3, b"x = 1"), 1, (3,)),
    (Execute(MAX_COUNT - 1, b""), 1, (MAX_COUNT - 1,)),
    (Result(1, None, None, (), (), 0), 2, (1, 0)),
    (Result(0, None, None, (), (), MAX_COUNT - 1), 2, (0, MAX_COUNT - 1)),
]
ALL = [pytest.param(m, id=f"{kind}-{n}") for kind, ms in EXAMPLES.items() for n, m in enumerate(ms)]


def frame_of(message: Message) -> Frame:
    reader = FrameReader()
    reader.feed(encode(message))
    frame = reader.next_frame()
    assert frame is not None
    assert reader.buffered == 0
    return frame


def make(header: object, blob: bytes = b"") -> Frame:
    return Frame(json.dumps(header).encode(), blob)


def refused(frame: Frame, match: str = ".") -> None:
    with pytest.raises(RemoteProtocolError, match=match):
        decode(frame)


ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \| (host|worker) \| (.*?) \|", re.MULTILINE)
DOCUMENTED = {
    kind: (name, side, tuple(re.findall(r"`(\w+)`", fields)))
    for kind, name, side, fields in ROW.findall(PROTOCOL)
}
