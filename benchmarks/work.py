"""The work that is measured, the same text for everyone."""

from __future__ import annotations

STEP = "x = 1"
CPU_LOOP = "t = 0\nfor i in range(2_000_000):\n    t += i * i\n"
# Seconds for one call: an expression, so that a floor that evaluates can do it too. getppid(2) does
# next to nothing, and no library caches it.
SYSCALL = (
    "(lambda clock, call: [clock(), [call() for _ in range(100_000)] and clock()])"
    "(__import__('time').perf_counter, __import__('os').getppid)"
)
SYSCALLS = 100_000
PRINT_1_MB = "print('a' * 1_000_000)"
TEXT_LINE = "a line of text that stands for all others\n"
# Seconds of one fork of the session's process, of its end and of the wait for that.
FORK = """
def fork():
    start = time.perf_counter()
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return time.perf_counter() - start
sorted(fork() for _ in range(21))[10]
"""
DIE = "os._exit(1)"
TEXT_10_MB = TEXT_LINE * (10_000_000 // len(TEXT_LINE))
RUN_TURNS = 200
# Seconds that a model takes at least: a hosted one needs ten times as long for its first token.
MODEL_SECONDS = 10e-3
ASK = "llm_query('What is this?')"
BATCH_PROMPTS = 64
ASK_BATCH = f"llm_query_batched(['What is this?'] * {BATCH_PROMPTS})"
ASK_CHILD = "rlm_query('What is this?')"


# Rollouts of TorchRL's chat: rows of a batch and turns of each, and rows on one context.
CHAT_ROWS, CHAT_TURNS = 4, 4
CHAT_GROUP = 8


def block(code: str) -> str:
    """The reply of a model that writes `code`."""
    return f"```repl\n{code}\n```"


def timing(rounds: int, answer: str = "FINAL(taken)", **calls: str) -> str:
    """A cell that times each of `calls` so often, in turn, and answers with the seconds."""
    functions = ", ".join(f"{name!r}: lambda: {call}" for name, call in calls.items())
    return f"""
import time
def timed(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
calls = {{{functions}}}
taken = {{name: [] for name in calls}}
for number in range({rounds} + 1):
    for name, call in calls.items():
        seconds = timed(call)
        if number:
            taken[name].append(seconds)
{answer}
"""
