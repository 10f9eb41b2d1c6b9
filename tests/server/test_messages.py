"""What came over a socket waits in order, and who gives up waiting for it has taken nothing."""

import asyncio

from repl_server.messages import Messages


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
