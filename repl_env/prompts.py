"""Prompts of recursive runs, at the module path of OpenEnv's `repl_env.prompts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repl_env.common.display import set_module
from repl_env.interfaces import Message
from repl_env.models import CodeBlockResult, REPLObservation
from repl_env.parsing.blocks import extract_code_blocks

# Prompts for a model that works in the REPL, and the rendering of outcomes.
#
# The names and arguments are those of OpenEnv's `repl_env.prompts`. Every function here is pure.

__all__ = [
    "RLM_SYSTEM_PROMPT",
    "RLM_SYSTEM_PROMPT_QWEN",
    "RLM_SYSTEM_PROMPT_SHORT",
    "QueryMetadata",
    "build_rlm_system_prompt",
    "build_user_prompt",
    "extract_code_blocks",
    "format_observations",
]

# The list of chunk lengths is a hint, not data: a hundred show the shape of any chunking.
SHOWN_LENGTHS = 100

RLM_SYSTEM_PROMPT = """\
You answer a question about a context that is too large to read at once. The context is not in \
this conversation. It is a variable in a persistent Python session; you work on it by writing code.

Write code in a fenced block marked `repl`:
```repl
print(type(context), len(context))
print(context[:500])
```
It runs in the session; you are shown what it printed and the value of its last line, and then it \
is your turn again. Variables, imports and functions stay from one block to the next. Long output \
is cut in the middle, so print what you need and keep the rest in variables.

The session has:
- `context`: what the question is about. Look at its type, size and structure before anything else.
- `llm_query(prompt, model=None, context=None, schema=None)`: asks another language model one \
question and returns its answer as a str. It sees only `prompt` and `context`, which may hold \
several hundred thousand characters. With a JSON schema, `.value` of the answer is the parsed JSON.
- `llm_query_batched(prompts, ...)`: the same for a list of prompts at once, in order; `context` \
may be a list too. Use it whenever the questions do not depend on each other.
- `rlm_query(prompt, model=None, context=None, schema=None)`: gives a task to a model that works \
as you do, with a session of its own, in which `context` is what you pass. For tasks that need \
several steps. Where there is no such model, it asks as `llm_query` does.
- `rlm_query_batched(prompts, ...)`: the same for several tasks at once.
- `rlm_spawn(prompt, ...)`: begins the same and goes on; `.result()` of what it returns waits.
- `budget()`: what you may still spend, as a dict.
- `SHOW_VARS()`: the variables that you have made, with their types.
- `FINAL(value)`: gives `value` as the final answer and ends the work.
- `FINAL_VAR("name")`: gives the value of that variable as the final answer.

A good way to work:
1. Look at the context: how is it built, where are its parts, what can be found by plain code?
2. Search, filter, count and parse with Python. That is exact and costs nothing.
3. For what needs reading, cut the context into pieces along its structure and ask about the pieces:
```repl
pieces = [context[i : i + 200_000] for i in range(0, len(context), 200_000)]
notes = llm_query_batched(
    [f"Which people are named in this text? One per line.\\n\\n{piece}" for piece in pieces]
)
people = sorted({line.strip() for note in notes for line in note.splitlines() if line.strip()})
print(len(people), people[:20])
```
4. Put the results together, check them against the context, and correct what does not fit.
5. Only when you have seen the result, give it in a block of its own:
```repl
FINAL(people)
```

Do not only describe what you would do: write the code for it in the same reply. Text that starts \
with "Error:" in place of a sub-model's answer means that the call failed; its `.ok` is False.
"""

RLM_SYSTEM_PROMPT_QWEN = (
    RLM_SYSTEM_PROMPT
    + """
