"""Figures as PNG: collected, closed, bounded; a broken figure affects nothing else."""

from __future__ import annotations

import sys
import types

import pytest

from repl_sandbox import TimedOut
from repl_sandbox.worker import displays
from repl_sandbox.worker.displays import DISPLAYS

PNG = b"\x89PNG\r\n\x1a\n"


def take_figures() -> list[bytes]:
    displays.take_figures()
    return list(DISPLAYS.take()[1])


class Pyplot(types.ModuleType):
    """The part of pyplot that the engine uses; figures are their drawings."""

    def __init__(self) -> None:
        super().__init__("matplotlib.pyplot")
        self.open: dict[int, object] = {}

    def get_fignums(self) -> list[int]:
        return sorted(self.open)

    def figure(self, number: int):
        drawn = self.open[number]

        def savefig(file, **options):
            assert options == {"format": "png", "bbox_inches": "tight", "dpi": "figure"}
            if isinstance(drawn, BaseException):
                raise drawn
            file.write(drawn)

        return types.SimpleNamespace(savefig=savefig, dpi=100, get_size_inches=lambda: (6, 4))

    def close(self, which: str) -> None:
        assert which == "all"
        self.open.clear()


@pytest.fixture
def pyplot(monkeypatch):
    module = Pyplot()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", module)
    return module


def test_without_pyplot_there_is_nothing_and_nothing_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    assert take_figures() == []
    assert "matplotlib.pyplot" not in sys.modules


def test_figures_are_taken_in_order_and_closed(pyplot):
    pyplot.open = {2: PNG + b"2", 1: PNG + b"1"}

    assert take_figures() == [PNG + b"1", PNG + b"2"]
    assert take_figures() == []


def test_figures_beyond_the_limit_are_counted(pyplot, capfd):
    pyplot.open = {n: b"%d" % n for n in range(1, displays.MOST_FIGURES + 5)}

    assert len(take_figures()) == displays.MOST_FIGURES
    assert "4 more figures are not shown" in capfd.readouterr().err
    assert pyplot.open == {}


def test_a_figure_that_is_too_large_is_named_and_smaller_ones_are_taken(pyplot, capfd, monkeypatch):
    monkeypatch.setattr(displays, "MAX_FIGURE_BYTES", 100)
    pyplot.open = {1: b"x" * 60, 2: b"x" * 60, 3: b"x" * 40}

    assert take_figures() == [b"x" * 60, b"x" * 40]
    assert "figure 2 is not shown: 60 bytes" in capfd.readouterr().err


class Mute(Exception):
    def __str__(self):
        raise LookupError


@pytest.mark.parametrize(
    "problem", [ValueError("no\nsecond line"), MemoryError(), Mute(), SystemExit(3)]
)
def test_a_figure_that_cannot_be_drawn_is_named_and_the_others_are_taken(pyplot, capfd, problem):
    pyplot.open = {1: problem, 2: b"2"}

    assert take_figures() == [b"2"]
    assert pyplot.open == {}
    said = capfd.readouterr().err
    assert f"figure 1 cannot be drawn: {type(problem).__name__}" in said
    assert "second line" not in said


def test_a_broken_pyplot_is_reported(pyplot, capfd):
    pyplot.get_fignums = None
    assert take_figures() == []
    assert "figures cannot be shown" in capfd.readouterr().err


def test_an_interrupt_ends_the_drawing_and_keeps_what_there_is(pyplot, capfd):
    pyplot.open = {1: b"1", 2: KeyboardInterrupt(), 3: b"3"}
    assert take_figures() == [b"1"]
    assert pyplot.open == {}  # otherwise the next cell would draw them
    assert "interrupted; figures shown: 1" in capfd.readouterr().err


# A figure that announces its drawing, and ends only by an interrupt.
DRAWS_ON = """
import sys, types
class Figure:
    dpi = 100
    def get_size_inches(self):
        return 6, 4
    def savefig(self, file, **options):
        print("drawing")
        while True: pass
shown = {1: Figure()}
sys.modules["matplotlib.pyplot"] = types.SimpleNamespace(
    get_fignums=lambda: list(shown), figure=shown.get, close=lambda which: shown.clear()
)
'value'
"""


def test_a_time_out_while_figures_are_drawn_keeps_what_the_cell_did(session, clock):
    def begun(stream, text):
        if stream == "stdout":
            clock.strike(stream, text)

    outcome = session.run(DRAWS_ON, on_output=begun)
    assert isinstance(outcome, TimedOut)
    assert (outcome.state, outcome.value, outcome.stdout) == ("kept", "'value'", "drawing\n")
    assert "drawing was interrupted" in outcome.stderr
    assert session.run("shown").value == "{}"


def test_real_figures_become_png(capfd):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.plot([1, 2])
    pyplot.figure().add_subplot().set_xlabel(r"$\frac{broken$")
    pyplot.figure()
    figures = take_figures()

    assert len(figures) == 2
    assert all(figure.startswith(PNG) for figure in figures)
    assert pyplot.get_fignums() == []
    assert "figure 2 cannot be drawn: ValueError" in capfd.readouterr().err
