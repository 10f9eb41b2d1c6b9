"""The peer "subprocess": executes what arrives on stdin, answers with what it printed."""

from __future__ import annotations

import contextlib
import io
import struct
import sys


def main() -> None:
    """Serve until stdin closes."""
    namespace: dict[str, object] = {}
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while kind := requests.read(1):
        (size,) = struct.unpack("!I", requests.read(4))
        text = requests.read(size).decode()
        output = io.StringIO()
        if kind == b"p":
            namespace["context"] = text
        else:
            with contextlib.redirect_stdout(output):
                exec(text, namespace)
        data = output.getvalue().encode()
        answers.write(struct.pack("!I", len(data)) + data)
        answers.flush()


if __name__ == "__main__":
    main()
