"""`repl-env serve` in a process of its own, which a test can stop, kill or halt."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

PROGRAM = "from repl_env.cli.main import main; main()"
# Of this machine, but not used by another test: a port here is free again when its server has
# ended.
ADDRESS = "127.0.0.77"


class Child:
    """A running `repl-env serve`, as a `Serving` is to its clients."""

    def __init__(self, process) -> None:
        self.process = process
        line = process.stdout.readline()
        assert "serves on " in line, line
        self.url = line.rpartition(" ")[2].strip()
        self.port = int(self.url.rpartition(":")[2])

    def descendants(self):
        return psutil.Process(self.process.pid).children(recursive=True)

    def runs(self, name):
        """Return whether a descendant has this name."""
        for each in self.descendants():
            with suppress(psutil.NoSuchProcess):
                if each.name() == name:
                    return True
        return False


@contextmanager
def child(*options, log=subprocess.DEVNULL) -> Iterator[Child]:
    """A server in a process of its own; killed in the end."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "serve", "--host", ADDRESS, "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    ) as process:
        try:
            yield Child(process)
        finally:
            process.kill()
