"""The file format and a manifest: damaged or hostile input is refused."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_sandbox import CheckpointError, CheckpointInfo, Manifest, Missing, read_manifest
from repl_sandbox.protocol.checkpoints import (
    KIND,
    MAX_HEADER,
    VERSION,
    pack_checkpoint,
    pack_container,
    parse,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
SIZES = st.integers(0, 40)


@st.composite
def checkpoints(draw: Any) -> tuple[Manifest, bytes]:
    variables = draw(st.lists(st.builds(CheckpointInfo, NAMES, NAMES, SIZES), max_size=5))
    state = draw(st.lists(st.tuples(NAMES, SIZES), max_size=4))
    manifest = Manifest(
        python=draw(NAMES),
        implementation=draw(NAMES),
        packages=draw(st.dictionaries(NAMES, NAMES, max_size=3)),
        variables=tuple(variables),
        missing=tuple(draw(st.lists(st.builds(Missing, NAMES, NAMES, NAMES), max_size=3))),
        state=tuple(state),
        cell=draw(st.integers(0, 1 << 30)),
    )
    return manifest, draw(st.binary(min_size=manifest.size, max_size=manifest.size))


@given(checkpoints())
def test_packed_containers_are_read(checkpoint):
    manifest, payload = checkpoint
    data = pack_checkpoint(manifest, payload)
    assert read_manifest(data) == manifest
    assert bytes(parse(data).payload) == payload
    assert read_manifest(memoryview(bytearray(data))) == manifest


@given(checkpoints(), st.data())
def test_a_bit_that_is_flipped_anywhere_is_noticed(checkpoint, data):
    packed = bytearray(pack_checkpoint(*checkpoint))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CheckpointError):
        read_manifest(bytes(packed))


@given(checkpoints(), st.data())
def test_truncated_and_extended_containers_are_refused(checkpoint, data):
    packed = pack_checkpoint(*checkpoint)
    with pytest.raises(CheckpointError):
        read_manifest(packed[: data.draw(st.integers(0, len(packed) - 1))])
    with pytest.raises(CheckpointError):
        read_manifest(packed + data.draw(st.binary(min_size=1, max_size=8)))


@given(st.binary(max_size=300))
def test_bytes_that_are_no_container_are_refused(data):
    with pytest.raises(CheckpointError):
        read_manifest(data)
    with pytest.raises(CheckpointError):
        read_manifest(pack_container(KIND, VERSION, data, []))


def test_another_version_or_kind_is_named():
    with pytest.raises(CheckpointError, match=r"version 2 .* reads version 1"):
        read_manifest(pack_container(KIND, 2, b"{}", []))
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        read_manifest(pack_container(b"epis", VERSION, b"{}", []))


GOOD: dict[str, Any] = {
    "python": "3.11.7",
    "implementation": "cpython",
    "packages": {},
    "cell": 1,
    "variables": [],
    "missing": [],
    "state": [],
}


def test_the_unchanged_container_is_accepted():
    read_manifest(pack_container(KIND, VERSION, json.dumps(GOOD).encode(), []))


@pytest.mark.parametrize(
    "wrong",
    [
        {"python": 3},
        {"python": "3" * 201},
        {"implementation": None},
        {"packages": []},
        {"packages": {"numpy": 2}},
        {"packages": {str(n): "1" for n in range(65)}},
        {"cell": -1},
        {"cell": True},
        {"cell": 1.0},
        {"cell": 1 << 40},
        {"variables": {}},
        {"variables": [["x", "int"]]},
        {"variables": [["x", "int", -1]]},
        {"variables": [["x", "int", "1"]]},
        {"variables": [["x" * 201, "int", 0]]},
        {"variables": [["x", "int", 5]]},
        {"variables": [["x", "int", 1 << 62]]},
        {"missing": [["x", "int", 0]]},
        {"missing": [["x", "int", "r" * 5000]]},
        {"state": [["random"]]},
        {"state": [["random", 0]] * 17},
        {"state": None},
    ],
    ids=str,
)
def test_a_wrong_field_is_refused(wrong):
    header = json.dumps({**GOOD, **wrong}).encode()
    with pytest.raises(CheckpointError):
        read_manifest(pack_container(KIND, VERSION, header, []))


@pytest.mark.parametrize("field", sorted(GOOD))
def test_a_missing_field_is_named(field):
    header = json.dumps({name: value for name, value in GOOD.items() if name != field}).encode()
    with pytest.raises(CheckpointError, match=field):
        read_manifest(pack_container(KIND, VERSION, header, []))


@pytest.mark.parametrize(
    "header",
    [
        b"[" * MAX_HEADER,
        b"[" + b"[]," * (MAX_HEADER // 3 - 1),
        b'{"a":' * 100_000,
        b"\xff\xfe{}",
        b'"\\ud800"',
        b"NaN",
        b"1" * 100_000,
        b'{"cell":' + b"9" * 1_000_000 + b"}",
        b'{"variables":[' + b'["x","t",0],' * 300_000,
        b"",
    ],
    ids=lambda header: header[:12].decode("latin-1"),
)
def test_a_hostile_manifest_is_refused_in_bounded_memory(header):
    data = pack_container(KIND, VERSION, header[:MAX_HEADER], [])
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError):
            read_manifest(data)
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


def test_lengths_beyond_the_data_are_refused_before_copying():
    data = bytearray(pack_checkpoint(Manifest("3", "c", {}, (), (), (), 1), b""))
    data[18:26] = b"\x7f" + b"\xff" * 7
    with pytest.raises(CheckpointError, match="cut short"):
        read_manifest(bytes(data))


def test_a_header_over_the_limit_is_not_written():
    with pytest.raises(CheckpointError, match="too many names"):
        pack_container(KIND, VERSION, bytes(MAX_HEADER + 1), [])
