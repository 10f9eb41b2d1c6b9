"""Pages in one file: modules linked, data escaped, sizes kept."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import stat
from pathlib import Path

import pytest

from repl_env.display.pages import (
    PageTooLarge,
    as_script_data,
    evaluation_page_data,
    link,
    trajectory_data,
    write_page,
)
from repl_env.evaluation import read_results
from tests.repl_env.rlm.trajectory.account import (
    account,
    cell_ran,
    observed,
    replied,
    started,
    write,
)

NOTHING = {"start": "#/", "notes": [], "files": []}


@pytest.fixture
def trajectory(tmp_path: Path) -> Path:
    return write(tmp_path / "run.jsonl", account())


def data_in(page: Path) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    assert found is not None
    data: dict = json.loads(found[1])
    return data


# ── the page ─────────────────────────────────────────────────────────────────────────────────────


def test_a_page_has_one_script_whose_hash_its_policy_allows(tmp_path):
    write_page(NOTHING, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_bytes().decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]

    for element in ("script", "style"):
        (inner,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
        assert "\r" not in inner
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"(src|href)=\"(?!data:,)", text.partition("<script>")[0])
    assert len(text.encode()) < 300_000


def test_a_page_is_its_owner_s_and_replaces_pages_alone(tmp_path, trajectory):
    out = tmp_path / "page.html"
    write_page(trajectory_data(trajectory), out)
    write_page(NOTHING, out)

    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError, match="not a page"):
        write_page(NOTHING, trajectory)
    assert trajectory.stat().st_size > 0
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "run.jsonl"}


def test_a_page_has_rows_and_events_of_a_trajectory(tmp_path, trajectory):
    write_page(trajectory_data(trajectory), tmp_path / "page.html")
    (file,) = data_in(tmp_path / "page.html")["files"]

    lines = [json.loads(line) for line in trajectory.read_text().splitlines()]
    assert file["events"] == lines
    assert [row["event"] for row in file["rows"][1:]] == [line["event"] for line in lines[1:]]
    assert file["roots"][0]["reward"] == 1.0


def test_a_page_has_an_evaluation_and_its_trajectories(tmp_path, trajectory):
    header = '{"type": "results", "version": 1}\n'
    row = {
        "type": "result", "id": "a", "fingerprint": "f", "kind": "k", "score": 1.0, "answer": "x",
        "stop_reason": "answer", "error_kind": None, "error": None, "seconds": 1.0, "time": 1.0,
        "spent": {}, "question": "q?", "expected": "x",
    }  # fmt: skip
    path = tmp_path / "results.json"
    path.write_text(header + json.dumps(row) + "\n")
    write_page(evaluation_page_data("r", read_results(path).results, tmp_path), tmp_path / "p.html")
    results, run = data_in(tmp_path / "p.html")["files"]

    assert results["evaluation"]["tasks"][0]["expected"] == "x"
    assert [score["mean"] for score in results["scores"]] == [1.0, 1.0]
    assert (run["name"], run["kind"]) == ("run.jsonl", "trajectory")


# ── data ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    ["</script>", "<!--", "<script>", "]]>", "\u2028\u2029", "\ud83d", "\x00\r\n", "&lt;", "é"],
)
def test_data_stays_data_within_a_script_element(text):
    written = as_script_data({text: [text]})

    assert json.loads(written) == {text: [text]}
    assert not set("<>&\u2028\u2029\r\n\x00") & set(written)
    written.encode("utf-8")


def test_numbers_that_json_has_not_are_text(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(
        '{"format": "repl-env trajectory", "version": 1, "settings": {"x": NaN}}\n'
        '{"event": "run_started", "run": "0", "time": Infinity, "question": "q"}\n{broken\n'
    )
    write_page(trajectory_data(path), tmp_path / "page.html")
    (file,) = data_in(tmp_path / "page.html")["files"]

    assert file["events"][0]["settings"]["x"] == "NaN"
    assert file["events"][2] is None


# ── size ─────────────────────────────────────────────────────────────────────────────────────────


def test_long_outputs_are_cut_to_a_size_and_the_page_says_so(tmp_path):
    outputs = observed("y" * 300_000, figures=("A" * 200_000, "B" * 100))
    events = [started(question="q" * 5000), replied(), cell_ran(observation=outputs)]
    data = trajectory_data(write(tmp_path / "run.jsonl", events))
    out = tmp_path / "page.html"
    write_page(data, out, 250_000)
    shown = data_in(out)
    result = shown["files"][0]["events"][3]["observation"]["result"]

    assert out.stat().st_size <= 250_000
    assert "Outputs of more than" in shown["notes"][0]
    assert "characters left out]" in result["stdout"]
    assert (result["figures"], result["figures_left_out"]) == (["B" * 100], 1)
    assert shown["files"][0]["events"][1]["question"] == "q" * 5000
    with pytest.raises(ValueError, match="even without long texts"):
        write_page(data, out, 1000)


def test_a_large_page_needs_a_size(tmp_path):
    events = [started(), replied(), cell_ran(observation=observed("y" * 21_000_000))]
    data = trajectory_data(write(tmp_path / "run.jsonl", events))

    with pytest.raises(PageTooLarge, match="21 MB"):
        write_page(data, tmp_path / "page.html")
    write_page(data, tmp_path / "page.html", 30_000_000)
    assert data_in(tmp_path / "page.html")["notes"] == []


# ── modules ──────────────────────────────────────────────────────────────────────────────────────


def test_modules_are_linked_in_the_order_of_their_imports():
    modules = {
        "a/main.js": 'import { f as g } from "../b.js";\nimport { h } from "./c.js";\ng(h);\n',
        "b.js": 'import { h } from "./a/c.js";\nexport const x = h;\nexport class f {}\n',
        "a/c.js": "const a = 1;export{a as h,a as i};//# sourceMappingURL=c.js.map\n",
    }
    script = link("a/main.js", modules.__getitem__)

    assert script.index("const a = 1") < script.index("const x = h") < script.index("g(h)")
    assert "const {f: g} = module_b_js" in script and "return { h: a, i: a }" in script
    assert "import" not in script and "export" not in script and "sourceMapping" not in script


@pytest.mark.parametrize(
    "text",
    [
        'import x from "./b.js";', 'import * as x from "./b.js";', 'import "./b.js";',
        "export default 1;", 'export * from "./b.js";', 'const x = import("./b.js");',
        'import { x } from "bare";', 'import { x } from "./main.js";',
    ],
)  # fmt: skip
def test_other_forms_of_modules_are_refused(text):
    with pytest.raises(ValueError):
        link("main.js", {"main.js": text, "b.js": ""}.__getitem__)
