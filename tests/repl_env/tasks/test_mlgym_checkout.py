"""A checkout in MLGym's layout, written here, as task directories."""

from __future__ import annotations

import builtins

import pytest

from repl_env.tasks import EvaluatorError, TaskError, evaluate, from_mlgym, load

GAME = """
id: matchingGame
name: Matching game
description: |-
  Choose as the other does. Braces {{stay}}.
  {dataset_docs}
dataset_configs: []
task_entrypoint: PythonSubmissionTasks
training_timeout: 40
use_generic_conda: true
requirements_path: null
starter_code:
- data/matchingGame/evaluate.py
- data/matchingGame/target.py
- data/matchingGame/strategy.py
- data/matchingGame/notes
baseline_paths:
- strategy.py
baseline_scores:
- Score: 0.5
evaluation_paths:
- evaluate.py
evaluation_read_only: true
secret_files:
- target.py
"""
TABLE = """
id: tinyTable
name: Tiny table
description: "Predict y. {dataset_docs}"
dataset_configs:
- datasets/tiny.yaml
task_entrypoint: CSVSubmissionTasks
starter_code:
- data/tinyTable/evaluate.py
baseline_scores:
- rmse: 4.0
evaluation_paths:
- evaluate.py
secret_files:
- answers.csv
"""
DATASET = """
name: tiny
description: Two columns, {x} and y.
data_path: data/tinyTable/data
is_local: true
"""
FILES = {
    "configs/tasks/matchingGame.yaml": GAME,
    "configs/tasks/tinyTable.yaml": TABLE,
    "configs/datasets/tiny.yaml": DATASET,
    "data/matchingGame/evaluate.py": """
import json
from strategy import row_strategy
from target import target_strategy


def play(rounds=6):
    history, won = [], 0
    for _ in range(rounds):
        mine, other = row_strategy(history), target_strategy(len(history))
        history.append((mine, other))
        won += mine == other
    return won / rounds


if __name__ == "__main__":
    print(json.dumps({"Score": play(), "Rounds": 6}))
""",
    "data/matchingGame/target.py": "def target_strategy(n):\n    return n % 2\n",
    "data/matchingGame/strategy.py": "def row_strategy(history):\n    return 0\n",
    "data/matchingGame/notes/read.md": "Read me.",
    "data/tinyTable/evaluate.py": """
import argparse
import csv
import json

parser = argparse.ArgumentParser()
parser.add_argument("--submission_file", required=True)
found = [float(row["y"]) for row in csv.DictReader(open(parser.parse_args().submission_file))]
right = [float(row["y"]) for row in csv.DictReader(open("data/answers.csv"))]
assert len(found) == len(right), "rows are missing"
print("reading")
mean = sum((one - other) ** 2 for one, other in zip(found, right)) / len(right)
print(json.dumps({"rmse": mean**0.5}))
""",
    "data/tinyTable/data/train.csv": "x,y\n1,2\n2,4\n",
    "data/tinyTable/data/answers.csv": "x,y\n3,6\n4,8\n",
}


@pytest.fixture
def checkout(tmp_path):
    def writing(**changed: str):
        for path, text in {**FILES, **changed}.items():
            (tmp_path / "checkout" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "checkout" / path).write_text(text)
        return tmp_path / "checkout"

    return writing


def test_a_two_player_game_runs_in_two_sessions(checkout, sandbox, tmp_path):
    task = from_mlgym(checkout(), "matchingGame", tmp_path / "game", reference=1.0)

    assert task == load(tmp_path / "game")
    assert (task.name, task.metric, task.baseline) == ("matchingGame", "Score", 0.5)
    assert (task.submission, task.module) == (("strategy.py",), "strategy")
    assert task.instruction.startswith("Choose as the other does. Braces {stay}.")
    assert set(task.starter_files()) == {"strategy.py", "notes/read.md"}
    assert evaluate(task, task.baseline_files(), sandbox=sandbox).gain == 0.0
    good = {"strategy.py": "def row_strategy(history):\n    return len(history) % 2\n"}
    found = evaluate(task, good, sandbox=sandbox)
    assert (found.score, found.gain, found.details["Rounds"]) == (1.0, 1.0, 6)


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("import target\n    return 0", "exception"),
        ("import evaluate\n    return 0", "exception"),
        ("print('{\"Score\": 99}')\n    return 0", None),
        ("import sys, json\n    json.dumps = lambda *a: '{\"Score\": 99}'\n    return 0", None),
        ("1 / 0", "exception"),
        ("return float('nan')", "invalid"),
    ],
)
def test_a_submission_reaches_neither_script_nor_score(checkout, sandbox, tmp_path, body, failure):
    task = from_mlgym(checkout(), "matchingGame", tmp_path / "game")
    files = {"strategy.py": f"def row_strategy(history):\n    {body}\n"}

    found = evaluate(task, files, sandbox=sandbox)

    assert (found.failure, found.score) == (failure, None if failure else 0.5)


