"""Library functions replaced by session code: the engine calls its own copies."""

from __future__ import annotations

import pytest

from repl_sandbox import Finished, Killed, Sandbox, SandboxError, Session

# The guard against harmful code that evaluations of generated programs install.
GUARD = """
import builtins, faulthandler, os, shutil, subprocess, sys
faulthandler.disable()
builtins.exit = builtins.quit = builtins.help = None
os.environ["OMP_NUM_THREADS"] = "1"
for name in (
    "kill system putenv remove removedirs rmdir fchdir setuid fork forkpty killpg rename renames "
    "truncate replace unlink fchmod fchown chmod chown chroot getcwd chdir"
).split():
    setattr(os, name, None)
shutil.rmtree = shutil.move = shutil.chown = subprocess.Popen = None
for name in "ipdb joblib resource psutil tkinter".split():
    sys.modules[name] = None
"""

# Patches left by a test, and modules that refuse their purpose.
LEFT = """
from unittest.mock import patch
for name in {}:
    patch(name).start()
"""
REPLACED = {
    "guard": GUARD,
    "class of sockets": "import socket\nclass Own: pass\nsocket.socket = Own",
    "function of sockets": "import socket\nsocket.socket = lambda *_: 1 / 0",
    "json": "import json\njson.dumps = json.loads = json.JSONEncoder = None",
    "re": "import re\nre.compile = re.sub = re.match = None",
    "path": "import os\nos.path = None",
    "system": LEFT.format(("os.open", "os.close", "os.stat", "os.getpid", "os._exit", "os.read")),
    "time": LEFT.format(("time.time", "time.monotonic", "time.sleep", "select.select")),
    "network": LEFT.format(("socket.socket", "socket.socketpair", "select.poll")),
    "files": LEFT.format(("os.path.exists", "os.path.join", "os.getcwd", "os.listdir")),
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_session_is_copied_and_recovers(copied: Session, name: str) -> None:
    def value(session: Session, code: str) -> str | None:
        outcome = session.run(code)
        assert isinstance(outcome, Finished)
        return outcome.value

    value(copied, f"kept = 1\n{REPLACED[name]}")
    with copied.branch() as branch:
        assert value(branch, "kept + 1") == "2"
    value(copied, "kept = 3")
    copied.rollback()
    assert value(copied, "kept") == "1"
    died = copied.run("import ctypes\nctypes.string_at(0)")
    assert isinstance(died, Killed)
    assert died.state == "rolled_back"
    assert value(copied, "kept") == "1"
    assert copied.get("kept") == 1


def test_a_copy_that_ends_as_it_is_woken_leaves_an_empty_session() -> None:
    with Sandbox() as sandbox, sandbox.session() as session:
        assert session.run("import builtins\nbuiltins.getattr = None").ok
        assert session.run("later = 1").ok
        with pytest.raises(SandboxError, match="the session is empty now"):
            session.rollback()
        outcome = session.run("'later' in globals(), isinstance(1, int)")
        assert outcome.value == "(False, True)"
