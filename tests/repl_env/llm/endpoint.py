"""An OpenAI-compatible endpoint on loopback that answers and fails as a test configures it.

The fixture `endpoint` (tests/conftest.py) makes them, each in a thread of its own:

```python
def test_it(endpoint):
    served = endpoint("yes")                         # each question is answered "yes"
    model = OpenAIModel("m", base_url=served.base_url, api_key="k")
    ...
    assert served.requests[0].headers["authorization"] == "Bearer k"
    assert served.requests[0].prompt == "..."        # text of the last message
    assert served.most_in_flight == 1
```
What it is given is one answer for all, a list (one after the other, the last one for ever), or a
function of the `Asked` request; that may be asynchronous, and a plain one must not block. An answer
is text or one of

| answer | what is sent | | --- | --- | | `Reply(text, ...)` | a completion, in pieces if the
request has `"stream": true` | | `Status(429, headers={"retry-after": "0"})` | a status with a body,
`Status(500, HTML)` | | `Raw(b"...")` | 200 and these bytes, whatever they are | | `Cut(text)` |
half of a completion, or of a stream, then the connection is closed | | `Drop()` | the connection is
closed without a byte | | `Hang()` | nothing, until the client goes away or the endpoint is closed |

All have `delay=` seconds before the first byte. Counts of tokens are words, as `ScriptedModel` has
them; `Reply(usage=...)` has others. Without pytest: `with Endpoint("yes") as served: ...`. As a
process, for measuring: `python -m tests.repl_env.llm.endpoint --delay 0.05` prints its URL and
serves until its standard input is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

HTML = "<!DOCTYPE html><html><body><h1>502 Bad Gateway</h1></body></html>"


@dataclass(frozen=True)
class Asked:
    """One request, as received. Names of headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        """The text of the last message."""
        content = self.body["messages"][-1]["content"]
        return content if isinstance(content, str) else "".join(part["text"] for part in content)

    @property
    def stream(self) -> bool:
        """Whether the answer is asked for in pieces."""
        return self.body.get("stream") is True


@dataclass(frozen=True)
class Reply:
    """A completion. `pieces` are those of a stream.

    `usage` "words" counts words, None sends none, all else is sent as it is. `tokens` are the ids
    of the prompt, the ids of the answer and their log-probabilities; each is sent if the request
    asks for it. `message`, `choice` and `body` are merged into that part of the response.
    """

    text: str | None
    finish_reason: str | None = "stop"
    usage: Any = "words"
    delay: float = 0.0
    pieces: int = 3
    tokens: tuple[Sequence[int], Sequence[int], Sequence[float]] | None = None
    message: Mapping[str, Any] = field(default_factory=dict)
    choice: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Status:
    """A status other than 200. A body that is no str is sent as JSON."""

    code: int
    body: Any = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0


@dataclass(frozen=True)
class Raw:
    """Status 200 and these bytes."""

    body: bytes
    type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0


@dataclass(frozen=True)
class Cut:
    """Half an answer."""

    text: str = "half of what was"
    delay: float = 0.0


@dataclass(frozen=True)
class Drop:
    """No answer, and no connection."""

    delay: float = 0.0


@dataclass(frozen=True)
class Hang:
    """No answer for as long as the client waits."""

    delay: float = 0.0


Answer: TypeAlias = str | Reply | Status | Raw | Cut | Drop | Hang
Answers: TypeAlias = Answer | Sequence[Answer] | Callable[[Asked], "Answer | Awaitable[Answer]"]


class Endpoint:
    """The server. `requests` are those made so far, `most_in_flight` how many at once at most.

    `left` is set once a client has gone away from a `Hang`.
    """

    def __init__(self, answers: Answers = "ok") -> None:
        self.requests: list[Asked] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.connections = 0
        self.left = threading.Event()
        self._idle = threading.Event()
        self._closed = threading.Event()
        self._answers = [answers] if isinstance(answers, Answer) else answers
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake endpoint", daemon=True)

    def __enter__(self) -> Endpoint:
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server; later requests find no listener. Safe to call twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def wait_idle(self, timeout: float) -> bool:
        """Whether no request is in flight within so many seconds, of one that was at least."""
        return self._idle.wait(timeout)

    def wait_closed(self, timeout: float) -> bool:
        """Whether no connection is open within so many seconds, of one that was at least."""
        return self._closed.wait(timeout)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()
            self._listening.set()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=1024)
        port = server.sockets[0].getsockname()[1]
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self._listening.set()
        await self._stop.wait()
        server.close()
        for _ in range(9):  # the last admitted task has begun, and can be cancelled
            await asyncio.sleep(0)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # the transports close before the loop does

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._closed.clear()
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        try:
            while (asked := await _read(reader)) is not None and await self._answer(
                asked, reader, writer
            ):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has gone away, or the endpoint is closed
        finally:
            self._tasks.discard(task)
            writer.close()  # which may have to wait for who does not read: it is kept to be ended
            if not self._tasks:
                self._closed.set()

    async def _answer(
        self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; whether the connection may serve another."""
        self._idle.clear()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            answer = await self._choose(asked)
            if answer.delay:
                await asyncio.sleep(answer.delay)
            match answer:
                case Hang():
                    await reader.read()
                    self.left.set()
                    return False
                case Drop():
                    return False
                case Cut(text=text):
                    sent = b"".join([part async for part in _completion(asked, Reply(text))])
                    writer.write(sent[: len(sent) // 2])
                    await writer.drain()
                    return False
                case Status():
                    writer.write(_status(answer))
                case Raw(body=body, type=kind):
                    writer.write(_head(200, kind, len(body), answer.headers) + body)
                case Reply():
                    async for part in _completion(asked, answer):
                        writer.write(part)
            await writer.drain()
            return True
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def _choose(self, asked: Asked) -> Reply | Status | Raw | Cut | Drop | Hang:
        number = len(self.requests)
        self.requests.append(asked)
        if not asked.path.endswith("/chat/completions"):
            return Status(404, {"error": {"message": f"there is no {asked.path}"}})
        if callable(self._answers):
            try:
                answer = self._answers(asked)
                if inspect.isawaitable(answer):
                    answer = await answer
            except Exception as error:  # noqa: BLE001 - the test's function; the test must see it
                return Status(418, {"error": {"message": f"the test's function: {error!r}"}})
        else:
            answer = self._answers[min(number, len(self._answers) - 1)]
        return Reply(answer) if isinstance(answer, str) else answer


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    """The next request; None if there is no further one."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    if "chunked" in headers.get("transfer-encoding", ""):
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, path, headers, json.loads(body) if body else {})


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


