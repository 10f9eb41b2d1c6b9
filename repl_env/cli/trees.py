"""Trees of runs as text: recorded ones, and the picture of a live one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from repl_env.cli.tables import one_line
from repl_env.common.values import visible
from repl_env.errors import BudgetExceeded
from repl_env.llm.base import ModelUsage
from repl_env.rlm.budget import Budget, Price, Spent
from repl_env.rlm.model_call import (
    AnyEvent,
    CallEnded,
    CallStarted,
    CellRan,
    CellStarted,
    FailureStreak,
    ModelReplied,
    RunEnded,
    RunStarted,
)

if TYPE_CHECKING:
    from repl_env.rlm.replay import RunDifference
    from repl_env.rlm.trajectory import Call, Cell, Run, Turn


# `RunTree`: the state of a tree of runs, updated by its events.
#
# It holds what is going on and forgets what has ended but for counts and sums, so a tree of many
# thousand calls takes no more room than its calls in flight.

Doing: TypeAlias = Literal["started", "thinking", "running", "over"]


@dataclass(slots=True)
class RunTotals:
    """Usage according to the events so far. `unpriced` calls are not in `usd`."""

    calls: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    unpriced: int = 0
    children: int = 0

    def add(self, other: RunTotals) -> None:
        """Add `other` to these totals."""
        self.calls += other.calls
        self.failed += other.failed
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.usd += other.usd
        self.unpriced += other.unpriced
        self.children += other.children


@dataclass(slots=True)
class RunTreeNode:
    """A call without an answer, or, if `run` is true, a run without an end."""

    path: str
    since: float
    text: str
    model: str | None = None
    run: bool = False
    doing: Doing = "started"
    turn: int = 0
    max_iterations: int = 0
    cell: int = 0
    code: str = ""
    subcalls: int = 0  # sub-calls so far
    own: RunTotals = field(default_factory=RunTotals)  # and of what ended below
    ended_calls: int = 0
    failed_calls: int = 0
    ended_runs: int = 0
    below: dict[str, RunTreeNode] = field(default_factory=dict)

    def total(self) -> RunTotals:
        """Return the usage of this run and all runs below it."""
        total = RunTotals()
        for node in walk(self):
            total.add(node.own)
        return total


class RunTree:
    """A tree of runs. `feed` takes the events in the order in which they come.

    `prices`: of models whose endpoints name no cost, as the ledger has them.
    """

    def __init__(self, prices: Mapping[str, Price] | None = None) -> None:
        self._prices = dict(prices or {})
        self.root: RunTreeNode | None = None
        self.ended: RunEnded | None = None
        self.streak = FailureStreak()
        self.figures = 0  # that cells of all runs have drawn
        self.refused = 0  # sub-calls that the budget refused, in all runs
        self._nodes: dict[str, RunTreeNode] = {}

    def feed(self, event: AnyEvent) -> None:
        """Apply one event; events of unknown runs are ignored."""
        self.streak.feed(event)
        match event:
            case RunStarted():
                self._run_started(event)
            case ModelReplied():
                self._replied(event)
            case CellStarted():
                self._at(event.run, doing="running", cell=event.cell, code=event.code)
            case CellRan():
                self._at(event.run, doing="thinking", cell=event.cell)
                self.figures += len(event.observation.result.figures)
            case CallStarted():
                self._call_started(event)
            case CallEnded():
                self._call_ended(event)
            case RunEnded():
                self._run_ended(event)

    def spent(self) -> RunTotals:
        """Return the usage of the tree: exact for finished runs, an estimate for others."""
        if self.ended is not None:
            return exact(self.ended.total)
        return RunTotals() if self.root is None else self.root.total()

    def _run_started(self, event: RunStarted) -> None:
        parent = self._parent(event.run)
        node = None if event.depth == 0 else self._nodes.get(event.run)
        if node is None:
            node = RunTreeNode(event.run, event.time, event.question)
            if event.depth == 0:
                self.root, self.ended, self._nodes = node, None, {}
            elif parent is not None:
                parent.below[event.run] = node
            self._nodes[event.run] = node
        node.run, node.doing, node.text = True, "thinking", event.question
        node.model, node.max_iterations = event.model, event.max_iterations
        if parent is not None:
            parent.own.children += 1

    def _replied(self, event: ModelReplied) -> None:
        if (node := self._nodes.get(event.run)) is not None:
            node.turn, node.doing = event.turn, "running"
            node.code = ""
            completion = event.completion
            node.own.add(self._cost(completion.usage, completion.model or node.model))

    def _call_started(self, event: CallStarted) -> None:
        if (node := self._nodes.get(event.run)) is not None:
            node.subcalls += 1
            call = RunTreeNode(event.call, event.time, event.prompt, event.model)
            node.below[event.call] = self._nodes[event.call] = call

    def _call_ended(self, event: CallEnded) -> None:
        self.refused += (event.error or "").startswith(BudgetExceeded.__name__)
        node = self._nodes.get(event.run)
        if node is None:
            return
        self._forget(event.call)
        node.failed_calls += event.error is not None
        if event.child:
            return  # its RunEnded was counted
        node.ended_calls += 1
        cost = self._cost(event.usage, event.model)
        cost.failed = int(event.error is not None)
        node.own.add(cost)

    def _run_ended(self, event: RunEnded) -> None:
        node = self._nodes.get(event.run)
        if node is None:
            return
        if node is self.root:
            node.doing, self.ended = "over", event
            return
        self._forget(event.run)
        if (parent := self._parent(event.run)) is not None:
            parent.ended_runs += 1
            parent.own.add(exact(event.total))

    def _forget(self, path: str) -> None:
        node = self._nodes.pop(path, None)
        if node is not None:
            for below in walk(node):
                self._nodes.pop(below.path, None)
        if (parent := self._parent(path)) is not None:
            parent.below.pop(path, None)

    def _parent(self, path: str) -> RunTreeNode | None:
        return self._nodes.get(path.rpartition(".")[0])

    def _at(self, path: str, **values: object) -> None:
        if (node := self._nodes.get(path)) is not None:
            for name, value in values.items():
                setattr(node, name, value)

    def _cost(self, usage: ModelUsage, model: str | None) -> RunTotals:
        inputs, outputs = usage.input_tokens or 0, usage.output_tokens or 0
        price = self._prices.get(model or "")
        usd = usage.usd
        if price is not None:
            usd = (inputs * price.input + outputs * price.output) / 1e6
        unpriced = int(usd is None)
        return RunTotals(1, 0, inputs, outputs, usd or 0.0, unpriced)


def exact(spent: Spent) -> RunTotals:
    """Convert the ledger's usage."""
    return RunTotals(
        spent.calls,
        spent.failed_calls,
        spent.input_tokens,
        spent.output_tokens,
        spent.usd,
        spent.unpriced_calls,
        spent.children,
    )


