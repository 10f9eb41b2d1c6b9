"""`RunTree`: the state of a tree of runs, updated by its events.

It holds what is going on and forgets what has ended but for counts and sums, so a tree of many
thousand calls takes no more room than its calls in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from repl_env.llm.base import ModelUsage
from repl_env.rlm.budget.budget_limits import Price, Spent
from repl_env.rlm.events import (
    AnyEvent,
    CallEnded,
    CallStarted,
    CellRan,
    CellStarted,
    ModelReplied,
    RunEnded,
    RunStarted,
)
from repl_env.rlm.failure_streak import FailureStreak

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
