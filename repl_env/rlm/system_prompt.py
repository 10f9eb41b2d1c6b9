"""The first messages of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from repl_env.interfaces import Message
from repl_env.rlm.budget.budget_limits import Budget
from repl_env.rlm.events import ContextNote
from repl_env.rlm.prompt_templates import (
    RLM_SYSTEM_PROMPT,
    RLM_SYSTEM_PROMPT_SHORT,
    QueryMetadata,
    build_rlm_system_prompt,
    build_user_prompt,
)

# Of a tool's docstring; the code can read the rest with help().
_MAX_DOC = 600

_CHILDREN = (
    "`rlm_query`, `rlm_query_batched` and `rlm_spawn` give the question to a model with a session "
    "of its own, whose variable `context` is what you pass as `context=`."
)
_NO_CHILDREN = "No further sessions may be begun below yours: `rlm_query` asks as `llm_query` does."

_LIMITS = {
    "calls": "{} calls of models, your own turns among them",
    "input_tokens": "{:,} tokens of prompts",
    "output_tokens": "{:,} tokens of answers",
    "usd": "{} US dollars",
    "seconds": "{} seconds",
    "cpu_seconds": "{} seconds of CPU time",
    "children": "{} further sessions",
}


def system_messages(
    question: str,
    contexts: Sequence[ContextNote],
    *,
    prompt: str | None = None,
    preview: str | None = None,
    tools: Mapping[str, Callable[..., Any]] | None = None,
    budget: Budget | None = None,
    children: bool = False,
    history: Sequence[tuple[str, str]] = (),
    examples: Sequence[Sequence[Message]] = (),
    short: bool = False,
) -> list[Message]:
    """Return the first messages of a run: the system message, the history, and the question.

    `prompt` replaces `RLM_SYSTEM_PROMPT`; `children`: whether calls may begin child runs;
    `history`:
    earlier questions of the conversation with their answers; `examples`: conversations of other
    tasks;
    `short`: for small models, only the instructions, the question and the variables.
    """
    before: list[Message] = [message for messages in examples for message in messages]
    for earlier, answer in history:
        before += [{"role": "user", "content": earlier}, {"role": "assistant", "content": answer}]
    offered = _tools(tools or {})
    if short:
        system = "\n\n".join([prompt or RLM_SYSTEM_PROMPT_SHORT, *offered])
        variables = "\n".join(_variable(note) for note in contexts if note.length)
        user_text = f"{question}\n\n{variables}" if variables else question
        return [
            {"role": "system", "content": system},
            *before,
            {"role": "user", "content": user_text},
        ]
    parts = [prompt or RLM_SYSTEM_PROMPT, _CHILDREN if children else _NO_CHILDREN]
    if budget is not None and (limits := _limits(budget)):
        parts.append(f"For all of this together you have {limits}. `budget()` says what is left.")
    instructions = build_rlm_system_prompt("\n\n".join([*parts, *offered]), _metadata(contexts))
    first = build_user_prompt(question, 0, history_count=1 if history else 0)
    if named := [note for note in contexts if note.name != "context"]:
        first = _adding(first, "The variables are:\n" + "\n".join(map(_variable, named)))
    if preview:
        first = _adding(first, f"What you are asked about begins:\n{preview}")
    return [*instructions, *before, first]


def _tools(tools: Mapping[str, Callable[..., Any]]) -> list[str]:
    if not tools:
        return []
    listed = "\n".join(_tool(name, function) for name, function in tools.items())
    return [f"Functions of this task, in the session:\n{listed}"]


def _limits(budget: Budget) -> str:
    known = {name: getattr(budget, name) for name in _LIMITS}
    return ", ".join(_LIMITS[name].format(value) for name, value in known.items() if value)


def _metadata(contexts: Sequence[ContextNote]) -> QueryMetadata:
    lengths = [note.length for note in contexts]
    kinds = {note.type for note in contexts} or {"str"}
    return QueryMetadata(lengths, sum(lengths), " and ".join(sorted(kinds)))


def _variable(note: ContextNote) -> str:
    return f"- `{note.name}`: {note.type}, length {note.length:,}"


def _tool(name: str, function: Callable[..., Any]) -> str:
    try:
        signature = str(inspect.signature(function))
    except (TypeError, ValueError):
        signature = "(...)"
    doc = inspect.getdoc(function) or "no description"
    doc = doc if len(doc) <= _MAX_DOC else f"{doc[:_MAX_DOC]}... (help({name}) has the rest)"
    return f"- `{name}{signature}`: " + doc.replace("\n", "\n  ")


def _adding(message: Message, text: str) -> Message:
    return {**message, "content": f"{message['content']}\n\n{text}"}
