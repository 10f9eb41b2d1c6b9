"""An agent loop that survives bad replies: no code, broken code, endless code, code that kills."""

from collections.abc import Iterator

from repl_env import (
    LocalREPLEnv,
    REPLAction,
    REPLObservation,
    extract_code_blocks,
)

FENCE = "`" * 3
CONTEXT = "apples 3\npears 4"
QUESTION = "How many fruits?"


def fenced(code: str) -> str:
    """Return a reply with one block of code."""
    return f"{FENCE}repl\n{code}\n{FENCE}"


def replies() -> Iterator[str]:
    """Yield what a weak model might write; a real one is asked with the messages so far."""
    yield "I think that there are seven fruits."
    yield fenced("numbers = [line.split()[1] for line in context.splitlines(]")
    yield fenced("while True: pass")
    yield fenced("import os; os._exit(1)")
    yield fenced("FINAL(numbers)")
    yield fenced("FINAL(sum(int(line.split()[1]) for line in context.splitlines()))")


def action(reply: str) -> REPLAction:
    """Return the code of a reply, or a note that the reply has none."""
    blocks = extract_code_blocks(reply)
    if len(blocks) != 1:
        return REPLAction(format_error=f"Write one block of code, not {len(blocks)}.")
    return REPLAction(code=blocks[0])


def feedback(observation: REPLObservation) -> str:
    """Return what the model is shown next: output, error, and how many steps are left."""
    result = observation.result
    left = observation.max_iterations - observation.iteration
    return "\n".join(filter(None, [result.stdout, result.stderr, f"{left} steps left"]))


messages = [{"role": "user", "content": QUESTION}]
with LocalREPLEnv() as env:
    env.reset(
        context="apples 3\npears 4", task_prompt=QUESTION, expected_answer=7, max_iterations=10
    )
    for reply in replies():
        step = env.step(action(reply), timeout_s=2)
        messages += [{"role": "assistant", "content": reply}]
        messages += [{"role": "user", "content": feedback(step.observation)}]
        print(f"{step.reward:5}  {step.observation.error_kind}")
        if step.done:
            break
    print(env.state().stop_reason, env.state().final_answer, len(messages))
