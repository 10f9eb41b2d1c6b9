"""Time: what an interrupt leaves, what is killed, and the clock of host calls."""

from __future__ import annotations

from repl_sandbox.types import Raised

from .steps import AGAIN, LOST, PROCESSES, Expect, Run, limited, shows, timed_out

# Seconds. A cell of which the clock is all that is asked, and one that has something to do before.
_SHORT, _ENOUGH = 0.2, 0.5
# Long enough that code which obeys its interrupt is not killed, however busy the machine is.
_PATIENT = 30.0

CLOCKS = (
    limited(
        "a loop is interrupted and the variables stay",
        "time",
        Run("x = 1\nwhile True: pass", timed_out(), _SHORT),
        Run("x", shows("1")),
        grace=_PATIENT,
    ),
    limited(
        "a sleep is interrupted",
        "time",
        Run("import time\ntime.sleep(100)", timed_out(), _SHORT),
        AGAIN,
        grace=_PATIENT,
    ),
    limited(
        "what waits for a child is interrupted",
        "time",
        Run("import subprocess\nsubprocess.run(['sleep', '100'])", timed_out(), _SHORT),
        AGAIN,
        needs=PROCESSES,
        grace=_PATIENT,
    ),
    limited(
        "an awaited sleep is interrupted",
        "time",
        Run("import asyncio\nawait asyncio.sleep(100)", timed_out(), _SHORT),
        AGAIN,
        grace=_PATIENT,
    ),
    limited(
        "finally blocks of an interrupted cell run",
        "time",
        Run("try:\n    x = 0\n    while True: pass\nfinally:\n    x = 5", timed_out(), _ENOUGH),
        Run("x", shows("5")),
        grace=_PATIENT,
    ),
    limited(
        "a cell that swallows its interrupt is killed",
        "time",
        Run(
            "while True:\n    try:\n        n = 0\n        while True: pass\n"
            "    except BaseException: pass",
            timed_out(states=LOST),
            _ENOUGH,
        ),
        AGAIN,
    ),
    limited(
        "what cannot be interrupted is killed",
        "time",
        Run("sum(range(10 ** 12))", timed_out(states=LOST), _ENOUGH),
        AGAIN,
    ),
    limited(
        "a cell that blocks its signals is killed",
        "time",
        Run(
            "import signal\n_ = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
            "while True: pass",
            timed_out(states=LOST),
            _ENOUGH,
        ),
        AGAIN,
    ),
    limited(
        "the time-out of the session counts where none is given",
        "time",
        Run("while True: pass", timed_out()),
        Run("6 * 7", shows("42"), 60.0),
        timeout=_SHORT,
        grace=_PATIENT,
    ),
    limited(
        "waiting for the host has a clock of its own",
        "time",
        Run("never()", timed_out("host_call")),
        AGAIN,
        host=True,
        host_timeout=_SHORT,
        grace=_PATIENT,
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
            _ENOUGH,
        ),
        grace=_PATIENT,
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
        grace=_PATIENT,
    ),
)
