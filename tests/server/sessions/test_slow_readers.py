"""A client that does not read is bounded and closed, without effects on others."""

import asyncio
import json

from repl_server.handlers import OutputStream
from repl_server.protocol import ClientRequest, ServerReply
from repl_server.session import PendingRequest
from tests.server.conftest import peer, serving
from tests.server.raw_connections import frame, wire
from tests.waiting import eventually

MIB = 1 << 20


class Slow:
    """An outlet that takes a reply whenever it is let."""

    gone = False
    blocked_since = None

    def __init__(self):
        self.taken, self.lets = [], asyncio.Semaphore(0)

    async def deliver(self, id, reply: ServerReply):
        await self.lets.acquire()
        self.taken.append(json.loads(reply.data))


async def test_output_that_a_slow_reader_misses_is_dropped_and_counted():
    slow = Slow()
    streamed = OutputStream(PendingRequest(ClientRequest("step", None, id="1"), slow))
    async with streamed:
        for _ in range(100):
            streamed.add("stdout", "o" * 10_000)
            streamed.add("stderr", "e" * 10)
            await asyncio.sleep(0)
        assert slow.taken == []
        for _ in range(1000):
            slow.lets.release()
    texts = {"stdout": "", "stderr": ""}
    dropped = {"stdout": 0, "stderr": 0}
    for each in slow.taken:
        texts[each["stream"]] += each["text"]
        dropped[each["stream"]] += each.get("dropped", 0)
        assert each.get("dropped", 1) > 0

    assert len(texts["stdout"]) + dropped["stdout"] == 1_000_000
    assert len(texts["stderr"]) + dropped["stderr"] == 1_000
    assert dropped["stdout"] > 900_000 and len(texts["stdout"]) > 10_000


async def test_nothing_is_buffered_for_a_disconnected_reader():
    slow = Slow()
    slow.gone = True
    streamed = OutputStream(PendingRequest(ClientRequest("step", None, id="1"), slow))
    async with streamed:
        streamed.add("stdout", "x")
    assert slow.taken == []


async def test_a_client_that_never_reads_is_closed_and_its_session_ends():
    with serving({"send_s": 0.2, "grace_s": 0.05}) as server, peer(server) as other:
        other.reset(max_iterations=1000)
        async with wire(server.port) as deaf:
            await deaf.open_socket()
            deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await deaf.send(frame(b'{"type": "reset", "data": {"max_iterations": 100000}}'))
            step = frame(b'{"type": "step", "data": {"code": "print(\'x\' * 8000)"}}')
            eventually(lambda: len(server.manager.sessions) == 2)
            while len(server.manager.sessions) == 2:
                try:
                    async with asyncio.timeout(0.2):
                        await deaf.send(step * 20)
                except (TimeoutError, OSError):
                    await asyncio.sleep(0.01)
        assert other.run("1")["value"] == "1"
