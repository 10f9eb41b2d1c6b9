"""Look up the distribution `openenv-repl-env`, installed in a folder, by OpenEnv's AutoEnv.

Arguments: the folder, one for OpenEnv's cache, a server's URL. It prints a line of JSON.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from typing import Any


async def look_up(url: str) -> dict[str, Any]:
    """See the module."""
    from openenv.auto import AutoAction, AutoEnv

    made = AutoEnv.from_env("repl-env", base_url=url)
    action = AutoAction.from_env("repl-env")
    async with made as env:
        reset = env.reset(context="one two three", expected_answer="3")
        await (reset if inspect.isawaitable(reset) else asyncio.sleep(0))
        done = await env.step(action(code="FINAL(len(context.split()))"))
    info = AutoEnv.get_env_info("repl-env")
    return {
        "client": f"{type(made).__module__}.{type(made).__name__}",
        "action": action.__name__,
        "reward": done.reward,
        "package": info["package"],
        "version": info["version"],
    }


if __name__ == "__main__":
    site, cache, server = sys.argv[1:]
    sys.path.insert(0, site)
    os.environ["XDG_CACHE_HOME"] = cache
    print(json.dumps({"story": "looked up", "told": asyncio.run(look_up(server))}))
