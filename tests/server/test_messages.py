"""What came over a socket waits in order, and who gives up waiting for it has taken nothing."""

import asyncio

import uvloop

from repl_server.messages import Messages
from repl_server.paced_frames import AT_ONCE, PacedFrames
from repl_server.settings import Settings
from tests.server.wires import CONTINUED, frame, serve, wire


def test_messages_are_taken_in_their_order():
    async def main():
        messages = Messages(asyncio.get_running_loop())
        for each in "abc":
            messages.put_nowait(each)
        return [messages.take() for _ in range(3)], messages.empty()

    assert asyncio.run(main()) == (["a", "b", "c"], True)


def test_who_waits_is_told_of_the_first_and_expects_no_second():
    async def main():
        messages = Messages(asyncio.get_running_loop())
        assert not messages.expected
        coming = messages.coming()
        assert messages.expected
        messages.put_nowait("first")
        expected = messages.expected
        messages.put_nowait("second")
        await coming
        return expected, messages.take(), messages.take()

    assert asyncio.run(main()) == (False, "first", "second")


def test_who_gives_up_waiting_has_taken_nothing():
    async def take(messages):
        while messages.empty():
            await messages.coming()
        return messages.take()

    async def main():
        messages = Messages(asyncio.get_running_loop())
        first = asyncio.create_task(take(messages))
        await asyncio.sleep(0)
        messages.put_nowait("message")
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(take(messages))
        await asyncio.sleep(0)
        return first.cancelled(), await second

    assert asyncio.run(main()) == (True, "message")


def test_a_flood_of_fragments_is_read_a_few_at_a_time(monkeypatch):
    """However many of its messages are expected, one connection has one turn among the others'."""
    batches, most = 0, 0
    receive_data = PacedFrames.receive_data

    def counting(self, data):
        nonlocal batches
        batches += 1
        return receive_data(self, data)

    monkeypatch.setattr(PacedFrames, "receive_data", counting)
    fragments = [frame(b"", CONTINUED, fin=False)] * (20 * AT_ONCE - 2)
    message = frame(b"", fin=False) + b"".join(fragments) + frame(b"", CONTINUED)
    received, all_came = 0, asyncio.Event()

    async def app(scope, receive, send):
        nonlocal received
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] == "websocket.receive":
            received += 1
            if received == 40:
                all_came.set()

    async def count_turns():
        nonlocal batches, most
        while True:
            await asyncio.sleep(0)
            batches, most = 0, max(most, batches)

    async def main():
        async with serve(app, Settings()) as served, wire(served.port) as client:
            await client.open_socket()
            counting_turns = asyncio.create_task(count_turns())
            await client.send(message * 40)
            await all_came.wait()
            counting_turns.cancel()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), 60))
    # What came, and what rests of it; and once more where the two fall into one turn.
    assert most <= 3