def test_a_csv_task_is_read_and_its_answers_are_hidden(checkout, sandbox, tmp_path):
    task = from_mlgym(checkout(), "tinyTable", tmp_path / "table", direction="minimize")

    assert (task.baseline, task.reference, task.module) == (4.0, 0.0, None)
    assert "TINY:\nTwo columns, {x} and y." in task.instruction
    assert set(task.starter_files()) == {"data/train.csv"}
    found = evaluate(task, {"submission.csv": "x,y\n3,7\n4,9\n"}, sandbox=sandbox)
    assert (found.score, found.gain) == (1.0, 0.75)
    assert evaluate(task, {}, sandbox=sandbox).failure == "missing"
    with task.open(sandbox=sandbox, reward_mode="improvement") as env:
        env.reset()
        result = env.execute("open('submission.csv', 'w').write('y\\n6\\n8\\n')\nvalidate()")
        assert result.reward == 1.0
    short = evaluate(task, {"submission.csv": "y\n1\n"}, sandbox=sandbox)
    assert (short.failure, short.gain) == ("invalid", -1.0)
    assert "rows are missing" in short.message and "rows" not in short.told


def changed(name: str, old: str, new: str) -> dict[str, str]:
    assert old in FILES[name]
    return {name: FILES[name].replace(old, new)}


CONFIG = "configs/tasks/matchingGame.yaml"
SCRIPT = "data/matchingGame/evaluate.py"
WRONG = {
    "a model": (changed(CONFIG, "PythonSub", "ModelSub"), "task_entrypoint.*container"),
    "no evaluator": (changed(CONFIG, "evaluation_paths:\n- evaluate.py\n", ""), "no evaluator"),
    "a script elsewhere": (
        changed(CONFIG, "- data/matchingGame/evaluate.py\n", ""),
        "evaluate.py is not among starter_code",
    ),
    "no baseline": (changed(CONFIG, "\n- Score: 0.5", " []"), "give metric and baseline"),
    "a baseline of text": (
        changed(CONFIG, "0.5", "high"),
        "baseline_scores.Score must be a number",
    ),
    "packages": (changed(CONFIG, "path: null", "path: r.txt"), "requirements_path names packages"),
    "a missing file": (changed(CONFIG, "/notes", "/nothing"), "nothing is not in the checkout"),
    "a path outside": (changed(CONFIG, "data/matchingGame/notes", "../x"), "outside the checkout"),
    "no YAML": ({CONFIG: "id: [1"}, "matchingGame.yaml"),
    "no table": ({CONFIG: "- 1"}, "must be a table"),
    "no description": (changed(CONFIG, "description", "text"), "description is missing"),
    "a dataset that is not there": (
        changed(CONFIG, "dataset_configs: []", "dataset_configs: [datasets/no.yaml]"),
        "no.yaml is not in the checkout",
    ),
    "what is submitted is not plain": (
        changed(SCRIPT, "from strategy import row_strategy", "row_strategy = len"),
        "give submission",
    ),
    "a script that is no Python": ({SCRIPT: "def ("}, "evaluate.py"),
}


@pytest.mark.parametrize(("files", "told"), WRONG.values(), ids=WRONG)
def test_an_unreadable_checkout_is_an_error_with_its_reason(checkout, tmp_path, files, told):
    with pytest.raises(TaskError, match=told):
        from_mlgym(checkout(**files), "matchingGame", tmp_path / "game")
    assert not (tmp_path / "game").exists()


@pytest.mark.parametrize("task", ["no-such-task", "../datasets/tiny", "", 3])
def test_a_task_that_is_not_there(checkout, tmp_path, task):
    with pytest.raises(TaskError, match=r"no task .*matchingGame, tinyTable"):
        from_mlgym(checkout(), task, tmp_path / "game")


def test_data_that_is_downloaded_is_not_read(checkout, tmp_path):
    files = changed("configs/datasets/tiny.yaml", "is_local: true", "is_local: false")
    with pytest.raises(TaskError, match="is_local"):
        from_mlgym(checkout(**files), "tinyTable", tmp_path / "table")
    (tmp_path / "game").mkdir()
    with pytest.raises(TaskError, match="exists already"):
        from_mlgym(checkout(), "matchingGame", tmp_path / "game")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("import strategy\nprint('no json')", "no JSON object"),
        ("import strategy\nprint('{\"Other\": 1}')", "no 'Score'"),
        ("import strategy\nprint('{\"Score\": NaN}')", "nan"),
        ("import strategy, sys\nsys.exit(2)", "exited with 2"),
        ("import strategy\nprint('x' * 100_000_000)", "."),
    ],
)
def test_a_script_that_gives_no_score_is_an_error(checkout, sandbox, tmp_path, script, told):
    task = from_mlgym(checkout(**{SCRIPT: script}), "matchingGame", tmp_path / "game")

    with pytest.raises(EvaluatorError, match=told):
        evaluate(task, task.baseline_files(), sandbox=sandbox)


def test_without_pyyaml_the_error_says_so(checkout, tmp_path, monkeypatch):
    real = builtins.__import__

    def absent(name, *arguments, **keywords):
        if name == "yaml":
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(TaskError, match="pip install pyyaml"):
        from_mlgym(checkout(), "matchingGame", tmp_path / "game")
