"""Runs in a session: carries out the request in `request`, and leaves its result in `result`.

Commands run on between requests, so several run side by side. Bytes are base64, since requests and
results are JSON.
"""

import base64
import os
import signal
import subprocess
import tempfile

running = globals().get("running", {})  # processes with their output files, by number


def start(number, cmd, stdin, cwd, env, wait, limit):
    """Start a command as the leader of its process group; then as `poll`."""
    with tempfile.TemporaryFile() as given:
        given.write(base64.b64decode(stdin))
        given.seek(0)
        out, err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 (`running` holds them)
        process = subprocess.Popen(
            cmd,
            cwd=cwd,
            env={**os.environ, **env},
            stdin=given,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    running[number] = process, out, err
    return poll(number, wait, limit)


def poll(number, wait, limit):
    """Wait `wait` seconds for a command; its result, or None while it runs.

    A command with more than `limit` bytes of output is stopped.
    """
    if number not in running:
        return LOST
    process, out, err = running[number]
    try:
        process.wait(wait)
    except subprocess.TimeoutExpired:
        if max(os.fstat(out.fileno()).st_size, os.fstat(err.fileno()).st_size) <= limit:
            return None
    return stop(number, limit)


def stop(number, limit):
    """Kill a command with its group, if it still runs; its result, with the last `limit` bytes."""
    if number not in running:
        return LOST
    process, out, err = running.pop(number)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    code = process.returncode
    return {
        # As a shell tells that a signal ended a command.
        "code": 128 - code if code < 0 else code,
        "out": tail(out, limit),
        "err": tail(err, limit),
        "over": max(os.fstat(out.fileno()).st_size, os.fstat(err.fileno()).st_size) > limit,
    }


def tail(file, limit):
    """The last `limit` bytes of an output file, which is closed with its last name."""
    size = os.fstat(file.fileno()).st_size
    return encoded(os.pread(file.fileno(), limit, max(0, size - limit)))


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


# Of a command that ran when the session's interpreter died, and all processes with it.
LOST = {
    "code": 128 + signal.SIGKILL,
    "out": "",
    "err": encoded(b"killed: the session's interpreter, the parent of every command, has ended"),
    "over": False,
}

_operations = {"start": start, "poll": poll, "stop": stop, "read": read, "write": write}
result = _operations[request.pop("operation")](**request)