def _head(code: int, kind: str, length: int | None, headers: Mapping[str, str] = {}) -> bytes:
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {code} Status\r\ncontent-type: {kind}\r\n{framing}\r\n{more}\r\n".encode()


def _status(answer: Status) -> bytes:
    text = isinstance(answer.body, str)
    body = (answer.body if text else json.dumps(answer.body)).encode()
    kind = "text/html" if text else "application/json"
    return _head(answer.code, kind, len(body), answer.headers) + body


async def _completion(asked: Asked, reply: Reply) -> AsyncIterator[bytes]:
    if not asked.stream:
        body = json.dumps(_whole(asked, reply)).encode()
        yield _head(200, "application/json", len(body)) + body
        return
    yield _head(200, "text/event-stream", None)
    for event in [json.dumps(chunk) for chunk in _chunks(asked, reply)] + ["[DONE]"]:
        data = f"data: {event}\n\n".encode()
        yield f"{len(data):x}\r\n".encode() + data + b"\r\n"
    yield b"0\r\n\r\n"


def _base(asked: Asked, reply: Reply, kind: str) -> dict[str, Any]:
    model = asked.body.get("model")
    return {"id": "c-1", "object": kind, "created": 1, "model": model, **reply.body}


def _whole(asked: Asked, reply: Reply) -> dict[str, Any]:
    message = {"role": "assistant", "content": reply.text, **reply.message}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
    body = {"choices": [{**choice, **_tokens(asked, reply, 0, 1), **reply.choice}]}
    if reply.usage is not None:
        body["usage"] = _usage(asked, reply)
    return {**_prompt_tokens(asked, reply), **body, **_base(asked, reply, "chat.completion")}


def _chunks(asked: Asked, reply: Reply) -> list[dict[str, Any]]:
    """The parts of a stream: the role, the pieces of the text, the reason, the usage."""
    base = _base(asked, reply, "chat.completion.chunk")
    text, many = reply.text or "", reply.pieces
    edges = [len(text) * number // many for number in range(many + 1)]
    deltas: list[dict[str, Any]] = [{"delta": {"role": "assistant", **reply.message}}]
    for number, (start, end) in enumerate(pairwise(edges)):
        delta = {"content": text[start:end] if reply.text is not None else None}
        deltas.append({"delta": delta, **_tokens(asked, reply, number, many)})
    deltas.append({"delta": {}, "finish_reason": reply.finish_reason, **reply.choice})
    events = [{**base, "choices": [{"index": 0, "finish_reason": None, **d}]} for d in deltas]
    events[0].update(_prompt_tokens(asked, reply))
    if reply.usage is not None and (asked.body.get("stream_options") or {}).get("include_usage"):
        events.append({**base, "choices": [], "usage": _usage(asked, reply)})
    return events


def _usage(asked: Asked, reply: Reply) -> Any:
    if reply.usage != "words":
        return reply.usage
    given = sum(len(str(message["content"]).split()) for message in asked.body["messages"])
    made = len((reply.text or "").split())
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def _prompt_tokens(asked: Asked, reply: Reply) -> dict[str, Any]:
    if reply.tokens is None or not asked.body.get("return_token_ids"):
        return {}
    return {"prompt_token_ids": list(reply.tokens[0])}


def _tokens(asked: Asked, reply: Reply, part: int, parts: int) -> dict[str, Any]:
    """Part number `part` of `parts` of the answer's tokens, as vLLM has them in a choice."""
    if reply.tokens is None:
        return {}
    _, ids, logprobs = reply.tokens
    share = slice(len(ids) * part // parts, len(ids) * (part + 1) // parts)
    found: dict[str, Any] = {}
    if asked.body.get("return_token_ids"):
        found["token_ids"] = list(ids[share])
    if asked.body.get("logprobs"):
        entries = [
            {"token": f"t{i}", "logprob": p, "bytes": None, "top_logprobs": []}
            for i, p in zip(ids[share], logprobs[share], strict=True)
        ]
        found["logprobs"] = {"content": entries, "refusal": None}
    return found


def main() -> None:
    """Serve until standard input is closed."""
    parser = argparse.ArgumentParser(prog="python -m tests.repl_env.llm.endpoint")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--text", default="ok", help="each answer")
    options = parser.parse_args()
    with Endpoint(Reply(options.text, delay=options.delay)) as served:
        print(served.base_url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
