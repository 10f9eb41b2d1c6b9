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


def test_a_generator_receives_the_results_of_its_effects():
    assert run_blocking(adding(lambda: 1, lambda: 2)) == 3


async def test_an_asynchronous_driver_also_awaits():
    assert await run_async(adding(lambda: 1, lambda: later(2))) == 3


async def test_a_generator_handles_the_errors_of_its_effects():
    assert run_blocking(recovering(failing)) == "caught 'k'"
    assert await run_async(recovering(failing)) == "caught 'k'"


async def test_unhandled_errors_of_effects_reach_the_caller():
    with pytest.raises(KeyError):
        run_blocking(adding(failing, failing))
    with pytest.raises(KeyError):
        await run_async(adding(failing, failing))


def test_a_generator_without_effects_returns_at_once():
    def nothing():
        return 5
        yield

    assert run_blocking(nothing()) == 5
