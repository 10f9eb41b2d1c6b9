"""A container engine to test with: one that answers, or one started from an installed package.

`python engine.py FOLDER` prints the arguments that a `docker` client needs, as JSON, or fails with
the reason on standard error. With `--stop` it ends what it started in FOLDER. Nothing is installed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_START_SECONDS = 30.0


def _answers(client: list[str]) -> str:
    """Why no engine answers; "" if one does."""
    command = [*client, "info", "--format", "{{.ServerVersion}}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return "" if done.returncode == 0 and done.stdout.strip() else done.stderr.strip()


def _start(folder: Path) -> list[str]:
    engine = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if engine is None:
        raise SystemExit("no engine answers, and no dockerd is installed (Debian: docker.io)")
    if os.geteuid() != 0:
        raise SystemExit("no engine answers, and only root may start one")
    address = f"unix://{folder}/engine.sock"
    places = [f"--{name}={folder}/{name}" for name in ("data-root", "exec-root")]
    with open(folder / "engine.log", "wb") as log:
        process = subprocess.Popen(
            [engine, "--host", address, "--pidfile", f"{folder}/engine.pid", *places],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    client = ["docker", "--host", address]
    end = time.monotonic() + _START_SECONDS
    while _answers(client):
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            last = (folder / "engine.log").read_text(errors="replace").strip().splitlines()
            raise SystemExit(f"dockerd does not start here: {' '.join(last[-1:])}")
        time.sleep(0.2)
    return client


def main() -> None:
    """See the module."""
    folder = Path(sys.argv[1]).resolve()
    if "--stop" in sys.argv:
        if (folder / "engine.pid").exists():
            os.kill(int((folder / "engine.pid").read_text()), signal.SIGTERM)
        return
    if shutil.which("docker") is None:
        raise SystemExit("no docker client is installed (Debian: docker.io)")
    client = ["docker"]
    print(json.dumps(_start(folder) if _answers(client) else client))


if __name__ == "__main__":
    main()
