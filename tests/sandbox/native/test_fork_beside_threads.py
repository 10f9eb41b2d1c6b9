"""A fork of a process with other threads: it succeeds whatever these are doing."""

from __future__ import annotations

import subprocess
import sys

# The other thread asks for the GIL again and again, as one that waits for it does after the switch
# interval: a fork of gigabytes takes longer than the usual five milliseconds.
_CALLER = """
import os, sys, threading
from repl_sandbox.jail import processes
from repl_sandbox.native import forks

def spin():
    while True:
        pass

processes.adopt_orphans()
if os.fork() == 0:
    sys.setswitchinterval(1e-6)
    threading.Thread(target=spin, daemon=True).start()
    for _ in range(40):
        if forks.fork_beside_threads() == 0:
            os.write(1, b"forked ")
            os._exit(0)
    os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        sys.exit()
"""


def test_a_fork_beside_a_thread_that_asks_for_the_gil_succeeds() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _CALLER], check=True, capture_output=True, text=True, timeout=120
    )

    assert (run.stdout.split(), run.stderr) == (["forked"] * 40, "")
