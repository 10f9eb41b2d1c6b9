"""Generated tasks: the same everywhere, of the size asked for, with answers that are right."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from repl_env.tasks.generators import KINDS, make_task

from .answer_readers import read_again

# Checksums of the records of ten tasks each, equal in each version of Python. A changed generator
# makes other data sets of the same name, which the changelog has to say.
DIGESTS = {
    "single_needle": "dcca5abf500bf77a09876d11378365d4",
    "multi_needle": "091e86db695a1923f35e882dc247b4d1",
    "aggregation": "5e7dbd636f195b1631595d6c4233bf56",
    "pairs": "c8143fe5f9bffc7f9835496860c272af",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_arguments_make_the_same_bytes(kind: str) -> None:
    digest = hashlib.sha256()
    for size in (1_000, 50_000):
        for seed in range(5):
            record = make_task(kind, size, seed).record()
            digest.update(json.dumps(record, sort_keys=True).encode())

    assert digest.hexdigest()[:32] == DIGESTS[kind]


@pytest.mark.parametrize("size", [1_000, 1_777, 20_000])
@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_what_reading_the_context_gives(kind: str, size: int) -> None:
    for seed in range(60):
        task = make_task(kind, size, seed)

        assert read_again(task) == task.answer, task.id


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_task_is_right_too(kind: str) -> None:
    task = make_task(kind, 1_000_000, 5)

    assert read_again(task) == task.answer


@pytest.mark.parametrize("size", [1_000, 1_001, 4_321, 300_000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_context_fills_its_size(kind: str, size: int) -> None:
    for seed in range(10):
        context = make_task(kind, size, seed).context

        assert size - 200 < len(context) <= size
        assert context.isascii()


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_is_another_task(kind: str) -> None:
    tasks = [make_task(kind, 5_000, seed) for seed in range(20)]

    assert len({task.context for task in tasks}) == 20
    assert len({task.id for task in tasks}) == 20
    assert len({task.answer_text for task in tasks}) > 5


def test_a_kind_may_be_written_as_an_option_would_be() -> None:
    assert make_task("single-needle", 1_000, 1) == make_task("single_needle", 1_000, 1)


def test_needles_stand_anywhere_in_the_text() -> None:
    depths = []
    for seed in range(60):
        task = make_task("single_needle", 20_000, seed)
        depths.append(task.context.index(task.answer) / len(task.context))

    assert min(depths) < 0.15 and max(depths) > 0.85
    assert sum(0.25 < depth < 0.75 for depth in depths) > 15


def test_a_needle_has_neighbours_of_its_form() -> None:
    """Otherwise a search for the words of the form would solve the task."""
    task = make_task("single_needle", 50_000, 1)

    assert task.context.count("The code of the ") >= 10
    assert task.context.count(task.answer) == 1


@pytest.mark.parametrize("seed", range(30))
def test_pair_tasks_have_at_least_one_pair_in_order(seed: int) -> None:
    pairs: Any = make_task("pairs", 1_000 + 997 * seed, seed).answer

    assert pairs
    assert pairs == sorted(pairs) and all(one < other for one, other in pairs)


def test_answer_texts_and_values_agree() -> None:
    assert make_task("single_needle", 1_000, 1).answer_text == "SSV-51255"
    task = make_task("pairs", 1_000, 1)
    assert json.loads(task.answer_text) == task.answer


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("needle", 1_000, 1), ValueError, "kind must be one of single_needle, "),
        ((None, 1_000, 1), TypeError, "kind must be a str, not NoneType"),
        (("pairs", 999, 1), ValueError, "size must be from 1000 "),
        (("pairs", 2_000_000_000, 1), ValueError, "size must be from 1000 "),
        (("pairs", 1e6, 1), TypeError, "size must be an int, not float"),
        (("pairs", True, 1), TypeError, "size must be an int, not bool"),
        (("pairs", 1_000, "1"), TypeError, "seed must be an int, not str"),
    ],
)
def test_a_wrong_argument_is_named(arguments, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make_task(*arguments)
