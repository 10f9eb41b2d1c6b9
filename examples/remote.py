"""An episode on a server: a large context uploaded once, output as it comes, several candidates.

    repl-env serve                                     # in one shell
    python examples/remote.py http://127.0.0.1:8000    # in another; REPL_API_KEY if the server asks

A second argument is how many seconds each candidate may take, 1 if it is not given.

The second run of it uploads nothing: the server knows the context by its hash.
"""

from __future__ import annotations

import asyncio
import os
import sys

from repl_env import REPLEnv, ServerError

QUESTION = "How many requests failed?"
LOG = "".join(
    f"{n:07d} GET /page/{n % 997} {500 if n % 1013 == 0 else 200}\n" for n in range(150_000)
)
TRUTH = sum(line.endswith("500") for line in LOG.splitlines())

# Proposals of a model: one counts the wrong thing, one takes too long, one is right.
CANDIDATES = (
    "FINAL(context.count('500'))",
    "while True: pass",
    "FINAL(sum(line.endswith('500') for line in context.splitlines()))",
)


def uploading(there: int, total: int) -> None:
    """Show how far the upload is."""
    print(f"\rcontext: {there:,} of {total:,} bytes", end="" if there < total else "\n")


async def candidate(env: REPLEnv, code: str, number: int, seconds: float) -> float:
    """The reward of one candidate, in a branch of the episode: the others see nothing of it."""
    async with await env.branch(seed=number) as branch:
        result = await branch.execute(code, timeout_s=seconds)
        found = result.observation.metadata["final_answer"] or result.observation.error_kind
        print(f"candidate {number}: {found}, reward {result.reward}")
        return result.reward or 0.0


async def main(url: str, seconds: float, api_key: str | None) -> int:
    """Play the episode; 0 if the best candidate was right."""
    try:
        async with REPLEnv(url, api_key=api_key) as env:
            await env.reset(
                context=LOG,
                task_prompt=QUESTION,
                expected_answer=str(TRUTH),
                on_upload=uploading,
            )
            await env.execute(
                "print(context[:40]); print(len(context.splitlines()), 'lines')",
                on_output=lambda stream, text: print(text, end=""),
            )
            tries = [
                candidate(env, code, number, seconds) for number, code in enumerate(CANDIDATES)
            ]
            return 0 if max(await asyncio.gather(*tries)) == 1.0 else 1
    except ServerError as error:
        print(error, file=sys.stderr)
        return 5


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    limit = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
    sys.exit(asyncio.run(main(address, limit, os.environ.get("REPL_API_KEY"))))
