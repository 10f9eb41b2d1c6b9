"""Location of the sessions of episodes: this machine, or a server of this project."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import verifiers.v1 as vf
from pydantic_config import BaseConfig

from repl_env import AsyncLocalREPLEnv, EpisodeAborted, REPLEnv, SandboxError, ServerError
from repl_env.common.display import set_module

Episode: TypeAlias = AsyncLocalREPLEnv | REPLEnv

# Failures of what an episode runs on, which are nobody's in the rollout: verifiers tries again.
LOST_SESSION_ERRORS = (EpisodeAborted, SandboxError, ServerError)


@set_module("repl_env.integrations.verifiers")
class SessionConfig(BaseConfig):
    """The sessions of episodes."""

    base_url: str | None = None
    """A server of ours (`repl-env serve`); None: sessions on this machine."""
    api_key_var: str = "REPL_ENV_API_KEY"
    """The environment variable with the server's key; not set: no key is sent."""
    isolation: str = "auto"
    """How sessions on this machine are held; see `LocalREPLEnv`."""
    require: str | None = None
    """The weakest isolation that will do."""
    timeout_s: float | None = None
    """Seconds of execution for one block of code; None: the sandbox's or the server's limit."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `LocalREPLEnv` for sessions on this machine."""
        return {"isolation": self.isolation, "require": self.require}

    @asynccontextmanager
    async def environment(self) -> AsyncIterator[Episode]:
        """An environment for one episode.

        Raises:
            vf.SandboxError: what the episode runs on is not there, or got lost inside.
        """
        with infrastructure():
            if self.base_url is None:
                async with AsyncLocalREPLEnv(**self.arguments) as local:
                    yield local
            else:
                key = os.environ.get(self.api_key_var)
                async with REPLEnv(self.base_url, api_key=key) as remote:
                    yield remote


@contextmanager
def infrastructure() -> Iterator[None]:
    """Raise what an episode runs on and has lost as verifiers' `SandboxError`, which it retries."""
    try:
        yield
    except LOST_SESSION_ERRORS as error:
        raise vf.SandboxError(f"{type(error).__name__}: {error}") from error
