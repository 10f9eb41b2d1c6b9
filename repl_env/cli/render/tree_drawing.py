"""A tree of runs as lines that fit a terminal, and totals in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.text import Text

from repl_env.rlm.budget.budget_limits import Budget

from .live_run_tree import RunTotals, RunTree, RunTreeNode
from .terminal_text import one_line

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
