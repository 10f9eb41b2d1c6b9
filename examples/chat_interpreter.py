"""A code interpreter for a chat application: a tool with one session per conversation."""

import base64
import json
from typing import Any

from repl_env import Limits, Sandbox
from repl_sandbox import Session

# The tool, as chat completions APIs take it.
TOOL = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run Python. Variables and files stay for the next call. No network.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string"}},
            "required": ["code"],
        },
    },
}


class CodeInterpreter:
    """Sessions by the id of their conversation."""

    def __init__(self, most: int = 100) -> None:
        limits = Limits(memory="512MiB", timeout=20, workspace="64MiB")
        self._sandbox = Sandbox(limits=limits, ready=2, max_sessions=most)
        self._sessions: dict[str, Session] = {}

    def call(self, conversation: str, arguments: str) -> list[dict[str, Any]]:
        """Answer a tool call: the parts of the tool's message, text first, then images."""
        try:
            code = json.loads(arguments)["code"]
        except (ValueError, KeyError, TypeError):
            return [{"type": "text", "text": 'Arguments must be {"code": "..."}.'}]
        if conversation not in self._sessions:
            self._sessions[conversation] = self._sandbox.session()
        outcome = self._sessions[conversation].run(code)
        text = outcome.stdout + (outcome.value or "") + outcome.stderr
        if outcome.error is not None:
            text += outcome.error.traceback or outcome.error.message
        if outcome.state != "kept":
            text += "The interpreter ended. Variables are those before this code."
        parts: list[dict[str, Any]] = [{"type": "text", "text": text or "(no output)"}]
        for png in outcome.figures:
            address = "data:image/png;base64," + base64.b64encode(png).decode()
            parts.append({"type": "image_url", "image_url": {"url": address}})
        return parts

    def upload(self, conversation: str, name: str, content: bytes) -> None:
        """Put a user's file into the session's working directory."""
        if conversation not in self._sessions:
            self._sessions[conversation] = self._sandbox.session()
        self._sessions[conversation].files.put(name, content)

    def end(self, conversation: str) -> None:
        """Close the session of a conversation."""
        session = self._sessions.pop(conversation, None)
        if session is not None:
            session.close()

    def close(self) -> None:
        """Close all sessions and the sandbox."""
        self._sandbox.close()


interpreter = CodeInterpreter()
interpreter.upload("ann", "prices.txt", b"3\n4\n")
for conversation, code in (
    ("ann", "prices = [int(line) for line in open('prices.txt')]\nsum(prices)"),
    ("bob", "prices"),
    ("ann", "import matplotlib.pyplot as plt\nplt.bar(['apples', 'pears'], prices);"),
    ("ann", "import os; os._exit(1)"),
    ("ann", "prices"),
):
    parts = interpreter.call(conversation, json.dumps({"code": code}))
    shown = [part["text"].strip().splitlines()[-1] for part in parts if part["type"] == "text"]
    print(conversation, shown, len(parts) - 1)
interpreter.end("bob")
interpreter.close()
