"""Every code block of every page runs, or says why it does not: `tests/pages/blocks.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.pages.blocks import PAGES, PARSED, ROOT, RUN, blocks
from tests.pages.page_files import FILES

RUNNER = Path(__file__).with_name("page_runner.py")
BLOCKS = [block for page in PAGES for block in blocks(page)]
RUNNING = sorted({block.page for block in BLOCKS if block.runs})
# Limits on pages, and what they are here: the machine may stand still for longer.
LONGER = {"timeout=5)": "timeout=60, grace=20)", "timeout_s=5": "timeout_s=60"}
# Ports on pages, which other programs may hold here.
PORTS = {"--port 8001": "--port 0", "--port 8002": "--port 0"}


def ready(text: str, addresses: dict[str, str]) -> str:
    """Put addresses and limits of this run into a block."""
    for there, here in [*addresses.items(), *LONGER.items(), *PORTS.items()]:
        text = text.replace(there, here)
    return text


@pytest.mark.parametrize("page", RUNNING)
def test_the_blocks_of_a_page_run_in_their_order(
    page, addresses, tmp_path, tmp_path_factory
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shown = [asdict(block) for block in BLOCKS if block.page == page and block.runs]
    given = [block | {"code": ready(block["code"], addresses)} for block in shown]
    settings = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "MPLCONFIGDIR": str(tmp_path_factory.getbasetemp() / "matplotlib"),  # its cache of fonts
        "COLUMNS": "100",
        "OPENAI_BASE_URL": addresses["OPENAI_BASE_URL"],
        "OPENAI_API_KEY": "stand-in",
        "REPL_ENV_PORT": "0",
        "REPL_ENV_REQUIRE": "confined",
        "REPL_ENV_VIEW_OPEN": "0",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", RUNNER],
        cwd=tmp_path,
        env=settings,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_blocks_that_do_not_run_here_compile_and_say_why() -> None:
    for block in BLOCKS:
        if block.language in ("python", "diff"):
            for code in (block.code, block.before):
                compile(code, f"{block.page}, line {block.line}", "exec", flags=0x2000)  # await
        if block.by:
            texts = [file.read_text() for file in (ROOT / block.by).glob("*.py")]
            assert any(f'blocks_run_by("{block.by}")' in text for text in texts), block
        assert not (block.by and block.needs), block


def test_every_other_block_is_data_or_output() -> None:
    for block in BLOCKS:
        assert block.language in RUN | PARSED | {"text"}, block
        if block.language in PARSED:
            {"json": json.loads, "toml": tomllib.loads}[block.language](block.code)


def test_the_first_example_of_the_readme_has_five_lines() -> None:
    first = next(block for block in BLOCKS if block.page == "README.md")
    assert first.language == "python" and first.output is not None
    assert len([line for line in first.code.splitlines() if line.strip()]) == 5


def test_a_block_that_names_an_example_is_that_file() -> None:
    named = [block for block in BLOCKS if block.title.startswith("examples/")]
    assert named
    for block in named:
        assert (ROOT / block.title).read_text(encoding="utf-8") == block.code, block.title


@pytest.mark.parametrize(
    ("code", "output"),
    [("print(1)", "2\n"), ("raise SystemExit(0)", None), ("assert False", None)],
)
def test_a_block_that_fails_fails_the_page(code, output) -> None:
    block = {"page": "p", "line": 1, "language": "python", "title": "", "until": "", "code": code}
    done = subprocess.run(
        [sys.executable, RUNNER],
        input=json.dumps([block | {"output": output}]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "p, line 1" in done.stderr
