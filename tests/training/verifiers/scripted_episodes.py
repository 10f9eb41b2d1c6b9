"""One episode of an environment of verifiers, with a model that a test scripts."""

from __future__ import annotations

import sys
from types import ModuleType

import verifiers.v1 as vf

from repl_env.integrations.verifiers import REPLData, REPLTask


def task(question="How many words?", *, config=None, **data):
    """A task of this project."""
    given = {"context": "a b c", "expected_answer": 3, **data}
    return REPLTask(REPLData(question=question, **given), config)


async def play(served, task, env=None, /, **settings):
    """An episode of `task`, its model at `served`; `env` are its settings, or `settings`."""
    settings = {**(env or {}), **settings}
    settings.setdefault("taskset", {"id": "repl-env-verifiers"})
    made = vf.load_environment(vf.resolve_env_config(settings))
    client = vf.EvalClientConfig(base_url=served.base_url, api_key_var="NO_SUCH_KEY")
    ctx = vf.ModelContext(model="m", client=client, sampling=vf.SamplingConfig())
    async with made.serving():
        return await made.run_episode(task, ctx)


def plugin(name, monkeypatch, **names):
    """A module with these names, as a package of plugins that is installed."""
    module = ModuleType(name)
    module.__spec__ = None
    vars(module).update(names, __all__=list(names))
    monkeypatch.setitem(sys.modules, name, module)
