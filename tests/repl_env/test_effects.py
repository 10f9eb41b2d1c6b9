"""A turn does the same for plain and asynchronous callers."""

import pytest

from repl_env.episode.effects import run_async, run_blocking


def adding(first, second):
    return (yield first) + (yield second)


def recovering(request):
    try:
        return (yield request)
    except KeyError as error:
        return f"caught {error}"


def failing():
    raise KeyError("k")


async def later(value):
    return value


def test_a_turn_gets_what_it_asks_for():
    assert run_blocking(adding(lambda: 1, lambda: 2)) == 3


async def test_an_asynchronous_turn_also_awaits():
    assert await run_async(adding(lambda: 1, lambda: later(2))) == 3


async def test_a_turn_handles_the_errors_of_what_it_asked_for():
    assert run_blocking(recovering(failing)) == "caught 'k'"
    assert await run_async(recovering(failing)) == "caught 'k'"


async def test_errors_that_a_turn_does_not_handle_reach_the_caller():
    with pytest.raises(KeyError):
        run_blocking(adding(failing, failing))
    with pytest.raises(KeyError):
        await run_async(adding(failing, failing))


def test_a_turn_that_asks_for_nothing_returns_at_once():
    def nothing():
        return 5
        yield

    assert run_blocking(nothing()) == 5
