"""A recorded tree of runs as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from repl_env.common.json_values import visible

if TYPE_CHECKING:
    from repl_env.rlm.events import CellRan
    from repl_env.rlm.trajectory.trajectory import Call, Cell, Run, Turn
    from repl_env.rlm.trajectory_rerun import RunDifference

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