Every call of a sub-model costs time and money. Put as much as fits into each prompt, ask \
independent questions in one `llm_query_batched` call, and never ask about single lines in a loop.
"""
)

# For models below a billion parameters: they follow few instructions, and lose track of long ones.
RLM_SYSTEM_PROMPT_SHORT = """\
You answer questions about the variable `context` by writing Python code. Write one block of code \
in each reply:
```repl
print(context[:500])
```
You are shown what it printed. When you know the answer, give it:
```repl
FINAL(answer)
```"""

_FIRST_TURN = (
    "You have not seen the context yet. Begin by looking at it; do not answer in this turn.\n\n"
)
_LATER_TURN = "Above are your code and its results so far. "
_NEXT = (
    "Decide on the next step{about} and write it as a ```repl``` block. The session has the "
    "`context` variable and the functions named above."
)


@set_module("repl_env")
@dataclass(frozen=True)
class QueryMetadata:
    """A prompt's facts about a context: the lengths of its parts, their sum, its type."""

    context_lengths: list[int]
    context_total_length: int
    context_type: str = "str"


@set_module("repl_env")
def build_rlm_system_prompt(system_prompt: str, query_metadata: QueryMetadata) -> list[Message]:
    """Return the system message: `system_prompt`, then one line on the context's type and size."""
    lengths = query_metadata.context_lengths
    shown = str(lengths[:SHOWN_LENGTHS])
    if len(lengths) > SHOWN_LENGTHS:
        shown += f"... [{len(lengths) - SHOWN_LENGTHS} others]"
    about = (
        f"Your context is a {query_metadata.context_type} with "
        f"{query_metadata.context_total_length} total characters, and is broken up into chunks "
        f"of char lengths: {shown}."
    )
    return [{"role": "system", "content": f"{system_prompt}\n\n{about}"}]


@set_module("repl_env")
def build_user_prompt(
    root_prompt: str | None = None,
    iteration: int = 0,
    context_count: int = 1,
    history_count: int = 0,
) -> Message:
    """Return the user message that asks for the next turn.

    `root_prompt` is the question itself. With several contexts or earlier conversations, the
    message names the variables that hold them.
    """
    about = f' towards an answer to "{root_prompt}"' if root_prompt else ""
    text = (_LATER_TURN if iteration else _FIRST_TURN) + _NEXT.format(about=about)
    if context_count > 1:
        text += (
            f"\n\nThere are {context_count} contexts: the variables `context_0` to "
            f"`context_{context_count - 1}`."
        )
    if history_count == 1:
        text += "\n\nThe variable `history` holds an earlier conversation."
    elif history_count > 1:
        text += (
            f"\n\nThere are {history_count} earlier conversations: the variables `history_0` to "
            f"`history_{history_count - 1}`."
        )
    return {"role": "user", "content": text}


@set_module("repl_env")
def format_observations(
    observations: Sequence[REPLObservation],
    code_blocks: Sequence[str] | None = None,
    max_character_length: int = 20_000,
) -> str:
    """Return the outcomes of code blocks as text; each part is cut at `max_character_length`."""
    codes = list(code_blocks or [])
    parts = []
    for number, observation in enumerate(observations, 1):
        shown = shown_result(observation.result, max_character_length)
        if number <= len(codes):
            code = codes[number - 1]
            parts.append(f"Code executed:\n```python\n{code}\n```\n\nREPL output:\n{shown}")
        else:
            parts.append(f"Code block {number} output:\n{shown}")
    return "\n\n".join(parts)


def shown_result(result: CodeBlockResult, limit: int = 20_000) -> str:
    """Return the outcome of a cell as text for the model, cut at `limit` characters."""
    text = result.stdout.strip() or "(no output)"
    if not result.success:
        text += f"\n\nERROR: {result.stderr or result.exception or 'unknown error'}"
    elif result.stderr.strip():
        text += f"\n\nSTDERR: {result.stderr.strip()}"
    if result.figures:
        count = len(result.figures)
        text += f"\n\n({count} figure{'s' * (count > 1)})"
    # The end of an output holds the error, so the middle is cut.
    if len(text) > limit:
        head, tail = limit - limit // 2, limit // 2
        left_out = len(text) - limit
        text = f"{text[:head]}\n... [{left_out} chars truncated] ...\n{text[len(text) - tail :]}"
    return text
