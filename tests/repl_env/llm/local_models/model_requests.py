"""Requests to a local model, and its threads."""

from __future__ import annotations

import asyncio
import threading

from repl_env.rlm import ModelRequest

USER = [{"role": "user", "content": "What is in the context?"}]


def asking(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


QUESTIONS = [asking(f"question {number} {'x' * number * 3}") for number in range(6)]


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "repl-env batches"]


async def ask(model, messages=USER, /, **settings):
    return await model.complete(ModelRequest(messages=messages, **settings))


async def ask_all(model, questions, **settings):
    return await asyncio.gather(*(ask(model, question, **settings) for question in questions))