def walk(node: RunTreeNode) -> Iterator[RunTreeNode]:
    """Yield a node and all below it."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        waiting.extend(each.below.values())


# A recorded tree of runs as text for a terminal.

# Lines and columns of a text that are shown by default: enough to recognise it.
_LINES, _WIDTH = 6, 160
# Lines of a prompt, without `full`, would bury what the model did; and so would a batch of calls,
# of which so many are enough to see what is asked. Failed ones and runs are always shown.
_PROMPT_WIDTH = 100
_CALLS = 3


def print_tree(runs: Sequence[Run], *, full: bool = False, console: Console | None = None) -> None:
    """Print runs with all below them; heads of texts only, unless `full`."""
    console = console or Console(highlight=False)
    for run in runs:
        console.print(_run(run, full))
        console.print(_totals(run), style="bold")


def print_differences(
    run: Run, found: Sequence[RunDifference], console: Console | None = None
) -> None:
    """Print whether it came out the same, the first difference, and how many there are."""
    console = console or Console(highlight=False)
    if not found:
        console.print(Text("Run again, the same came out.", style="green"))
        console.print(_answer(run.final_answer, full=False))
        return
    first = found[0]
    place = f"cell {first.cell} of run {first.run}" if first.cell else f"run {first.run}"
    console.print(Text(f"The first difference: {first.field} of {place}", style="red"))
    for name, value in (("recorded", first.recorded), ("now", first.replayed)):
        console.print(
            _block(value if isinstance(value, str) else repr(value), full=True, head=name)
        )
    if len(found) > 1:
        console.print(f"and {len(found) - 1} more; --json lists them all.")


# ── the tree ─────────────────────────────────────────────────────────────────────────────────────


def _run(run: Run, full: bool) -> Tree:
    head = Text.assemble((f"run {run.id}", "bold cyan"))
    if run.model:
        head.append(f"  {visible(run.model)}", "dim")
    parts: list[RenderableType] = [head]
    if run.question:
        parts.append(_block(run.question, full, style="italic"))
    if run.task is not None:
        facts = ((name, value) for name, value in asdict(run.task).items() if value is not None)
        parts.append(Text("task: " + ", ".join(f"{k} {visible(v)}" for k, v in facts), style="dim"))
    parts += [
        Text(f"{visible(note.name)}: {visible(note.type)}, {note.length:,}", style="dim")
        for note in run.contexts
    ]
    tree = Tree(Group(*parts), guide_style="dim")
    shown: set[str] = set()
    for turn in run.turns:
        _add_turn(tree, turn, run, shown, full)
    _add_calls(tree, [call for call in run.calls if call.id not in shown], full)
    tree.add(_end(run, full))
    return tree


def _add_turn(tree: Tree, turn: Turn, run: Run, shown: set[str], full: bool) -> None:
    branch = tree.add(_turn_head(turn))
    if full:
        for message in turn.messages[len(turn.messages) - turn.added :]:
            branch.add(_block(_content(message), full, head=str(message["role"]), style="dim"))
    if full or not turn.cells:
        branch.add(_block(turn.completion.text, full, head="reply"))
    for cell in turn.cells:
        place = branch.add(cell_block(cell, full))
        calls = [call for call in run.calls if call.cell == cell.number and call.id not in shown]
        shown.update(call.id for call in calls)
        _add_calls(place, calls, full)


def _add_calls(tree: Tree, calls: Sequence[Call], full: bool) -> None:
    """Add the calls of one cell; unless `full`, most successful calls of a batch as a number."""
    well = [call for call in calls if call.child is None and call.text and not call.error]
    folded = [] if full else well[_CALLS:]
    if len(folded) <= 1:
        folded = []
    hidden = {call.id for call in folded}
    for call in calls:
        if call.id not in hidden:
            _add_call(tree, call, full)
    if folded:
        tree.add(Text(f"... {len(folded):,} more calls that were answered", style="dim"))


def _add_call(tree: Tree, call: Call, full: bool) -> None:
    style = "red" if call.error else "magenta"
    head = Text.assemble((f"call {call.id} {call.kind}", style))
    if call.ended is not None:
        head.append(f"  {call.ended.seconds:.1f} s", "dim")
        head.append(_tokens(call.ended.usage.input_tokens, call.ended.usage.output_tokens), "dim")
    parts: list[RenderableType] = [head]
    if call.child is None or call.child.question != call.prompt:
        parts.append(_block(call.prompt, full, one_line=not full))
    if call.child is None:
        answer = call.text if call.text is not None else "(no answer is known)"
        parts.append(_block(answer, full, head="answer", style=style))
    branch = tree.add(Group(*parts))
    if call.child is not None:
        branch.add(_run(call.child, full))


def _turn_head(turn: Turn) -> Text:
    usage = turn.completion.usage
    head = Text.assemble((f"turn {turn.number}", "bold"), (f"  {turn.seconds:.1f} s", "dim"))
    head.append(_tokens(usage.input_tokens, usage.output_tokens), "dim")
    if turn.last:
        head.append("  the last turn, which only asks for an answer", "yellow")
    if turn.completion.truncated:
        head.append("  the reply was cut", "yellow")
    return head


def cell_block(cell: Cell | CellRan, full: bool) -> Group:
    """Return the code of a cell as in a REPL, and its outcome."""
    code = _prompted(_block(cell.code, full))
    if cell.observation is None:
        return Group(code, Text("(it is not known what came of it)", style="yellow"))
    result = cell.observation.result
    parts: list[RenderableType] = [code]
    if result.stdout.strip():
        parts.append(_block(result.stdout, full))
    if result.stderr.strip():
        style = "yellow" if result.success else "red"
        parts.append(_block(result.stderr, full, tail=True, style=style))
    if result.figures:
        count = len(result.figures)
        parts.append(Text(f"({count} figure{'s' * (count > 1)})", style="dim"))
    return Group(*parts)


def _prompted(code: Text) -> Text:
    """Return code with prompts, which separate the code from its output."""
    marked = Text()
    for number, line in enumerate(code.plain.split("\n")):
        marked.append("... " if number else ">>> ", "dim").append(f"{line}\n", "blue")
    marked.right_crop(1)
    return marked


def _end(run: Run, full: bool) -> RenderableType:
    if run.ended is None:
        return Text("its end is not known", style="yellow")
    ended = run.ended
    why = f"stopped by {ended.stop_reason}" if ended.stop_reason != "answer" else "answered"
    if ended.error_kind:
        why += f" ({ended.error_kind})"
    if ended.reward is not None:
        why += f", reward {ended.reward:g}"
    return Group(_answer(ended.final_answer, full), Text(visible(why), style="dim"))


def _answer(answer: str | None, full: bool) -> RenderableType:
    if answer is None:
        return Text("no answer", style="yellow")
    return _block(answer, full, head="answer", style="bold green")


def _totals(run: Run) -> str:
    total = run.total
    if total is None or run.ended is None:
        return f"run {run.id}: not ended"
    cost = "cost unknown" if total.cost is None else f"${total.cost:.4f}"
    return (
        f"run {run.id}: {_several(len(run.turns), 'turn')}, {_several(total.calls, 'call')}, "
        f"{_several(total.children, 'run')} below, {total.input_tokens:,} tokens in, "
        f"{total.output_tokens:,} out, {cost}, {run.ended.seconds:.1f} s"
    )


def _several(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _tokens(inputs: int | None, outputs: int | None) -> str:
    if inputs is None and outputs is None:
        return ""
    known = ("?" if count is None else f"{count:,}" for count in (inputs, outputs))
    return "  {} → {} tokens".format(*known)


def _block(
    text: str,
    full: bool = False,
    *,
    head: str = "",
    style: str = "",
    tail: bool = False,
    one_line: bool = False,
) -> Text:
    """Return a text, or its head, or its tail if the end has the outcome."""
    clean = visible(text.strip("\n"))
    if one_line:
        clean = _cut(" ".join(clean.split()), _PROMPT_WIDTH)
    elif not full:
        clean = "\n".join(_few(clean.split("\n"), tail))
    block = Text.assemble((f"{head}: ", "dim")) if head else Text()
    return block.append(clean, style or None)


def _few(lines: Sequence[str], tail: bool) -> Iterator[str]:
    left_out = len(lines) - _LINES
    if left_out <= 1:
        selected: Iterable[str] = lines
    elif tail:
        yield f"... {left_out} lines"
        selected = lines[-_LINES:]
    else:
        selected = [*lines[:_LINES], f"... {left_out} more lines"]
    for line in selected:
        yield _cut(line, _WIDTH)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _content(message: Any) -> str:
    content = message["content"]
    return content if isinstance(content, str) else str(content)


# A tree of runs as lines that fit a terminal, and totals in words.

# Numbers of a run's calls to show: the first with which all fits is taken.
_FITS = (64, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1, 0)
_BAR = 12


def picture(
    tree: RunTree, height: int, width: int, now: float, budget: Budget | None = None
) -> list[Text]:
    """Return the tree and its totals in at most `height` lines of `width` columns.

    If more calls exist than fit, each run shows as many of its own and counts the others.
    """
    footer = _footer(tree, now, budget)
    if tree.root is None:
        body = [Text("starting", "dim")]
    else:
        room = max(1, height - len(footer))
        body = next(lines for lines in _bodies(tree.root, room, now))
    lines = [*body[: max(1, height - len(footer))], *footer[:height]]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return lines


def _bodies(root: RunTreeNode, room: int, now: float) -> Iterator[list[Text]]:
    """Yield the first body that fits; else the smallest, with a last line about the rest."""
    for limit in _FITS:
        lines = _node(root, limit, now, "", "", room + 1)
        if len(lines) <= room:
            yield lines
            return
    yield [*lines[: room - 1], Text("… and more", "dim")]


def _node(
    node: RunTreeNode, limit: int, now: float, first: str, rest: str, room: int
) -> list[Text]:
    """Return at most `room` lines of a node and those below, behind `first` and `rest`."""
    lines = [_title(node, now, first)]
    if node.run and node.doing == "running" and node.code.strip():
        bar = "│ " if _has_below(node) else "  "
        lines.append(Text(f"{rest}{bar}{one_line(node.code)}", "dim"))
    # Runs first: they have more to tell than a call that waits for its answer.
    below = sorted(node.below.values(), key=lambda each: (not each.run, each.since))
    shown, more = below[:limit], len(below) - limit
    entries = len(shown) + (more > 0) + _has_ended(node)
    for each in shown:
        entries -= 1
        if len(lines) >= room:
            return lines
        guides = ("├─ ", "│  ") if entries else ("└─ ", "   ")
        lines += _node(each, limit, now, rest + guides[0], rest + guides[1], room - len(lines))
    if more > 0:
        entries -= 1
        lines.append(Text(f"{rest}{'├─' if entries else '└─'} … {more:,} more in flight", "cyan"))
    if _has_ended(node):
        lines.append(Text(f"{rest}└─ … {_ended(node)}", "dim"))
    return lines


def _has_below(node: RunTreeNode) -> bool:
    return bool(node.below) or _has_ended(node)


def _has_ended(node: RunTreeNode) -> bool:
    return bool(node.ended_calls or node.ended_runs)


def _ended(node: RunTreeNode) -> str:
    counts = [(node.ended_calls, "call"), (node.ended_runs, "run")]
    ended = " and ".join(_count(count, noun) for count, noun in counts if count)
    return f"{ended} ended" + (f", {node.failed_calls:,} failed" if node.failed_calls else "")


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_DOING: dict[str, Callable[[RunTreeNode], str]] = {
    "started": lambda node: "",
    "thinking": lambda node: f"turn {node.turn + 1}/{node.max_iterations} · model",
    "running": lambda node: (
        f"turn {node.turn}/{node.max_iterations}" + (f" · cell {node.cell}" if node.cell else "")
    ),
    "over": lambda node: f"{node.turn} turns · over",
}


def _title(node: RunTreeNode, now: float, guide: str) -> Text:
    line = Text(guide, "dim")
    line.append(node.path, "bold cyan" if node.run else "cyan")
    parts = [_DOING[node.doing](node), duration(now - node.since)]
    if node.model:
        parts.insert(0, one_line(node.model, 40))
    line.append(f" {' · '.join(part for part in parts if part)}  ", "")
    line.append(one_line(node.text), "" if node.run else "dim")
    return line


def _footer(tree: RunTree, now: float, budget: Budget | None) -> list[Text]:
    spent = tree.spent()
    elapsed = 0.0 if tree.root is None else now - tree.root.since
    if tree.ended is not None:
        elapsed = tree.ended.seconds
    line = Text(f"{amounts(spent)} · {duration(elapsed)}", "bold")
    bars = Text()
    for name, used, limit in _limits(budget or Budget(calls=None), spent, elapsed):
        bars.append_text(_bar(name, used, limit))
    return [line, bars] if bars else [line]


def _limits(budget: Budget, spent: RunTotals, elapsed: float) -> Iterator[tuple[str, float, float]]:
    rows = (
        ("calls", spent.calls, budget.calls),
        ("tokens in", spent.input_tokens, budget.input_tokens),
        ("tokens out", spent.output_tokens, budget.output_tokens),
        ("usd", spent.usd, budget.usd),
        ("seconds", elapsed, budget.seconds),
        ("children", spent.children, budget.children),
    )
    for name, used, limit in rows:
        if limit is not None:
            yield name, used, limit


def _bar(name: str, used: float, limit: float) -> Text:
    """A bar that is green, then yellow, then red as the budget runs out."""
    share = 1.0 if limit <= 0 else min(1.0, used / limit)
    style = "green" if share < 0.8 else "yellow" if share < 0.95 else "red"
    full = round(share * _BAR)
    bar = Text(f"{name} ", "dim")
    bar.append("━" * full, style)
    bar.append("━" * (_BAR - full), "bright_black")
    bar.append(f" {share:.0%} of {limit:,g}   ", "dim")
    return bar


def amounts(spent: RunTotals) -> str:
    """Return calls, tokens and cost in words."""
    failed = f" ({spent.failed:,} failed)" if spent.failed else ""
    tokens = f"{spent.input_tokens:,} tokens in, {spent.output_tokens:,} out"
    return f"{_count(spent.calls, 'call')}{failed} · {tokens} · {cost(spent)}"


def cost(spent: RunTotals) -> str:
    """Return the cost in US dollars, as far as it is known."""
    if spent.unpriced and not spent.usd:
        return "cost unknown"
    known = f"${spent.usd:,.4f}" if spent.usd < 1 else f"${spent.usd:,.2f}"
    return (
        f"{known} and {_count(spent.unpriced, 'call')} of unknown cost" if spent.unpriced else known
    )


def duration(seconds: float) -> str:
    """Return a time in a readable unit."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


