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
