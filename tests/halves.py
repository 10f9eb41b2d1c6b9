"""`make test`: the suite in two processes at once, `python -m tests.halves`.

Most tests run one process after the other, or wait for one, and leave the second processor idle.
The first half is shown as it runs, the second when both are over. The last line has the sums; the
exit status is 0 only if that of both halves is.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from typing import IO

# The folders of the second half, which takes about as long as the first. A folder belongs to one
# half: its modules share expensive fixtures, and tests/security has fixed ports and files.
SECOND = ("tests/security", "tests/repl_env/cli", "tests/server")

_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?)\b")


def main() -> int:
    """Run the suite in the working directory; 0 if all of it passed."""
    # Ctrl-C reaches both halves too, which end in order. SIGTERM reaches this process alone.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    pytest = [sys.executable, "-m", "pytest", f"--color={'yes' if sys.stdout.isatty() else 'no'}"]
    first = [*pytest, "tests", *(f"--ignore={folder}" for folder in SECOND)]
    # The file of what failed last has one writer.
    second = [*pytest, "-p", "no:cacheprovider", *SECOND]
    return side_by_side(first, second, sys.stdout.buffer)


def side_by_side(first: Sequence[str], second: Sequence[str], screen: IO[bytes]) -> int:
    """Run two pytests at once and show what they print, one after the other; 0 if both passed."""
    with (
        tempfile.TemporaryFile() as held,
        subprocess.Popen(second, stdout=held, stderr=subprocess.STDOUT) as other,
        subprocess.Popen(first, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as one,
    ):
        assert one.stdout is not None
        try:
            counts = _show(one.stdout, screen, one)
            one.wait()
            other.wait()
        finally:
            one.terminate()
            other.terminate()
            other.wait()
            held.seek(0)  # its output so far, also if this process ends early
            said = _show(held, screen)
    counts += said
    bad = [
        f"; the {name} ended with status {half.returncode}"
        for name, half in (("first", one), ("second", other))
        if half.returncode
    ]
    sums = ", ".join(f"{number} {what}" for what, number in counts.items())
    screen.write(f"both halves: {sums or 'nothing was run'}{''.join(bad)}\n".encode())
    screen.flush()
    return 1 if bad else 0


def _show(
    source: IO[bytes], screen: IO[bytes], half: subprocess.Popen[bytes] | None = None
) -> Counter[str]:
    """Copy all of `source` to the screen as it arrives; return the counts of pytest's last line.

    With `half`, the process that writes it, descendants that still run are not waited for.
    """
    end = b""
    while True:
        over = half is not None and half.poll() is not None
        if half is not None and not select.select([source], [], [], 0.2)[0]:
            if over:
                break
            continue
        if not (chunk := os.read(source.fileno(), 1 << 16)):
            break
        screen.write(chunk)
        screen.flush()
        end = (end + chunk)[-1000:]
    last = end.decode(errors="replace").rstrip().rpartition("\n")[2]
    return Counter({what: int(number) for number, what in _COUNT.findall(last)})


if __name__ == "__main__":
    sys.exit(main())
