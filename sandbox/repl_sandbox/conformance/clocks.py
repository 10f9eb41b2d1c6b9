"""Time: what an interrupt leaves, what is killed, and the clock of host calls."""

from __future__ import annotations

from ..types import Raised
from .steps import AGAIN, LOST, PROCESSES, Expect, Run, limited, shows, timed_out

_SHORT = 0.2

CLOCKS = (
    limited(
        "a loop is interrupted and the variables stay",
        "time",
        Run("x = 1\nwhile True: pass", timed_out(), _SHORT),
        Run("x", shows("1")),
    ),
    limited(
        "a sleep is interrupted",
        "time",
        Run("import time\ntime.sleep(100)", timed_out(), _SHORT),
        AGAIN,
    ),
    limited(
        "what waits for a child is interrupted",
        "time",
        Run("import subprocess\nsubprocess.run(['sleep', '100'])", timed_out(), _SHORT),
        AGAIN,
        needs=PROCESSES,
    ),
    limited(
        "an awaited sleep is interrupted",
        "time",
        Run("import asyncio\nawait asyncio.sleep(100)", timed_out(), _SHORT),
        AGAIN,
    ),
    limited(
        "finally blocks of an interrupted cell run",
        "time",
        Run("try:\n    x = 0\n    while True: pass\nfinally:\n    x = 5", timed_out(), _SHORT),
        Run("x", shows("5")),
    ),
    limited(
        "a cell that swallows its interrupt is killed",
        "time",
        Run(
            "while True:\n    try:\n        n = 0\n        while True: pass\n"
            "    except BaseException: pass",
            timed_out(states=LOST),
            _SHORT,
        ),
        AGAIN,
    ),
    limited(
        "what cannot be interrupted is killed",
        "time",
        Run("sum(range(10 ** 12))", timed_out(states=LOST), _SHORT),
        AGAIN,
    ),
    limited(
        "a cell that blocks its signals is killed",
        "time",
        Run(
            "import signal\n_ = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
            "while True: pass",
            timed_out(states=LOST),
            _SHORT,
        ),
        AGAIN,
    ),
    limited(
        "the time-out of the session counts where none is given",
        "time",
        Run("while True: pass", timed_out()),
        AGAIN,
        timeout=_SHORT,
    ),
    limited(
        "waiting for the host has a clock of its own",
        "time",
        Run("never()", timed_out("host_call")),
        AGAIN,
        host=True,
        timeout=5.0,
        host_timeout=_SHORT,
    ),
    limited(
        "output up to a time-out is kept",
        "time",
        Run(
            "print('so far')\nwhile True: pass",
            Expect(
                timed_out().kind,
                stdout="so far\n",
                error=("KeyboardInterrupt", ""),
                clock="execution",
            ),
            _SHORT,
        ),
    ),
    limited(
        "an interrupt from outside is an error of the cell",
        "time",
        Run(
            "x = 1\nprint('here')\nwhile True: pass",
            Expect(Raised, stdout="here\n", error=("KeyboardInterrupt", "")),
            interrupt="here\n",
        ),
        Run("x", shows("1")),
    ),
)
