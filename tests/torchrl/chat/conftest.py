"""`REPLChatEnv` in each input mode."""

from __future__ import annotations

import pytest


@pytest.fixture(params=("history", "text", "tokens"))
def mode(request):
    return request.param


@pytest.fixture
def make(tokenizer):
    """Environments that are closed at the end."""
    from repl_env.integrations.torchrl import REPLChatEnv

    made = []

    def make(mode="history", **arguments):
        arguments = {"tokenizer": tokenizer, **arguments}
        made.append(REPLChatEnv(input_mode=mode, **arguments))
        return made[-1]

    yield make
    for env in made:
        env.close(raise_if_closed=False)
