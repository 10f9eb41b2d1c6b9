"""A session on a server recovers from the death of its worker like a local one."""

from __future__ import annotations

import pytest

from tests.server.conftest import peer, serving

AFTERWARDS = (
    "files = [open(f'f{i}', 'w') for i in range(5)]",
    "import gc\nawait asyncio.sleep(0)\ngc.collect()",
    "try: child.stdin.write('y'); child.stdin.flush()\nexcept OSError as error: print(error)\n"
    "del child\ngc.collect()",
    "for f in files: f.write('x'); f.flush()\n[open(f'f{i}').read() for i in range(5)]",
)


@pytest.fixture(scope="module")
def server():
    with serving({"recovery": "snapshot"}) as server:
        yield server


@pytest.mark.parametrize("how", ["crash", "branch"])
def test_files_that_are_opened_after_a_takeover_are_the_codes_own(server, how: str) -> None:
    with peer(server, named=True) as one, peer(server, named=True) as other:
        one.open()
        one.reset()
        one.run(
            "import asyncio, os, subprocess\nawait asyncio.sleep(0)\n"
            "child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, text=True)"
        )
        if how == "crash":
            one.run("os._exit(1)")
        else:
            one, spare = other, one
            one.resume(spare.ask("branch", {})["data"]["token"])
        results = [one.run(code) for code in AFTERWARDS]
        assert [result["success"] for result in results] == [True] * len(AFTERWARDS)
        assert "Bad file descriptor" in results[2]["stdout"]
        assert results[-1]["value"] == str(["x"] * 5)
        one.send("close", id="close")
