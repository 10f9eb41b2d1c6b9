"""Runs in a session: carries out the request in `request`, and leaves its result in `result`.

Bytes are base64, since both are JSON.
"""

import base64
import os
import signal
import subprocess


def run(cmd, stdin, cwd, env):
    """Run a command; it and its children end where the time is up."""
    process = subprocess.Popen(
        cmd,
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(base64.b64decode(stdin))
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    code = process.returncode
    # As a shell tells that a signal ended a command.
    return {"code": 128 - code if code < 0 else code, "out": encoded(out), "err": encoded(err)}


def write(path, data, begin):
    """Write a piece of a file, in folders that are made for it."""
    if folder := os.path.dirname(path):
        os.makedirs(folder, exist_ok=True)
    with open(path, "wb" if begin else "ab") as file:
        file.write(base64.b64decode(data))


def read(path, offset, most):
    """Read a piece of a file, and its size."""
    with open(path, "rb") as file:
        file.seek(offset)
        return {"size": os.fstat(file.fileno()).st_size, "data": encoded(file.read(most))}


def encoded(data):
    """Bytes as text."""
    return base64.b64encode(data).decode()


result = {"run": run, "read": read, "write": write}[request.pop("operation")](**request)