# A recorded tree of runs as JSON, which `repl-env replay --json` prints.


def as_dict(run: Run) -> dict[str, Any]:
    """Return a run with all below it: new messages of each turn, the number of figures."""
    ended = run.ended
    return {
        "run": run.id,
        "parent": run.parent,
        "depth": run.depth,
        "question": run.question,
        "model": run.model,
        "contexts": [asdict(note) for note in run.contexts],
        "task": None if run.task is None else asdict(run.task),
        "turns": [_turn_dict(turn) for turn in run.turns],
        "calls": [_call_dict(call) for call in run.calls],
        "ended": ended is not None,
        "final_answer": run.final_answer,
        "answer_value": None if ended is None else ended.answer_value,
        "stop_reason": None if ended is None else ended.stop_reason,
        "error_kind": None if ended is None else ended.error_kind,
        "ending": run.ending,
        "reward": run.reward,
        "task_reward": run.task_reward,
        "seconds": None if ended is None else ended.seconds,
        "own": None if ended is None else asdict(ended.own),
        "total": None if ended is None else asdict(ended.total),
    }


def _turn_dict(turn: Turn) -> dict[str, Any]:
    return {
        "turn": turn.number,
        "messages": list(turn.messages[len(turn.messages) - turn.added :]),
        "reply": turn.completion.text,
        "finish_reason": turn.completion.finish_reason,
        "input_tokens": turn.completion.usage.input_tokens,
        "output_tokens": turn.completion.usage.output_tokens,
        "seconds": turn.seconds,
        "last": turn.last,
        "cells": [_cell_dict(cell) for cell in turn.cells],
    }


def _cell_dict(cell: Cell) -> dict[str, Any]:
    fields: dict[str, Any] = {"cell": cell.number, "code": cell.code, "seconds": cell.seconds}
    if cell.observation is not None:
        result = cell.observation.result
        fields |= {
            "success": result.success,
            "stdout": result.stdout,
            "stderr": result.stderr,
            "value": result.value,
            "figures": len(result.figures),
            "error_kind": cell.observation.error_kind,
        }
    return fields


def _call_dict(call: Call) -> dict[str, Any]:
    ended = call.ended
    return {
        "call": call.id,
        "kind": call.kind,
        "cell": call.cell,
        "model": call.model if ended is None else ended.model,
        "prompt": call.prompt,
        "text": call.text,
        "error": call.error,
        "truncated": None if ended is None else ended.truncated,
        "input_tokens": None if ended is None else ended.usage.input_tokens,
        "output_tokens": None if ended is None else ended.usage.output_tokens,
        "seconds": None if ended is None else ended.seconds,
        "child": None if call.child is None else as_dict(call.child),
    }
