"""Time to get a file of a session from a server, beside a plain download of the same size."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from urllib.parse import urlsplit

from repl_env import REPLEnv

from .figure import Figure
from .samples import interleave
from .server import served

_SIZE = 100_000_000
_ROUNDS = 10
_CHUNK = 1 << 20
_ROOT = Path(__file__).parents[1]


def download() -> Iterator[Figure]:
    """100 MB of a workspace by the client, beside Starlette's FileResponse and http.client."""
    with (
        TemporaryDirectory() as folder,
        served.ours("restart") as ours,
        _plain(Path(folder)) as plain,
        open(os.devnull, "wb") as sink,
        REPLEnv(ours.url).sync() as env,
    ):
        env.reset()
        env.execute(f"import os; open('data', 'wb').write(os.urandom({_SIZE}))")

        def get() -> float:
            start = perf_counter()
            size = env.files.get("data", to=sink)
            return _checked(size, perf_counter() - start)

        def fetch() -> float:
            start = perf_counter()
            line = http.client.HTTPConnection(urlsplit(plain).netloc)
            line.request("GET", "/data")
            answer, size = line.getresponse(), 0
            while chunk := answer.read(_CHUNK):
                size += sink.write(chunk)
            line.close()
            return _checked(size, perf_counter() - start)

        taken = interleave({"ours": get, "floor": fetch}, _ROUNDS)
    yield Figure(
        "download",
        "100 MB of a workspace from a server",
        "ms",
        taken["ours"],
        taken["floor"],
        "a file by Starlette's FileResponse and http.client",
    )


def _checked(size: int, seconds: float) -> float:
    if size != _SIZE:
        raise RuntimeError(f"{size} bytes came, of {_SIZE}")
    return seconds


@contextmanager
def _plain(folder: Path) -> Iterator[str]:
    """A server of the files in `folder` as a process of its own."""
    (folder / "data").write_bytes(os.urandom(_SIZE))
    command = [sys.executable, "-m", "benchmarks.plain_download", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()
