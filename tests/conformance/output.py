"""Output: order, the two streams, text and bytes, children, and what is too much."""

from __future__ import annotations

from typing import Any

from repl_sandbox.types import Limits

from .steps import ANY, PROCESSES, Check, Like, Run, shows

_SMALL = Limits(timeout=60, output="64KiB")
_HALF = (64 << 10) // 2


def _check(name: str, *steps: Run, **more: Any) -> Check:
    return Check(name, "output", steps, **more)


OUTPUT = (
    _check("print goes to stdout", Run("print('a', 1)", shows(stdout="a 1\n"))),
    _check(
        "the streams are apart",
        Run(
            "import sys\nprint('out')\nprint('err', file=sys.stderr)", shows(None, "out\n", "err\n")
        ),
    ),
    _check(
        "the order within a stream is exact",
        Run(
            "import os\nfor n in range(100):\n    print(n, end=' ')\n    os.write(1, b'- ')",
            shows(stdout="".join(f"{n} - " for n in range(100))),
        ),
    ),
    _check("output and the displayed value are apart", Run("print('x')\n'y'", shows("'y'", "x\n"))),
    _check("text without a last newline arrives", Run("print('x', end='')", shows(stdout="x"))),
    _check(
        "text of any language arrives",
        Run("print('äß 中文 🎉')\n'é'", shows("'é'", "äß 中文 🎉\n")),
    ),
    _check(
        "bytes that are no text are replaced",
        Run(r"import os; _n = os.write(1, b'a\xff\xfeb\x00c')", shows(stdout="a\ufffd\ufffdb\0c")),
    ),
    _check(
        "a character that is written in two parts is one",
        Run(
            r"import os; _n = os.write(1, b'\xe4\xb8'); _n = os.write(1, b'\xad')",
            shows(stdout="中"),
        ),
    ),
    _check(
        "a lone surrogate does not end the cell", Run(r"print('\ud800')" "\n1", shows("1", ANY))
    ),
    _check(
        "warnings go to stderr",
        Run(
            "import warnings\nwarnings.warn('careful')",
            shows(stderr=Like(".*UserWarning: careful.*")),
        ),
    ),
    _check(
        "a stream that a cell closed is there again in the next",
        Run("import os\nos.close(1)", shows(stderr=ANY)),
        Run("print('again')", shows(stdout="again\n")),
    ),
    _check(
        "a redirected stream stays in the session",
        Run(
            "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as held:\n"
            "    print('inner')\nheld.getvalue()",
            shows(r"'inner\n'"),
        ),
    ),
    _check(
        "what programs write arrives",
        Run(
            "import subprocess\n_n = subprocess.run('echo out; echo err >&2', shell=True)",
            shows(None, "out\n", "err\n"),
        ),
        needs=PROCESSES,
    ),
    _check(
        "much output arrives whole",
        Run("print('x' * 1_000_000)", shows(stdout="x" * 1_000_000 + "\n")),
    ),
    _check(
        "too much output keeps its head and its tail, and says so",
        Run(
            "print('a' * 100_000)\nprint('z' * 100_000)",
            shows(
                stdout=Like(
                    rf"a{{{_HALF}}}\n\.\.\. \([0-9,]+ bytes of output dropped: "
                    rf"over the output limit\) \.\.\.\nz{{{_HALF - 1}}}\n"
                )
            ),
        ),
        limits=_SMALL,
    ),
    _check(
        "output after too much is whole again",
        Run("print('a' * 200_000)", shows(stdout=ANY)),
        Run("print('b')", shows(stdout="b\n")),
        limits=_SMALL,
    ),
    _check(
        "earlier output can be read in the session",
        Run("print('kept')", shows(stdout="kept\n")),
        Run("str(_out[1]).strip()", shows("'kept'")),
    ),
)
