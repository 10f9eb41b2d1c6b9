"""Limits: each is hit, named, and survived."""

from __future__ import annotations

from .steps import AGAIN, ANY, LOST, PROCESSES, Like, Run, killed, limited, raises, shows

# A watchdog may act when the refusal was printed already, or partly: `print` writes the line end
# separately.
_REFUSED_OR_KILLED = (shows(stdout="True\n"), killed("processes", Like(r"(True\n?)?")))
# Or later still, between two cells or in the one that waits for what is ending.
_WHATEVER = ("kept", *LOST)
_SURVIVED = (
    Run(
        "import threading\nfor thread in threading.enumerate():\n"
        "    if thread is not threading.current_thread(): thread.join()",
        (shows(states=_WHATEVER), killed("processes")),
    ),
    Run("6 * 7", shows("42", states=_WHATEVER)),
)

LIMITS = (
    limited(
        "memory is limited",
        "limits",
        Run("x = bytearray(1 << 30)", (raises("MemoryError"), killed("memory"))),
        AGAIN,
        memory="200MiB",
    ),
    limited(
        "memory of all processes together is limited",
        "limits",
        Run(
            "import os, time\nfor _ in range(6):\n    if os.fork() == 0:\n"
            "        block = bytearray(b'x') * (60 << 20); time.sleep(50); os._exit(0)\n"
            "time.sleep(50)",
            killed("memory", stderr=ANY),
        ),
        AGAIN,
        needs=PROCESSES,
        memory="200MiB",
    ),
    limited(
        "processes are limited",
        "limits",
        Run(
            "import os, signal\nchildren = []\ntry:\n    while len(children) < 100:\n"
            "        children.append(os.fork())\n        if not children[-1]: signal.pause()\n"
            "    signal.pause()\n"
            "except BlockingIOError:\n    print(len(children) < 30)\n"
            "    for child in children: os.kill(child, 9); os.waitpid(child, 0)",
            _REFUSED_OR_KILLED,
        ),
        *_SURVIVED,
        needs=PROCESSES,
        processes=20,
    ),
    limited(
        "threads count as processes",
        "limits",
        Run(
            "import threading\nstop = threading.Event()\ntry:\n    for n in range(100):\n"
            "        threading.Thread(target=stop.wait, daemon=True).start()\n"
            "    stop.wait(50)\n"
            "except RuntimeError:\n    print(n < 30)\nstop.set()",
            _REFUSED_OR_KILLED,
        ),
        *_SURVIVED,
        processes=20,
    ),
    limited(
        "open files are limited",
        "limits",
        Run(
            "files = []\nwhile True: files.append(open('/dev/null'))",
            raises("OSError", Like(r"\[Errno 24\].*"), 2),
        ),
        Run("files.clear()"),
        AGAIN,
        open_files=64,
    ),
    limited(
        "the size of a file is limited",
        "limits",
        Run(
            "with open('f', 'wb') as f: f.write(bytes(2 << 20))",
            raises("OSError", Like(r"\[Errno 27\].*")),
        ),
        AGAIN,
        file_size="1MiB",
    ),
    limited(
        "the workspace is limited",
        "limits",
        Run(
            "for n in range(10):\n    with open(f'f{n}', 'wb') as f: f.write(bytes(1 << 20))\n"
            "import time\ntime.sleep(50)",
            (raises("OSError", Like(r"\[Errno 28\].*"), 2), killed("workspace")),
        ),
        AGAIN,
        workspace="4MiB",
    ),
    limited(
        "CPU time is limited",
        "limits",
        Run("while True: pass", killed("cpu")),
        AGAIN,
        cpu_seconds=1,
    ),
)
