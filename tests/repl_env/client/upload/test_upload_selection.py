"""The arguments of a reset that are uploaded, and those that go in the request."""

from __future__ import annotations

import hashlib
import json

import pytest

from repl_env.client.requests import LARGE, reset_data
from repl_env.episode.call_options import ResetOptions

# ── which contexts those are ─────────────────────────────────────────────────────────────────────

TEXT, BYTES, VALUES = "é" * (LARGE // 2), b"\xff" * LARGE, ["word"] * (LARGE // 8)


@pytest.mark.parametrize(
    ("given", "kind", "data"),
    [
        (TEXT, "text", TEXT.encode()),
        (BYTES, "bytes", BYTES),
        (bytearray(BYTES), "bytes", BYTES),
        (VALUES, "json", json.dumps(VALUES).encode()),
    ],
)
async def test_a_large_context_is_uploaded(given, kind, data):
    sent, parcels = await reset_data(ResetOptions(context=given), native=True)

    digest = hashlib.sha256(data).hexdigest()
    assert sent == {"uploads": {"context": {"sha256": digest, "type": kind}}}
    assert parcels[0].open()(0, 1 << 30) == data
    assert parcels[0].open()(5, 3) == data[5:8]


@pytest.mark.parametrize("given", [TEXT.encode(), BYTES, (TEXT + "é").encode()[:-1]])
async def test_a_large_file_is_uploaded_with_its_type(tmp_path, given):
    (tmp_path / "file").write_bytes(given)
    sent, parcels = await reset_data(ResetOptions(contexts={"doc": tmp_path / "file"}), native=True)

    kind = "text" if given == TEXT.encode() else "bytes"
    digest = hashlib.sha256(given).hexdigest()
    assert sent == {"uploads": {"doc": {"sha256": digest, "type": kind}}}
    assert parcels[0].open()(7, 5) == given[7:12]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", ""),
        ("a" * (LARGE - 1), "a" * (LARGE - 1)),
        ("\ud800" * LARGE, "\ud800" * LARGE),  # no UTF-8: JSON's escapes carry it
        (b"\x00", {"$bytes": "AA=="}),
        ([1, {"a": None}], [1, {"a": None}]),
    ],
)
async def test_a_small_context_goes_in_the_request(given, expected):
    sent, parcels = await reset_data(ResetOptions(context=given), native=True)

    assert (sent, parcels) == ({"context": expected}, [])


async def test_small_contexts_are_inlined_and_large_ones_uploaded(tmp_path):
    (tmp_path / "small").write_bytes(b"\xff")
    contexts = {"a": TEXT, "b": "short", "c": tmp_path / "small"}
    files = {"d/e.txt": "text", "f": b"\x00", "g": tmp_path / "small"}
    sent, parcels = await reset_data(ResetOptions(contexts=contexts, files=files), native=True)

    assert sent["contexts"] == {"b": "short", "c": {"$bytes": "/w=="}}
    assert [*sent["uploads"]] == ["a"] == [each.name for each in parcels]
    assert sent["files"] == {"d/e.txt": "text", "f": {"$bytes": "AA=="}, "g": {"$bytes": "/w=="}}


async def test_a_large_file_of_an_episode_is_uploaded_once_for_all_its_paths(tmp_path):
    (tmp_path / "large").write_bytes(BYTES)
    files = {"a": tmp_path / "large", "b/c": BYTES, "d": TEXT, "e": "short"}
    sent, parcels = await reset_data(ResetOptions(files=files), native=True)

    data, text = (hashlib.sha256(each).hexdigest() for each in (BYTES, TEXT.encode()))
    uploads = {"a": {"$upload": data}, "b/c": {"$upload": data}, "d": {"$upload": text}}
    assert sent == {"files": {**uploads, "e": "short"}}
    assert [each.sha256 for each in parcels] == [data, text]


async def test_a_path_that_is_no_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        await reset_data(ResetOptions(context=tmp_path / "none"), native=True)
    with pytest.raises(IsADirectoryError):
        await reset_data(ResetOptions(files={"a": tmp_path}), native=True)


async def test_a_type_is_sent_as_its_schema():
    sent, _ = await reset_data(ResetOptions(answer_schema=list[int]), native=True)

    assert sent == {"answer_schema": {"type": "array", "items": {"type": "integer"}}}


async def test_a_text_is_no_type_and_is_never_evaluated(tmp_path):
    proof = tmp_path / "evaluated"
    schema = f"__import__('pathlib').Path({str(proof)!r}).touch() or int"
    with pytest.raises(TypeError, match=r"answer_schema must be .*, not str"):
        await reset_data(ResetOptions(answer_schema=schema), native=True)
    assert not proof.exists()
