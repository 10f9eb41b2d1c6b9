"""Stories of scripted servers, and a cell whose output shows which server answered."""

from __future__ import annotations

from tests.repl_env.client.scripted_server import begun


async def printed(env, code="print(1)", **options):
    """The output of one cell."""
    return (await env.execute(code, **options)).observation.result.stdout


async def resumed_to_the_end(peer):
    await peer.session()
    await peer.serve("the result")


async def before_the_request(peer):
    await begun(peer)
    peer.drop()


async def after_the_request(peer):
    await begun(peer)
    await peer.next("step")
    peer.drop()
