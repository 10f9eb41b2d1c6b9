"""Best of eight: try eight continuations of one live session, and go on with the best."""

from repl_env import LocalREPLEnv

LOG = "".join(f"{n:04d} GET /page {500 if n % 101 == 0 else 200}\n" for n in range(1, 5001))
START = "rows = [line.split() for line in context.splitlines()]\ncache = {}"

# Proposals of a model after the first cell, sampled eight times.
CANDIDATES = [
    "FINAL(context.count('500'))",
    "FINAL(len(rows))",
    "rows.clear(); FINAL(len(rows))",
    "FINAL(sum(row[-1] == 500 for row in rows))",
    "FINAL(sum(row[-1] == '500' for row in rows))",
    "import os; os._exit(1)",
    "while True: pass",
    "FINAL(row)",
]


def attempt(env: LocalREPLEnv, code: str) -> float:
    """Return the reward of a continuation, in a copy of the session that is dropped after it."""
    with env.branch() as branch:
        return branch.execute(code, timeout_s=2).reward or 0.0


with LocalREPLEnv() as env:
    env.reset(context=LOG, task_prompt="How many requests failed?", expected_answer=49)
    env.execute(START)
    scores = [attempt(env, code) for code in CANDIDATES]
    print(scores)
    best = CANDIDATES[scores.index(max(scores))]
    step = env.execute(best)  # the session is as it was before the attempts
    print(best, step.reward, step.done)
