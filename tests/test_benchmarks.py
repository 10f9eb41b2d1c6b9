"""How samples of the benchmarks are evaluated. The figures of this machine are not tested."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from operator import truediv
from time import sleep

import pytest
from rich.console import Console

from benchmarks.against import Reading, checkout, in_turn
from benchmarks.figure import Figure
from benchmarks.goals import Goal
from benchmarks.report import figure_table
from benchmarks.samples import Samples
from benchmarks.server.load import load
from benchmarks.server.processor_time import ProcessorTime, processor_time

SECONDS = 0.03


def figure(ours: tuple[float, ...], floor: tuple[float, ...]) -> Figure:
    return Figure("key", "name", "ms", Samples(ours), Samples(floor), "a floor")


def test_a_ratio_is_that_of_the_rounds():
    # The machine is ten times as slow in the second round and five times in the third.
    taken = figure((2.0, 20.0, 10.0), (1.0, 10.0, 5.0))
    assert taken.ratio.values == (2.0, 2.0, 2.0)
    assert taken.difference.median == 5.0
    uneven = figure((2.0, 30.0, 4.0), (1.0, 10.0, 4.0))
    assert uneven.ratio.median == 2.0
    assert uneven.ours.median / uneven.floor.median == 1.0
    assert Goal("ratio", "at most", 1.5, "").met(uneven) is False


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_is_readable_at_any_width(width: int):
    name = "a step of an environment, its observation and its rewards"
    figures = [Figure("step", name, "ms", *[Samples((0.0015, 0.0014, 0.0016, 0.0015))] * 2, "")]  # type: ignore[call-arg]
    others = {f"peer-{number}": {"step": Samples((0.03,))} for number in range(6)}
    console = Console(file=io.StringIO(), width=width)
    console.print(figure_table(figures, others, "a machine with 2 cores", "Medians."))
    shown = console.file.getvalue()  # type: ignore[attr-defined]

    assert all(len(line) <= width for line in shown.splitlines())
    for cell in ("1.50 ms [1.48, 1.53]", "1.00 [1.00, 1.00]", "≤ 3.5", "yes", "30.0 ms"):
        assert cell in shown
    assert name in shown
    assert all(peer in shown for peer in others)


def test_samples_of_other_rounds_are_compared_by_their_medians():
    assert Samples((1.0, 2.0, 9.0)).per_round(Samples((4.0,)), truediv).values == (0.5,)


def test_quartiles_need_samples():
    assert Samples((1.0, 2.0, 3.0)).quartiles is None
    assert Samples((5.0, 1.0, 3.0, 2.0, 4.0)).quartiles == (2.0, 4.0)


def test_a_load_counts_timely_answers_and_waits_for_the_rest():
    made = []

    async def step() -> None:
        made.append(None)
        await asyncio.sleep(0)

    async def late() -> None:
        await asyncio.to_thread(sleep, 2 * SECONDS)

    taken = asyncio.run(load([step, late], SECONDS, ProcessorTime(None)))
    assert round(taken.rate * SECONDS) <= len(made)
    # All but the first of the quick one's, and the only one of the late one's.
    assert len(taken.seconds) == max(1, len(made) - 1) + 1
    assert taken.seconds[-1] >= 2 * SECONDS


def test_processor_time_has_what_was_started_and_has_ended():
    with processor_time() as time:
        before = time.now()
        busy = "import time\nwhile time.process_time() < 0.3: pass"
        subprocess.run([sys.executable, "-c", busy], check=True)
        assert time.now() - before >= 0.25


def reading(median: float, low: float, high: float, *, rate: bool = False) -> Reading:
    return Reading("name", median, (low, high), rate)


def test_a_figure_is_worse_only_with_disjoint_quartiles():
    assert reading(3.0, 2.5, 3.5).worse_than(reading(2.0, 1.5, 2.4))
    assert not reading(3.0, 2.3, 3.5).worse_than(reading(2.0, 1.5, 2.4))
    assert not reading(2.0, 1.5, 2.4).worse_than(reading(3.0, 2.5, 3.5))
    assert reading(2.0, 1.5, 2.4, rate=True).worse_than(reading(3.0, 2.5, 3.5, rate=True))


def test_a_figure_without_quartiles_needs_a_margin():
    assert Reading("name", 1.06, None).worse_than(Reading("name", 1.0, None))
    assert not Reading("name", 1.03, None).worse_than(Reading("name", 1.0, None))


@pytest.mark.parametrize(("second", "worse"), [(1.0, False), (2.0, True)])
def test_a_second_run_decides_whether_a_figure_is_worse(tmp_path, second, worse):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    runs = {theirs: [1.0, 1.0], ours: [2.0, second]}

    def ask(checkout, measure):
        median = runs[checkout].pop(0)
        return {measure: reading(median, median - 0.1, median + 0.1)}

    (compared,) = in_turn("step", ours, theirs, ask)
    assert compared.worse is worse
    assert not any(runs.values())


def test_a_figure_that_only_this_checkout_has_is_not_worse(tmp_path):
    def ask(checkout, measure):
        return {measure: reading(1.0, 0.9, 1.1)} if checkout.name == "ours" else {}

    (compared,) = in_turn("step", tmp_path / "ours", tmp_path / "theirs", ask)
    assert compared.then is None
    assert not compared.worse


def test_a_revision_that_git_does_not_know_is_refused():
    with pytest.raises(SystemExit, match="no-such-commit"), checkout("no-such-commit"):
        pass
