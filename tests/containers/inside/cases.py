"""Run inside a container: what tier `confined` must hold there. Prints verdicts as JSON."""

from __future__ import annotations

import json
import os

from repl_sandbox import Limits, Sandbox

ATTEMPTS = """
import os, socket

def attempt(call, *arguments):
    try:
        call(*arguments)
    except OSError:
        return "refused"
    return "done"

seen = {
    "reads a file of the container": attempt(open, SECRET),
    "reads a system file": attempt(open, "/etc/passwd"),
    "writes beside itself": attempt(open, "/tmp/new", "w"),
    "makes a socket": attempt(socket.socket),
    "signals the host's process": attempt(os.kill, HOST, 0),
    "reads the host's memory map": attempt(open, f"/proc/{HOST}/maps"),
    "works in its own place": attempt(open, "own", "w"),
}
"""


def main() -> None:
    """Make a session of the tier that this container allows, and run code in it."""
    secret = os.path.join(os.path.expanduser("~"), "secret")
    with open(secret, "w", encoding="utf-8") as file:
        file.write("of the host")
    limits = Limits(memory="64MiB", timeout=120)
    with Sandbox(limits=limits) as sandbox, sandbox.session() as session:
        session.set("SECRET", secret)
        session.set("HOST", os.getpid())
        assert session.run(ATTEMPTS).ok
        verdicts = session.get("seen")
        assert isinstance(verdicts, dict)
        verdicts["tier"] = session.isolation.tier
        verdicts["not had"] = [refusal.tier for refusal in sandbox.refusals]
        # Before Linux 6.12 nothing holds signals where the uid is the host's, as the layer says.
        held = {layer.name: layer.active for layer in session.isolation.layers}
        verdicts["signals are held"] = held["signals"]
        verdicts["takes too much memory"] = type(session.run("bytearray(1 << 30)")).__name__
        verdicts["goes on"] = session.run("6 * 7").value
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main()
