"""`make demo`: two episodes on real input, without a model, a key or a network.

The context of the first is the source text of Python's own standard library: tens of megabytes
that no prompt could hold. A scripted policy reads it by code, as a model would, and gives an answer
that this program checks by other means. The second runs into an exception and a time-out, and goes
on. Exit status 0 if both end with reward 1.0.
"""

from __future__ import annotations

import sys
import sysconfig
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.panel import Panel
from rich.syntax import Syntax
from rich.text import Text

from repl_env import LocalREPLEnv
from repl_env.models import REPLObservation, StepResult
from repl_env.parsing import extract_code_blocks

HEADER = "##### FILE: "  # starts the line before each file of the library

QUESTION = (
    "`context` is the source of a large Python library. Each file is preceded by a line "
    f"`{HEADER}<path>`. Say a file imports M if one of its lines, leading blanks aside, begins "
    "with `import M`, where M ends before the first dot. Which M is imported by the most files, "
    "and by how many? Answer as `M: number`."
)

# What a model might write, one reply per turn.
EXPLORE = [
    """The context may be large. First its size and how it looks.
```python
print(type(context).__name__, f"{len(context):,} characters")
print(context[:400])
```""",
    """It is far too long to read, so I cut it into files and work on those.
```python
MARK = "##### FILE: "
files = {}
for part in context.split("\\n" + MARK)[1:] + [context.removeprefix(MARK).split("\\n" + MARK)[0]]:
    path, _, text = part.partition("\\n")
    files[path] = text
print(len(files), "files")
sorted(files, key=lambda path: len(files[path]))[-5:]
```""",
    """Now the imports, counted once per file.
```python
import re
from collections import Counter

pattern = re.compile(r"^[ \\t]*import[ \\t]+(\\w+)", re.MULTILINE)
counts = Counter(name for text in files.values() for name in set(pattern.findall(text)))
counts.most_common(5)
```""",
    """The first one leads. I submit it.
```python
name, number = counts.most_common(1)[0]
FINAL(f"{name}: {number}")
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

console = Console(width=100)


def main() -> int:
    """Play both episodes; 0 if both were solved."""
    library = standard_library()
    text = "\n".join(f"{HEADER}{path}\n{content}" for path, content in library.items())
    numbers = "\n".join([*map(str, range(1, 2000)), "two thousand"])
    with LocalREPLEnv() as env:
        first = play(env, "A large context", text, QUESTION, truth(library), EXPLORE)
        task = "Twice the sum of the numbers in `context`, one per line."
        second = play(env, "A bumpy road", numbers, task, str(2 * sum(range(2000))), STUMBLE)
    return 0 if first == second == 1.0 else 1


def play(
    env: LocalREPLEnv, title: str, context: str, task: str, expected: str, replies: list[str]
) -> float | None:
    """One episode of the scripted policy; its last reward."""
    console.rule(f"[bold]{title}")
    result = env.reset(context=context, task_prompt=task, expected_answer=expected)
    console.print(Markdown(task))
    console.print(facts(result), style="dim")
    for reply in replies:
        console.print(Markdown(reply.partition("```")[0]))
        for code in extract_code_blocks(reply):
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
    """What the policy gets to see of a step, and what it cost."""
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
    tier = observation.metadata["isolation"]
    return f"context: {observation.context_length:,} characters   isolation: {tier}"


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


def truth(library: dict[str, str]) -> str:
    """The true answer, found without regular expressions."""
    importers: dict[str, set[str]] = defaultdict(set)
    for path, text in library.items():
        for line in text.split("\n"):
            words = line.replace(",", " ").replace(";", " ").replace(".", " ").split()
            if len(words) > 1 and words[0] == "import":
                importers[words[1]].add(path)
    name = max(importers, key=lambda module: len(importers[module]))
    return f"{name}: {len(importers[name])}"


if __name__ == "__main__":
    sys.exit(main())
