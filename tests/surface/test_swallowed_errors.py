"""A test that swallows errors proves that what it tries took place.

Code under test tries what must fail, and goes on: `try: os.kill(1, 9)`, `except OSError: pass`. It
does so too if a name in it is wrong, and then the test passes and tests nothing. So what is done in
such a block leaves something that is looked at: a value, a count, an output. Where the proof is
elsewhere, a table says where. The cases of the corpus of abuse have proofs of their own, which
their harness requires.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
BROAD = {"BaseException", "Exception", "OSError"}
# What is done to a name of the code around the block.
KEEPING = {"add", "append", "extend", "update"}
# Functions that tell the test.
TELLING = {"FINAL", "print", "proof"}
# Files and blocks: where it is seen that they were run.
ELSEWHERE = {
    ("repl_env/episode/test_masks.py", "{}"): "the endpoint's requests, or a mask, which no step "
    "without a failed call has",
    ("repl_env/tasks/test_task_sets.py", "score(1.0)"): "the error says that it scored twice",
    ("sandbox/policies/test_policy_lint.py", "import os"): "the policy's error, before it is run",
    ("sandbox/session/branches/test_branch_recovery.py", "end.shutdown(socket.SHUT_RDWR)"): "the "
    "session cannot be branched afterwards",
    ("sandbox/session/files/test_file_transfers.py", "call()"): "the content that was seen",
    ("sandbox/session/host_functions/test_call_ends.py", "session.run('hang()')"): "the function "
    "has begun, and is cancelled",
    ("sandbox/snapshots/test_recovery.py", "os.kill(os.getppid(), signal.SIGKILL)"): "nothing in "
    "it can fail but the call",
    ("sandbox/zygote/test_stream_transport.py", "self._ours.shutdown(socket.SHUT_RDWR)"): "it "
    "closes what may be closed",
    ("security/attacks/fork_bombs.py", "if os.fork() == 0:"): "the number of processes",
    ("security/attacks/fork_bombs.py", "signal.signal(number, signal.SIG_IGN)"): "the signals are "
    "blocked as well",
    ("security/attacks/neighbours.py", "listener = socket.socket(socket.AF_UNIX)"): "in tier "
    "`process` the neighbour reaches it",
    ("security/attacks/neighbours.py", "os.kill(-1, signal.SIGWINCH)"): "in tier `process` the "
    "neighbour catches it",
    ("security/attacks/test_branches.py", "if not stat.S_ISREG(os.fstat(fd).st_mode):"): "that "
    "there is no such file is what is looked at",
    ("security/attacks/test_branches.py", "os.ftruncate(fd, size)"): "its size is kept after it",
    ("security/attacks/test_branches.py", "os.pwrite(fd, b'x', 1 << 20)"): "likewise",
    ("security/attacks/test_branches.py", "os.fork()"): "the number of processes",
    ("security/attacks/test_files.py", "os.makedirs('a/b/c')"): "the host is refused meanwhile",
    ("security/attacks/test_files.py", "os.rmdir(path)"): "likewise",
    ("security/attacks/test_files.py", "[os.unlink(f'{path}/{n}') for n in os.listdir(path)]"): (
        "likewise"
    ),
    ("security/attacks/test_recovery_attacks.py", "os.kill(pid, signal.SIGCONT)"): "the processes "
    "tell that they have begun",
    ("security/attacks/test_recovery_attacks.py", "if os.fork():"): "likewise",
    ("security/cgroups/test_cgroup_removal.py", "path.rmdir()"): "it cleans up",
    ("security/test_corpus.py", "worker._recovery"): "it is a case that its harness must fail",
    ("soak/server/forged_messages.py", "llm_query('x')"): "the server's time, which it takes",
}


class Code:
    """A module, or code in a string that a module gives to an interpreter."""

    def __init__(self, tree: ast.Module, module: str) -> None:
        self._tree, self._module = tree, module

    def unproved(self) -> Iterator[ast.Try | ast.With | ast.AsyncWith]:
        """The blocks that swallow errors and leave nothing that is looked at."""
        if self._tree.body and _endless(self._tree.body[-1]):
            return  # only the sandbox ends it, so the test sees how
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Try | ast.With | ast.AsyncWith) or not _swallows(node):
                continue
            # After an endless loop in the block: the error is the only way out.
            if not _endless(node.body[-1]) and not self._looked_at(node):
                yield node

    def _looked_at(self, block: ast.Try | ast.With | ast.AsyncWith) -> bool:
        inside = [node for statement in block.body for node in ast.walk(statement)]
        if any(map(_tells, inside)):
            return True
        own = {id(node) for node in ast.walk(block)}
        around = {_name(node) for node in ast.walk(self._tree) if id(node) not in own}
        kept = {_kept(node) for node in inside} - {""}
        return any(name in around or f'"{name}"' in self._module for name in kept)


def _swallows(node: ast.Try | ast.With | ast.AsyncWith) -> bool:
    if isinstance(node, ast.Try):
        return any(_broad(each.type) and all(map(_mute, each.body)) for each in node.handlers)
    calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
    return any(
        ast.unparse(call.func).endswith("suppress") and any(map(_broad, call.args))
        for call in calls
    )


def _broad(kind: ast.expr | None) -> bool:
    return kind is None or any(_name(node) in BROAD for node in ast.walk(kind))


def _mute(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass | ast.Continue | ast.Break)


def _endless(statement: ast.stmt) -> bool:
    ways_out = (ast.Break, ast.Return)
    return (
        isinstance(statement, ast.While)
        and isinstance(statement.test, ast.Constant)
        and not any(isinstance(node, ways_out) for node in ast.walk(statement))
    )


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _tells(node: ast.AST) -> bool:
    if isinstance(node, ast.Return | ast.Yield):
        return True
    return isinstance(node, ast.Call) and _name(node.func) in TELLING


def _kept(node: ast.AST) -> str:
    """The name that a node binds or adds to."""
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        return _name(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _name(node.func.value) if node.func.attr in KEEPING else ""
    return ""


def codes(path: Path) -> Iterator[Code]:
    """The module of a test, and the code in the strings of any module."""
    module = path.read_text(encoding="utf-8")
    tree = ast.parse(module)
    if path.name.startswith("test_"):
        yield Code(tree, module)
    for node in ast.walk(tree):
        text = _text(node)
        for candidate in (text, text.replace("{{", "{").replace("}}", "}")):
            if "except" in text or "suppress" in text:
                try:
                    yield Code(ast.parse(textwrap.dedent(candidate)), module)
                except SyntaxError:  # prose, or a part of code
                    continue
                break


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "__part" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def unproved(path: Path) -> set[str]:
    """The first lines of the blocks of a file that swallow errors without a proof."""
    blocks = [block for code in codes(path) for block in code.unproved()]
    return {ast.unparse(block.body[0]).splitlines()[0] for block in blocks}


def test_what_swallows_errors_leaves_something_that_is_looked_at() -> None:
    found = {
        (str(path.relative_to(TESTS)), line)
        for path in TESTS.rglob("*.py")
        if path != Path(__file__)
        for line in unproved(path)
    }
    assert sorted(found - ELSEWHERE.keys()) == []
    assert sorted(ELSEWHERE.keys() - found) == []  # what is gone needs no reason


PROVED = {
    "a count": "n = 0\ntry:\n    n += 1\nexcept OSError: pass\nprint(n)",
    "an output": "try: print(open('/x').read())\nexcept OSError: pass",
    "the only way out": "try:\n    while True: os.fork()\nexcept OSError: pass",
    "no end": "while True:\n    try: os.fork()\n    except OSError: pass",
    "a narrow error": "try: os.rmdir('x')\nexcept FileNotFoundError: pass",
    "an error that is told": "try: os.kill(1, 9)\nexcept OSError as error: print(error)",
}
EMPTY = {
    "a pass": "try: worker._recovery\nexcept Exception: pass",
    "a bare except": "for n in 1, 2:\n    try: os.kill(n, 9)\n    except: continue",
    "a suppress": "with contextlib.suppress(OSError): os.kill(1, 9)",
    "a value of nobody": "try: x = worker._recovery\nexcept Exception: pass",
    "a loop in a thread": "def go():\n    while True:\n        try: os.kill(1, 9)\n"
    "        except OSError: pass\nthreading.Thread(target=go).start()",
}


@pytest.mark.parametrize("name", [*PROVED, *EMPTY])
def test_the_check_knows_what_is_empty(tmp_path: Path, name: str) -> None:
    code = {**PROVED, **EMPTY}[name]
    inner = tmp_path / "helper.py"
    inner.write_text(f"CODE = {code!r}\n", encoding="utf-8")
    outer = tmp_path / "test_it.py"
    outer.write_text(f"{code}\n", encoding="utf-8")
    for path in (inner, outer):
        assert bool(unproved(path)) is (name in EMPTY)
