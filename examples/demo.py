"""`make demo`: a recursive language model on real input, without a model, a key or a network.

The context is the source text of Python's own standard library: tens of megabytes that no prompt
could hold. A script stands in for the model: it reads the library by code, asks sub-models about
pieces in one batch, gives one part to a run of its own, and puts the answer together. This program
checks the answer by other means, writes the tree of runs to a file, and replays it from there.

Then an episode runs into an exception and a time-out, and goes on. Exit status 0 if all of it came
out as it should.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import tempfile
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.panel import Panel
from rich.syntax import Syntax
from rich.text import Text

from repl_env import LocalREPLEnv, extract_code_blocks
from repl_env.cli.live import progress
from repl_env.cli.trees import print_tree
from repl_env.models import REPLObservation, StepResult
from repl_env.rlm import (
    RLM,
    Budget,
    ModelRequest,
    RLMRunResult,
    ScriptedModel,
    Trajectory,
    differences,
    rerun,
)

HEADER = "##### FILE: "  # starts the line before each file of the library

QUESTION = (
    "`context` is the source of a large Python library. Each file is preceded by a line "
    f"`{HEADER}<path>`. For each of the packages asyncio, email, json and logging: how many lines "
    "of its files begin with `class `? And which class of the package json has the longest name? "
    "Answer as a dict with the keys `classes` (package: number) and `longest`."
)

# Replies of a model at the root, one for each turn.
ROOT = [
    """The context may be large. First its size and how it looks.
```repl
print(type(context).__name__, f"{len(context):,} characters")
print(context[:200])
```""",
    """Far too long to read. I cut it into files, and the files into packages.
```repl
MARK = "##### FILE: "
files = {}
for part in ("\\n" + context).split("\\n" + MARK)[1:]:
    path, _, text = part.partition("\\n")
    files[path] = text
packages = {
    name: "\\n".join(text for path, text in files.items() if path.startswith(name + "/"))
    for name in ["asyncio", "email", "json", "logging"]
}
print(len(files), "files;", {name: len(text) for name, text in packages.items()})
```""",
    """One question for each package: these do not depend on each other, so I ask them at once. What
needs several steps I give to a run of its own.
```repl
counts = llm_query_batched(
    ["How many lines of this begin with `class `? Only the number."] * len(packages),
    context=list(packages.values()),
    schema={"type": "integer"},
)
longest = rlm_query("Which class has the longest name? Only the name.", context=packages["json"])
print([count.value for count in counts], longest, longest.ok)
```""",
    """All calls were answered. I check one of them by code before I answer.
```repl
import re
assert counts[2].value == len(re.findall(r"(?m)^class ", packages["json"]))
FINAL({"classes": dict(zip(packages, [count.value for count in counts])), "longest": str(longest)})
```""",
]

# And what it might write in the run below, where `context` is the package json.
CHILD = [
    """```repl
names = [line.split()[1].split("(")[0].rstrip(":")
         for line in context.splitlines() if line.startswith("class ")]
names
```""",
    """```repl
FINAL(max(names, key=len))
```""",
]

STUMBLE = [
    """```python
numbers = [int(line) for line in context.splitlines()]
```""",
    """One line is not a number; the error says which. I leave it out.
```python
numbers = [int(line) for line in context.splitlines() if line.isdigit()]
print(len(numbers), "numbers")
```""",
    """Is the sum a multiple of seven? I count up to its seventh.
```python
print("counting")
n = 0
while n != sum(numbers) / 7:
    n += 1
```""",
    """It is not, so that would never have ended. The numbers are still there.
