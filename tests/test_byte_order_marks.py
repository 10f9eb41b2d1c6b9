"""A byte order mark (BOM) at the start of a text is not part of the text, whatever its source."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest

from repl_env import LocalREPLEnv, REPLAction
from repl_env.client.requests import UploadBody, packed
from repl_env.common.values import text_or_bytes
from repl_env.env.recordings import Recording
from repl_env.evaluation import read_dataset
from repl_sandbox import Sandbox
from repl_server.auth import APIKeys, new_key
from tests.repl_env.environment_internals import context_of

BOM = codecs.BOM_UTF8


def test_code_may_begin_with_a_byte_order_mark():
    assert REPLAction(code="\ufeffx = 1").code == "x = 1"
    assert REPLAction(code="\ufeff```python\nx = 1\n```").code == "x = 1"
    with Sandbox() as sandbox, sandbox.session() as session:
        assert session.run("\ufeff1 + 1").value == "2"
        assert session.run("1 / 0 if '\ufeff' else 1").error is not None
        assert session.run("len('\ufeff')").value == "1"


def test_a_text_file_context_may_begin_with_a_byte_order_mark(tmp_path: Path):
    file = tmp_path / "context.txt"
    file.write_bytes(BOM + b"text")
    assert packed("context", file) == "text"
    with LocalREPLEnv() as env:
        env.reset(contexts={"context": file, "given": "\ufefftext"})
        assert env.execute("context, given").observation.result.value == "('text', '\\ufefftext')"


@pytest.mark.parametrize(
    ("data", "content"),
    [(BOM + b"text", b"text"), (BOM + BOM, BOM), (BOM, b""), (BOM + b"\xff", BOM + b"\xff")],
)
def test_a_byte_order_mark_of_a_binary_file_is_kept(tmp_path: Path, data: bytes, content: bytes):
    file = tmp_path / "context"
    file.write_bytes(data)
    parcel = UploadBody.of_file(file)
    expected = UploadBody.of_bytes(content)

    assert (parcel.size, parcel.sha256) == (expected.size, expected.sha256)
    assert parcel.kind == ("bytes" if content.endswith(b"\xff") else "text")
    assert parcel.open()(0, 100) == content
    held = text_or_bytes(data)
    assert (held.encode() if isinstance(held, str) else held) == content


def test_parsed_files_may_begin_with_a_byte_order_mark(tmp_path: Path):
    (tmp_path / "context.txt").write_bytes(BOM + b"text")
    task = {"id": "a", "question": "q", "answer": 1, "context_file": "context.txt"}
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_bytes(BOM + json.dumps(task).encode())
    dataset = read_dataset(tasks)
    assert dataset.load(dataset.entries[0]).context == "text"

    keys = tmp_path / "keys"
    keys.write_bytes(BOM + new_key("alice")[1].encode())
    assert len(APIKeys.read(keys)) == 1

    recorded = '\ufeff{"reset": {}, "actions": [], "observations": []}'
    with pytest.raises(ValueError, match="of 0 actions there are 1 observations"):  # it was parsed
        Recording.from_json(recorded)
    assert (context_of(BOM + b"text", "str"), context_of(BOM + b"[1]", "json")) == ("text", [1])
