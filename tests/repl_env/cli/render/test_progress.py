"""The display of a tree of runs: events go in, text that fits the screen comes out."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from repl_env.cli.live import LiveTreeDisplay, ProgressLines, SilentProgress, progress
from repl_env.cli.trees import RunTree, cost, duration, picture, walk
from repl_env.llm.base import Completion, ModelUsage
from repl_env.rlm.budget import Budget, Price, Spent
from repl_env.rlm.model_call import (
    CallEnded,
    CallStarted,
    CellStarted,
    ModelReplied,
    RunEnded,
    RunStarted,
)

REPLY = ModelUsage(100, 10)
ANSWER = ModelUsage(5, 1)
TOTAL = Spent(calls=7)


class Told:
    """Events of a tree of runs, reported to a subscriber one second apart."""

    def __init__(self, watch):
        self._watch = watch
        self.now = 1000.0

    def __call__(self, event, /, run="0", **fields):
        self.now += 1
        self._watch(event(run=run, time=self.now, **fields))

    def start(self, run="0", question="How many?", depth=0):
        self(
            RunStarted,
            run,
            depth=depth,
            question=question,
            model="big",
            max_iterations=30,
            contexts=(),
        )

    def reply(self, run="0", turn=1, usage=REPLY):
        completion = Completion("text", usage)
        self(ModelReplied, run, turn=turn, kept=0, added=(), completion=completion, seconds=2.0)

    def cell(self, code="answers = f()", run="0"):
        self(CellStarted, run, turn=1, cell=1, code=code)

    def call(self, call, prompt="Look at it", kind="llm"):
        run = call.rpartition(".")[0]
        self(CallStarted, run, call=call, kind=kind, cell=1, model="small", prompt=prompt)

    def answer(self, call, usage=ANSWER, error=None, child=False):
        self(
            CallEnded,
            call.rpartition(".")[0],
            call=call,
            kind="llm",
            cell=1,
            model="small",
            prompt="",
            text="",
            error=error,
            truncated=False,
            usage=usage,
            seconds=1.0,
            child=child,
        )

    def end(self, run="0", total=TOTAL, kind=None):
        self(
            RunEnded,
            run,
            final_answer="x",
            answer_value=None,
            stop_reason="answer",
            error_kind=kind,
            reward=None,
            iterations=2,
            own=total,
            total=total,
            seconds=12.0,
        )


@pytest.fixture
def tree():
    return RunTree()


@pytest.fixture
def tell(tree):
    return Told(tree.feed)


def shown(tree, tell, height=20, width=100, budget=None):
    return [line.plain for line in picture(tree, height, width, tell.now, budget)]


def test_before_anything_has_happened_there_is_a_picture(tree, tell):
    assert shown(tree, tell)[0] == "starting"


def test_the_picture_has_runs_calls_and_code_as_a_tree(tree, tell):
    tell.start()
    tell.reply()
    tell.cell("\nparts = cut(context)\nanswers = ask(parts)")
    tell.call("0.1")
    tell.call("0.2", kind="rlm")
    tell.start("0.2", "A part", depth=1)
    tell.call("0.2.1", "A part of the part")

    assert shown(tree, tell)[:5] == [
        "0 big · turn 1/30 · cell 1 · 6.0 s  How many?",
        "│ parts = cut(context) answers = ask(parts)",
        "├─ 0.2 big · turn 1/30 · model · 2.0 s  A part",
        "│  └─ 0.2.1 small · 0.0 s  A part of the part",
        "└─ 0.1 small · 3.0 s  Look at it",
    ]


def test_finished_calls_are_folded_into_counts(tree, tell):
    tell.start()
    for number in range(1, 301):
        tell.call(f"0.{number}")
    for number in range(1, 213):
        tell.answer(f"0.{number}", error="timeout: slow" if number <= 3 else None)

    lines = shown(tree, tell)
    assert "└─ … 212 calls ended, 3 failed" in lines
    assert len(list(walk(tree.root))) == 1 + 88


@pytest.mark.parametrize("height", [4, 6, 10, 24, 60])
def test_hundreds_of_calls_keep_to_the_height_and_the_width(tree, tell, height):
    tell.start(question="long " * 100)
    tell.cell()
    for child in range(1, 41):
        tell.call(f"0.{child}", kind="rlm")
        tell.start(f"0.{child}", depth=1)
        for number in range(1, 11):
            tell.call(f"0.{child}.{number}", "x" * 500)
    lines = shown(tree, tell, height=height, width=70, budget=Budget(calls=500))

    assert len(lines) <= height
    assert all(len(line) <= 70 for line in lines)
    assert any("more" in line for line in lines)
    assert lines[0].startswith("0 big")
    assert "calls" in lines[-2]


def test_a_run_that_ended_counts_as_its_ledger_says(tree, tell):
    tell.start()
    tell.reply(usage=ModelUsage(100, 10))
    tell.call("0.1", kind="rlm")
    tell.start("0.1", depth=1)
    tell.reply("0.1", usage=ModelUsage(1, 1))
    tell.end("0.1", Spent(calls=3, input_tokens=50, output_tokens=5, usd=0.5, children=1))
    tell.answer("0.1", child=True)
    spent = tree.spent()

    assert (spent.calls, spent.input_tokens, spent.output_tokens) == (4, 150, 15)
    assert (spent.usd, spent.unpriced, spent.children) == (0.5, 1, 2)
    assert "└─ … 1 run ended" in shown(tree, tell)

    tell.end(total=Spent(calls=9, input_tokens=8))
    assert (tree.spent().calls, tree.spent().input_tokens) == (9, 8)


def test_an_unfinished_child_is_removed_with_its_call(tree, tell):
    tell.start()
    tell.call("0.1", kind="rlm")
    tell.start("0.1", depth=1)
    tell.call("0.1.1")
    tell.answer("0.1", error="cancelled: x", child=True)

    assert [node.path for node in walk(tree.root)] == ["0"]


def test_events_of_unknown_runs_are_ignored(tree, tell):
    tell.reply("0.7")
    tell.call("0.7.1")
    tell.answer("0.7.1")
    tell.end("0.7")
    tell.start()
    tell.answer("0.3")

    assert tree.spent().calls == 1


def test_a_second_question_begins_a_new_picture(tree, tell):
    tell.start()
    tell.call("0.1")
    tell.end()
    tell.start(question="And now?")

    assert (tree.root.text, tree.ended, tree.spent().calls) == ("And now?", None, 0)


def test_prices_make_a_cost_where_endpoints_name_none():
    tree = RunTree({"big": Price(2.0, 10.0)})
    tell = Told(tree.feed)
    tell.start()
    tell.reply(usage=ModelUsage(1_000_000, 100_000))

    assert (tree.spent().usd, tree.spent().unpriced) == (3.0, 0)
    assert cost(tree.spent()) == "$3.00"

    tell.call("0.1")
    tell.answer("0.1")
    assert cost(tree.spent()) == "$3.00 and 1 call of unknown cost"


def test_an_unknown_cost_is_not_shown_as_zero(tree, tell):
    tell.start()
    tell.reply()

    assert cost(tree.spent()) == "cost unknown"


def test_a_budget_has_bars(tree, tell):
    tell.start()
    tell.reply()
    budget = Budget(calls=4, output_tokens=10, seconds=8)
    (line,) = [each for each in picture(tree, 10, 120, tell.now, budget) if "calls ━" in each.plain]

    assert "25% of 4" in line.plain
    assert "100% of 10" in line.plain
    assert "12% of 8" in line.plain
    assert {span.style for span in line.spans} >= {"green", "red"}


def test_a_budget_of_zero_is_used_up(tree, tell):
    tell.start()

    assert "calls ━━━━━━━━━━━━ 100% of 0" in shown(tree, tell, budget=Budget(calls=0))[-1]


def test_texts_of_models_cannot_steer_the_terminal(tree, tell):
    tell.start(question="\x1b[2J\x1b]0;title\x07 evil\u202e")
    tell.cell("\x9b2J\rcode [bold]markup[/bold]")
    tell.call("0.1", "\x1b[31m")
    text = "\n".join(shown(tree, tell))

    assert not any(ord(letter) < 32 and letter != "\n" for letter in text)
    assert "\x9b" not in text and "\u202e" not in text
    assert "[bold]markup[/bold]" in text


def test_on_a_terminal_the_picture_is_drawn_and_erased():
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=20)
    display = progress(console, Budget(calls=10))
    with display:
        tell = Told(display.on_event)
        tell.start()
        tell.reply()

    assert isinstance(display, LiveTreeDisplay)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "How many?" in written
    assert written.count("\x1b[2K") >= 3  # each line of the last picture is erased


def test_without_a_terminal_progress_is_plain_lines():
    console = Console(file=io.StringIO(), width=40)
    display = progress(console)
    with display:
        tell = Told(display.on_event)
        tell.start()
        tell.reply()
        tell.call("0.1", kind="rlm")
        tell.start("0.1", "child [red]", depth=1)
        tell.call("0.1.1", kind="rlm")
        tell.start("0.1.1", "grandchild", depth=2)
        tell.end("0.1", kind="llm")
        tell.end()

    assert isinstance(display, ProgressLines)
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "0 starts (big): How many?",
        "0 turn 1, 2.0 s; so far 1 call · 100 tokens in, 10 out · cost unknown",
        "0.1 starts (big): child [red]",
        "0.1 ends: llm, 2 turns, 12 s",
        "0 ends: answer, 2 turns, 12 s",
    ]


def test_without_a_console_the_tree_is_still_kept():
    display = progress(None)
    with display:
        Told(display.on_event).start()

    assert isinstance(display, SilentProgress)
    assert display.tree.root is not None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s"), (9.94, "9.9 s"), (59, "59 s"), (61, "1 min 01 s"), (7384, "2 h 03 min")],
)
def test_durations_are_readable(seconds, text):
    assert duration(seconds) == text
