"""A reset that opened no session is repeated, and opens no session twice."""

import pytest

from repl_env import REPLEnv
from repl_env.errors import CapacityReached, ServerUnavailable
from tests.repl_env.client.scripted_server import Scripted, answered, begun, observation, served


async def reset(server):
    async with REPLEnv(server.url) as env:
        return await env.reset()


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_handshake_that_a_proxy_refused_is_repeated(status):
    answers = iter([answered(status)] * 2)
    with Scripted(answer=lambda request: next(answers, lambda _: None)(request)) as server:
        await reset(server)

    assert (len(server.handshakes), server.kinds) == (3, ["open", "reset", "close"])


async def stopping(peer):
    await peer.refuse(await peer.next("open"), "DRAINING")
    await peer.close(1012)


async def test_a_session_refused_by_a_stopping_server_is_opened_on_the_next_one():
    with Scripted(stopping, stopping, served) as server:
        await reset(server)

    assert server.kinds == ["open", "open", "open", "reset", "close"]


async def test_a_reset_refused_by_a_stopping_server_gets_a_new_session():
    async def stops_later(peer):
        await begun(peer)
        await peer.refuse(await peer.next("reset"), "DRAINING")
        await peer.close(1012)

    with Scripted(stops_later, served) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            await env.reset()

    begun_with = [kind for kind in server.kinds if kind in ("open", "reset")]
    assert begun_with == ["open", "reset", "reset", "open", "reset"]


async def drops(peer):
    await peer.next("open")
    peer.drop()


async def full(peer):
    await peer.refuse(await peer.next("open"), "CAPACITY_REACHED")


async def fails(peer):
    await peer.refuse(await peer.next("open"), "FACTORY_ERROR")


async def closes_an_episode(peer):
    await peer.session()
    await peer.reply(await peer.next("reset"), observation())
    await peer.refuse(await peer.next("step"), "DRAINING")
    await peer.close(1012)


@pytest.mark.parametrize(
    ("story", "error"),
    [(drops, ServerUnavailable), (full, CapacityReached), (fails, ServerUnavailable)],
)
async def test_a_session_that_may_have_been_opened_or_was_refused_is_not_repeated(story, error):
    with Scripted(story) as server:
        with pytest.raises(error):
            await reset(server)

    assert server.kinds.count("open") == 1


async def test_a_step_refused_by_a_stopping_server_is_not_repeated():
    with Scripted(closes_an_episode, served) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(ServerUnavailable):
                await env.execute("1")

    assert server.kinds.count("step") == 1
