"""Code that sends messages to the host on its worker's socket, without a pause.

The host's event loop reads each message; only the host's limits stop such code.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# One frame, repeated. MORE follows the fields of a call in its header. Answers are read and
# discarded, otherwise the host would wait.
_FORGER = """
import os, socket, struct, threading
host = socket.socket(fileno=os.dup(1000))
host.setblocking(True)
def heard():
    while host.recv(1 << 20): pass
threading.Thread(target=heard, daemon=True).start()
header = b'{"type":"call","call":1,"cell":1,"name":"none","parts":[' + (MORE).encode() + b"}"
frame = struct.pack("!II", len(header), 8) + header + b"[[], {}]"
frames = frame * max(1, (1 << 16) // len(frame))
while True: host.sendall(frames)
"""
_MORE = {
    "flood of refused calls": """']'""",
    "flood of large calls": """",".join(f'["{n:x}","str",0]' for n in range(1 << 14)) + ']'""",
    "headers with lists": """'],"more":[' + '[],' * 690_000 + '[]]'""",
    "headers with keys": """']' + ''.join(f',"{n:x}":0' for n in range(190_000))""",
}
# Valid calls of an unknown function.
_CALLS = """
import threading
def ask():
    while True:
        try: llm_query('x')
        except Exception: pass
for _ in range(8): threading.Thread(target=ask, daemon=True).start()
ask()
"""

FORGED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{kind: _FORGER.replace("MORE", more) for kind, more in _MORE.items()},
        "flood of calls": _CALLS,
    }
)
