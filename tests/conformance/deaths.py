"""Deaths: of a worker, which its session outlives, and of a session."""

from __future__ import annotations

from .steps import AGAIN, PROCESSES, Close, Fresh, Run, killed, limited, shows

DEATHS = (
    limited(
        "a cell that exits its process is reported",
        "deaths",
        Run("print('last words')\nimport os\nos._exit(3)", killed("exit", "last words\n")),
        AGAIN,
    ),
    limited(
        "a crash is reported",
        "deaths",
        Run("import ctypes\nctypes.string_at(0)", killed("signal")),
        AGAIN,
    ),
    limited(
        "a kill is reported",
        "deaths",
        Run("import os\nos.kill(os.getpid(), 9)", killed("signal")),
        AGAIN,
    ),
    limited(
        "files outlive the worker",
        "deaths",
        Run("open('f', 'w').write('x')", shows("1")),
        Run("import os\nos._exit(0)", killed("exit")),
        Run("open('f').read()", shows("'x'")),
    ),
    limited(
        "functions of the host outlive the worker",
        "deaths",
        Run("import os\nos._exit(0)", killed("exit")),
        Run("add(1, 2)", shows("3")),
        host=True,
    ),
    limited(
        "children end with the worker",
        "deaths",
        Run("import fcntl, os, subprocess\nopen('held', 'w').close()"),
        Run(
            # A lock of the open file, which its child has too: held for as long as either lives.
            "f = open('held')\nfcntl.flock(f, fcntl.LOCK_EX)\n"
            "p = subprocess.Popen(['sleep', '1000'], pass_fds=[f.fileno()])\nos._exit(0)",
            killed("exit"),
        ),
        Run("import fcntl\nfcntl.flock(open('held'), fcntl.LOCK_EX | fcntl.LOCK_NB)"),
        needs=PROCESSES,
    ),
    limited(
        "one session's death is not another's",
        "deaths",
        Run("x = 1"),
        Fresh(),
        Run("import os\nos._exit(0)", killed("exit")),
        Fresh(),
        AGAIN,
    ),
    limited("a closed session is closed", "deaths", AGAIN, Close()),
)