```python
answer["content"] = str(2 * sum(numbers))
answer["ready"] = True
```""",
]

BUDGET = Budget(calls=40)

console = Console(width=100)


def main() -> int:
    """Run the tree, replay it, play the episode; 0 if all of it is as it should be."""
    library = standard_library()
    text = "\n".join(f"{HEADER}{path}\n{content}" for path, content in library.items())
    with tempfile.TemporaryDirectory() as folder:
        solved = recurse(text, truth(library), Path(folder) / "trajectory.jsonl")
    numbers = "\n".join([*map(str, range(1, 2000)), "two thousand"])
    with LocalREPLEnv() as env:
        task = "Twice the sum of the numbers in `context`, one per line."
        reward = play(env, "A bumpy road", numbers, task, str(2 * sum(range(2000))), STUMBLE)
    return 0 if solved and reward == 1.0 else 1


# ── a tree of runs ───────────────────────────────────────────────────────────────────────────────


def recurse(context: str, expected: dict[str, object], file: Path) -> bool:
    """Answer the question on the library, and again from what was written down."""
    console.rule("[bold]A recursive language model")
    console.print(Markdown(QUESTION))
    model = ScriptedModel(reply, name="scripted")
    with progress(console) as shown:
        rlm = RLM(model, budget=BUDGET, trajectory=file, on_event=shown.on_event)
        result = rlm.run(QUESTION, context, expected_answer=str(expected))
    print_tree(result.trajectory.roots, console=console)
    solved = result.reward == 1.0 and result.answer_value == expected
    report(result, expected, solved)

    console.rule("[bold]The same, replayed without a model")
    recorded = Trajectory.load(file)
    again = rerun(recorded, {"context": context})
    found = differences(recorded, again)
    same = not found and again.root.final_answer == result.final_answer
    console.print(
        f"trajectory {file.stat().st_size:,} bytes   runs {len(list(again.runs()))}   "
        f"differences {len(found)}   "
        f"answer [bold {'green' if same else 'red'}]{'the same' if same else 'another'}[/]"
    )
    return solved and same


def reply(request: ModelRequest) -> str:
    """Return the reply of the model: at the root, in the run below, or to a single question."""
    origin = request.origin
    if origin.purpose == "turn":
        return (ROOT if "." not in origin.run else CHILD)[origin.number - 1]
    # A model would count less exactly; what matters here is that it was shown the piece.
    return str(len(re.findall(r"(?m)^class ", str(request.messages[-1]["content"]))))


def report(result: RLMRunResult, expected: dict[str, object], solved: bool) -> None:
    """The answer, and what it cost."""
    usage = result.usage
    console.print(f"answer   [bold]{result.final_answer}[/]")
    console.print(f"expected {expected}   [bold {'green' if solved else 'red'}]{solved}[/]")
    console.print(
        f"reward {result.reward}   turns {result.iterations}   calls {usage.calls}   "
        f"runs below {usage.children}   tokens {usage.input_tokens:,} in, "
        f"{usage.output_tokens:,} out   {result.seconds:.2f} s"
    )


# ── an episode ───────────────────────────────────────────────────────────────────────────────────


def play(
    env: LocalREPLEnv, title: str, context: str, task: str, expected: str, replies: list[str]
) -> float | None:
    """One episode of the scripted policy; its last reward."""
    console.rule(f"[bold]{title}")
    result = env.reset(context=context, task_prompt=task, expected_answer=expected)
    console.print(Markdown(task))
    console.print(facts(result), style="dim")
    for said in replies:
        console.print(Markdown(said.partition("```")[0]))
        for code in extract_code_blocks(said):
            console.print(Panel(Syntax(code.rstrip(), "python", word_wrap=True), title="code"))
            result = env.execute(code, timeout_s=2.0 if "while" in code else None)
            show(result)
        if result.done:
            break
    solved = result.done and result.reward == 1.0
    console.print(
        f"answer [bold]{env.state().final_answer}[/]   expected {expected}   "
        f"done {result.done}   [bold {'green' if solved else 'red'}]reward {result.reward}[/]"
    )
    return result.reward if result.done else None


def show(result: StepResult[REPLObservation]) -> None:
    """Print the observation of a step, as the policy sees it, and its cost."""
    seen = result.observation.result
    for text, style in ((seen.stdout, ""), (seen.stderr, "red")):
        if text.strip():
            console.print(Panel(Text(text.rstrip()), style=style, title="output"))
    changed = ", ".join(f"{change['name']} ({change['type']})" for change in seen.changes)
    kind = result.observation.error_kind
    notes = [f"{seen.execution_time * 1e3:,.1f} ms"]
    notes += [f"changed: {changed}"] if changed else []
    notes += [f"error kind: {kind}"] if kind else []
    console.print("   ".join(notes), style="dim", markup=False)


def facts(result: StepResult[REPLObservation]) -> str:
    """The episode at its start, in a line."""
    observation = result.observation
    tier = observation.metadata["isolation"]["tier"]
    return f"context: {observation.context_length:,} characters   isolation: {tier}"


# ── the input, and the truth about it ────────────────────────────────────────────────────────────


def standard_library() -> dict[str, str]:
    """The source files of this Python's standard library, by path."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = (
        path
        for path in sorted(root.rglob("*.py"))
        if not {"site-packages", "dist-packages"} & set(path.parts)
    )
    # Some tests of the library are files in broken encodings.
    return {str(path.relative_to(root)): path.read_text("utf-8", "replace") for path in paths}


def truth(library: dict[str, str]) -> dict[str, object]:
    """The true answer, found line by line."""
    classes: dict[str, int] = {}
    longest = ""
    for package in ("asyncio", "email", "json", "logging"):
        texts = [text for path, text in library.items() if path.startswith(f"{package}/")]
        lines = [line for text in texts for line in text.split("\n") if line[:6] == "class "]
        classes[package] = len(lines)
        if package == "json":
            longest = max((re.split(r"[\s(:]", line)[1] for line in lines), key=len)
    return {"classes": classes, "longest": longest}


if __name__ == "__main__":
    sys.exit(main())
