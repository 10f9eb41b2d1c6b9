"""A container engine to test with: one that answers, or one started from an installed package.

`python engine.py FOLDER` prints the arguments that a `docker` client needs, as JSON, or fails with
the reason on standard error. With `--stop` it ends what it started in FOLDER, and waits for that;
`--own OPTION...` starts one in FOLDER, whatever answers, and perhaps again after that was killed.
Nothing is installed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_START_SECONDS = 180.0
# Seconds in which an engine ends its containers and itself; it gives each container 10.
_STOP_SECONDS = 60.0
# Containers of these tests have no network. So the engine needs none, and starts where it cannot
# create a bridge or its rules.
_WITHOUT_NETWORK = ("--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false")


# Beside the usual runtime: the same by a name that has its template spoken with over a stream, and
# gVisor, where it is installed (Debian: runsc), on a platform that needs no rights but those here.
STREAMED, GVISOR = "streamed", "runsc"
_PATHS = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _runtimes() -> dict[str, object]:
    found: dict[str, dict[str, object]] = {}
    found[STREAMED] = {"path": shutil.which("runc", path=_PATHS)}
    arguments = ["--platform=ptrace", "--network=none", "--ignore-cgroups"]
    found[GVISOR] = {"path": shutil.which("runsc", path=_PATHS), "runtimeArgs": arguments}
    return {name: each for name, each in found.items() if each["path"]}


def _silence(client: list[str]) -> str:
    """Why no engine answers; "" if one does."""
    command = [*client, "info", "--format", "{{.ServerVersion}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "the engine does not answer within 60 s"
    # Old clients exit 0 with an empty version if they reach no daemon.
    if done.returncode == 0 and done.stdout.strip():
        return ""
    return done.stderr.strip() or "the client says nothing of an engine"


def _start(folder: Path, *options: str) -> list[str]:
    engine = shutil.which("dockerd", path=_PATHS)
    if engine is None:
        raise SystemExit("no engine answers, and no dockerd is installed (Debian: docker.io)")
    if os.geteuid() != 0:
        raise SystemExit("no engine answers, and only root may start one")
    address = f"unix://{folder}/engine.sock"
    # The zombie of an engine that was killed.
    for stale in ("engine.pid", "exec-root/containerd/containerd.pid"):
        (folder / stale).unlink(missing_ok=True)
    places = [f"--{name}={folder}/{name}" for name in ("data-root", "exec-root")]
    configured = folder / "daemon.json"
    configured.write_text(json.dumps({"runtimes": _runtimes()}))
    with open(folder / "engine.log", "wb") as log:
        process = subprocess.Popen(
            [
                engine,
                f"--host={address}",
                f"--pidfile={folder}/engine.pid",
                f"--config-file={configured}",
                *places,
                *_WITHOUT_NETWORK,
                *options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    client = ["docker", "--host", address]
    end = time.monotonic() + _START_SECONDS
    while _silence(client):
        if process.poll() is not None or time.monotonic() > end:
            _end(process.pid)
            last = (folder / "engine.log").read_text(errors="replace").strip().splitlines()
            raise SystemExit(f"dockerd does not start here: {' '.join(last[-1:])}")
        time.sleep(0.2)
    return client


def _end(pid: int) -> None:
    """Ask the engine to end, which ends its containerd too; then insist."""
    try:
        engine = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(engine, signal.SIGTERM)
        if not select.select([engine], [], [], _STOP_SECONDS)[0]:
            signal.pidfd_send_signal(engine, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(engine)


def _mounts_below(folder: Path) -> list[str]:
    """The mounts that an engine leaves which was killed; the innermost first."""
    with open("/proc/self/mounts", encoding="utf-8") as file:
        places = [line.split()[1] for line in file]
    return sorted((place for place in places if place.startswith(f"{folder}/")), reverse=True)


def _stop(folder: Path) -> None:
    if (folder / "engine.pid").exists():
        _end(int((folder / "engine.pid").read_text()))
    for mounted in _mounts_below(folder):
        subprocess.run(["umount", "--lazy", mounted], check=False)
    for name in ("data-root", "exec-root"):  # images are large
        shutil.rmtree(folder / name, ignore_errors=True)


def main() -> None:
    """See the module."""
    folder = Path(sys.argv[1]).resolve()
    if "--stop" in sys.argv:
        _stop(folder)
        return
    if shutil.which("docker") is None:
        raise SystemExit("no docker client is installed (Debian: docker.io)")
    client = ["docker"]
    if "--own" in sys.argv:
        print(json.dumps(_start(folder, *sys.argv[3:])))
        return
    print(json.dumps(_start(folder) if _silence(client) else client))


if __name__ == "__main__":
    main()
