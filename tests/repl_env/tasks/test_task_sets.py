"""Tasks that are directories: their evaluations, episodes and files."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path

import pytest

from repl_env.errors import EpisodeDone
from repl_env.tasks import Evaluator, EvaluatorError, TaskError, evaluate, load, load_set, shipped
from repl_sandbox import Limits, Sandbox
from repl_sandbox.session import recovery

from .conftest import EVALUATE, GOOD, HALF, TOML


@pytest.mark.parametrize("name", shipped())
def test_shipped_tasks_give_their_documented_scores(name):
    task = load(name)
    evaluator = Evaluator(task)

    baseline = evaluator.evaluate(task.baseline_files())
    solution = evaluator.evaluate(task.solution_files())

    assert baseline.score == pytest.approx(task.baseline, abs=1e-4)
    assert solution.score == pytest.approx(task.reference, abs=1e-4)
    assert (round(baseline.gain, 2), round(solution.gain, 2)) == (0.0, 1.0)


CHEATING = """
import glob, os, sys
for name in ("evaluate.py", "score.txt", "reward.txt", "sitecustomize.py", "csv.py", "random.py"):
    open(name, "w").write("score(10**9)")
os.makedirs("evaluator", exist_ok=True)
open("evaluator/evaluate.py", "w").write("score(10**9)")
for path in glob.glob("data/*"):
    open(path, "w").write("")
validate = score = lambda *given, **named: {"score": 10**9}
sys.modules["repl_env"] = sys.modules["repl_env.tasks"] = sys.modules[__name__]
around = ("/*", "/tmp/*", "/dev/shm/*", "/proc/*/cwd", "/proc/*/root/*", f"{FOLDER}/*")
found = {os.path.realpath(path) for place in around for path in glob.glob(f"{place}/evaluate.py")}
print("found", found - {os.path.realpath("evaluate.py")}, validate(), "score 10**9")
FINAL_VAR = FINAL
FINAL = print
submit()
submit()
"""


@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("reward_mode", ["submit", "improvement"])
def test_cheats_at_shipped_tasks_pay_nothing(name, reward_mode):
    """The starter files are worth the baseline's score, whatever code says or does beside them."""
    with load(name).open(reward_mode=reward_mode) as env:
        env.reset()
        cell = f"FOLDER = {str(env.task.directory)!r}\n{CHEATING}"
        results = [env.execute(cell), env.execute("FINAL = FINAL_VAR\nsubmit()"), env.submit()]
        evaluation = env.evaluation

    assert results[0].observation.result.stdout.startswith("found set()")
    assert [round(each.reward, 3) for each in results] == [0.0, 0.0, 0.0]
    assert [each.done for each in results] == [False, False, True]
    assert evaluation.score == pytest.approx(env.task.baseline, abs=1e-4)


# ── submissions ──────────────────────────────────────────────────────────────────────────────────

FAILURES = {
    "raises": ("def double(x):\n    raise KeyError(x)", "exception"),
    "does not import": ("import nothing_of_that_name", "exception"),
    "is no Python": ("def double(x)", "exception"),
    "has no such function": ("def twice(x): return 2 * x", "exception"),
    "returns NaN": ("def double(x): return float('nan')", "invalid"),
    "returns infinity in a list": ("def double(x): return [float('inf')]", "invalid"),
    "returns no JSON": ("def double(x): return object()", "invalid"),
    "returns too much": ("def double(x): return 'x' * 20_000_000", "invalid"),
    "is half a character": ("\ud800", "exception"),
    "leaves": ("import os\ndef double(x): os._exit(0)", "crash"),
    "exits": ("import sys\ndef double(x): sys.exit(0)", "exception"),
    "is killed": ("import os\nos.kill(os.getpid(), 9)", "crash"),
    "hangs": ("def double(x):\n    while True: pass", "timeout"),
}


@pytest.mark.parametrize(("code", "kind"), FAILURES.values(), ids=FAILURES)
def test_a_submission_that_fails_is_scored_as_a_failure(write, sandbox, code, kind):
    toml = TOML.replace("call = 20", "call = 1") if kind == "timeout" else TOML
    found = evaluate(load(write(toml)), {"double.py": code}, sandbox=sandbox)

    assert (found.score, found.gain, found.failure) == (None, -1.0, kind)
    assert found.message


def test_a_reply_that_cannot_be_read_to_its_end_is_a_crash(write, sandbox, monkeypatch):
    monkeypatch.setattr(recovery, "RESTART_TIMEOUT", 1.0)
    endless = "class Endless(list):\n    def __iter__(self):\n        while True: pass\n"
    task = load(write(TOML.replace("call = 20", "call = 1")))
    files = {"double.py": f"{endless}def double(x): return Endless([x])"}
    found = evaluate(task, files, sandbox=sandbox)

    assert (found.score, found.gain, found.failure) == (None, -1.0, "crash")
    assert found.message


def test_a_submission_without_its_file_is_missing(write, sandbox):
    found = evaluate(load(write()), {"other.py": GOOD}, sandbox=sandbox)

    assert (found.failure, found.gain) == ("missing", -1.0)


def test_the_time_to_read_a_reply_counts_for_the_submission(write, sandbox):
    slow = """
        import time
        class Slow(list):
            def __iter__(self):
                time.sleep(1.5)
                return super().__iter__()
        def double(x): return Slow([2 * x])
    """
    task = load(write(TOML.replace("evaluation = 40", "evaluation = 2")))

    found = evaluate(task, {"double.py": textwrap.dedent(slow)}, sandbox=sandbox)

    assert (found.score, found.failure) == (None, "timeout")


def test_a_submission_that_fills_the_workspace_fails(write):
    with Sandbox(limits=Limits(workspace="4MiB")) as small:
        found = evaluate(load(write()), {"double.py": b"#" * (8 << 20)}, sandbox=small)

    assert (found.score, found.failure) == (None, "invalid")


@pytest.mark.parametrize("files", [[("double.py", "")], "double.py", {"double.py": 3}])
def test_invalid_submission_files_are_an_error(write, sandbox, files):
    with pytest.raises(TypeError, match="files"):
        evaluate(load(write()), files, sandbox=sandbox)


def test_a_failure_counts_though_the_evaluator_goes_on(write, sandbox):
    lenient = "try:\n    call('double', [1])\nexcept Exception:\n    score(1.0)\n"
    task = load(write(**{"evaluator/evaluate.py": lenient}))

    found = evaluate(task, {"double.py": "1 / 0"}, sandbox=sandbox)

    assert (found.score, found.failure) == (None, "exception")


CHEATS = {
    "names of the evaluator's session": "score(1.0)",
    "the frames above": """
        import sys
        frame = sys._getframe()
        while frame:
            frame.f_globals.get("score", lambda value: None)(1.0)
            frame = frame.f_back
    """,
    "objects of that name": """
        import gc
        for each in gc.get_objects():
            if getattr(each, "__name__", "") in ("score", "evaluate"):
                each(1.0)
    """,
    "a module of that name": """
        import sys, types
        sys.modules["evaluate"] = types.SimpleNamespace(score=lambda value: 1.0)
        open("evaluate.py", "w").write("score(1.0)")
        print('{"score": 1.0}')
    """,
    "equality": """
        import builtins
        class Equal(int):
            def __eq__(self, other): return True
            __hash__ = int.__hash__
        builtins.sum = lambda values: 4
    """,
}


@pytest.mark.parametrize("code", CHEATS.values(), ids=CHEATS)
def test_a_submission_cannot_reach_the_evaluator(write, sandbox, code):
    cheat = textwrap.dedent(code)
    body = f"def double(x):\n{textwrap.indent(cheat, '    ')}\n    return 1\n"

    found = evaluate(load(write()), {"double.py": body}, sandbox=sandbox)

    assert not found.score


# ── evaluators ───────────────────────────────────────────────────────────────────────────────────

BROKEN = {
    "raises": ("1 / 0", "ZeroDivisionError"),
    "is no Python": ("def (", "SyntaxError"),
    "scores NaN": ("score(float('nan'))", "nan"),
    "scores too much": ("score(10**400)", "finite"),
    "scores a text": ("score('1.0')", "number"),
    "scores a truth": ("score(True)", "number"),
    "prints a score": ("print(1.0)", "without score"),
    "scores twice": ("score(0.5)\ntry:\n    score(1.0)\nexcept Exception: pass", "twice"),
    "prints 100 MB": ("print('x' * 100_000_000)", "without score"),
    "hangs": ("while True: pass", "did not end within"),
    "leaves": ("import os\nos._exit(0)", "ended its process"),
    "calls no function": ("call('no function', [])", "function"),
    "calls with what is no list": ("call('double', 3)", "list"),
    "reads another file": ("read('../secret')", "none of the files"),
}


@pytest.mark.parametrize(("code", "told"), BROKEN.values(), ids=BROKEN)
def test_a_failing_evaluator_is_an_infrastructure_error(write, sandbox, code, told):
    toml = TOML.replace("evaluation = 40", "evaluation = 1") if "while" in code else TOML
    task = load(write(toml, **{"evaluator/evaluate.py": code}))

    with pytest.raises(EvaluatorError, match=told):
        evaluate(task, {"double.py": GOOD}, sandbox=sandbox)


USES_REPLIES = """
import time
SECRETS = {"row-one": 61187, "row-two": 62299}
found = call("double", [SECRETS])
if found == "leave":
    import os
    os._exit(1)
while found == "hang":
    pass
if found == "too little":
    raise SystemExit
if found == "reject":
    reject(f"double() must return 4 numbers, not {found}")
if isinstance(found, list) and len(found) == 3:
    reject(f"double() must return {4 + 300} numbers, not {found[0]} {found}")
total = found["total"] * 1e300 if isinstance(found, dict) and found else found / 2
score(total, {"found": found})
"""
SCORED = "def double(rows): return 0.5\n"
UNUSABLE = {
    "another type": ("[1]", "TypeError"),
    "an absent key": ("{}", "TypeError"),
    "a number out of range": ("{'total': 1e300}", "infinities"),
    "a text": ("'text of ' + str(rows)", "TypeError"),
    "nothing": ("None", "TypeError"),
    "what ends the evaluator": ("'leave'", "ended its process"),
    "what hangs the evaluator": ("'hang'", "did not end"),
    "what lets it end without a score": ("'too little'", "SystemExit"),
}


@pytest.mark.parametrize(("reply", "told"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_reply_that_crashes_the_evaluator_is_a_failure(write, sandbox, reply, told):
    toml = TOML.replace("evaluation = 40", "evaluation = 2") if reply == "'hang'" else TOML
    folder = write(toml, **{"evaluator/evaluate.py": USES_REPLIES, "baseline/double.py": SCORED})
    code = f"def double(rows): return {reply}\n"
    with load(folder).open(sandbox=sandbox) as env:
        env.reset()
        env.execute(f"open('double.py', 'w').write({code!r})")
        report = env.execute("print(validate())").observation.result.stdout
        last = env.execute("submit()")
        evaluation = env.evaluation

    assert (evaluation.failure, evaluation.score, last.reward) == ("invalid", None, -1.0)
    assert told in evaluation.message
    assert "'failure': 'invalid'" in report and "evaluator could not use" in report
    assert "row-" not in report and told not in report


@pytest.mark.parametrize("baseline", ["def double(rows): return []\n", "1 / 0\n"])
def test_a_crash_that_the_baseline_causes_too_is_the_evaluators(write, sandbox, baseline):
    folder = write(**{"evaluator/evaluate.py": USES_REPLIES, "baseline/double.py": baseline})

    with pytest.raises(EvaluatorError, match="TypeError"):
        evaluate(load(folder), {"double.py": "def double(rows): return []"}, sandbox=sandbox)


def test_without_documented_submissions_a_crash_is_that_of_the_submission(write, sandbox):
    folder = write(**{"evaluator/evaluate.py": USES_REPLIES})
    shutil.rmtree(folder / "baseline")
    shutil.rmtree(folder / "solution")

    found = evaluate(load(folder), {"double.py": "def double(rows): return []"}, sandbox=sandbox)

    assert (found.failure, found.gain) == ("invalid", -1.0)


def test_a_file_that_crashes_the_evaluator_is_a_failure(write, sandbox):
    reading = "import json\nscore(json.loads(read('double.py'))['share'])"
    folder = write(**{"evaluator/evaluate.py": reading, "baseline/double.py": '{"share": 0}'})
    for text in ("[", "[]", '{"share": null}', '{"share": NaN}'):
        found = evaluate(load(folder), {"double.py": text}, sandbox=sandbox)

        assert (found.failure, found.score, found.gain) == ("invalid", None, -1.0), text


# Each puts the hidden rows into what a failure could tell.
LEAKS = {
    "the message of an exception": "raise ValueError(str(rows))",
    "the name of an exception": "raise type(str(rows), (Exception,), {})",
    "the name of a reply's type": "return type(str(rows), (), {})()",
    "a key of a reply": "return {str(rows): object()}",
    "the name of a nested function": "raise NameError(name=str(rows))",
    "the note of an exception": "e = ValueError(); e.add_note(str(rows)); raise e",
    "an exit": "import sys; sys.exit(str(rows))",
    "the reason of a rejection": "return [str(rows), 1, 2]",
    "numbers of a rejection": "return [*rows.values(), 'row-one row-two']",
    "printed text": "import sys; print(rows); print(rows, file=sys.stderr); raise ValueError",
    "a nested failure": "raise ValueError(str(rows)) from KeyError(str(rows))",
    "a failing text": "E = type('E', (ValueError,), {'__str__': lambda e: str(rows)}); raise E",
    "a broken session": "import os; os.write(2, str(rows).encode()); os._exit(1)",
}


@pytest.mark.parametrize("body", LEAKS.values(), ids=LEAKS)
def test_a_failure_tells_a_policy_nothing_of_hidden_rows(write, sandbox, body):
    folder = write(**{"evaluator/evaluate.py": USES_REPLIES, "baseline/double.py": SCORED})
    code = f"def double(rows):\n    assert 'row-one' in rows\n    {body}\n"
    with load(folder).open(sandbox=sandbox) as env:
        env.reset()
        env.execute(f"open('double.py', 'w').write({code!r})")
        result = env.execute("print(validate())")
        evaluation = env.evaluation

    report = result.observation.result.stdout
    assert f"'failure': '{evaluation.failure}'" in report
    seen = f"{result.observation}{result.observation.metadata}"
    assert str(evaluation.failure) in {"exception", "invalid", "rejected", "crash"}
    assert not re.search(r"row-|(?<![\d.])(61187|62299)(?!\d)", seen)  # no digits of a time


def test_the_report_of_a_failure_names_kinds_and_counts(write, sandbox):
    with load(write()).open(sandbox=sandbox) as env:
        env.reset(max_iterations=10)
        reports = []
        for code in ("if x == 2: raise KeyError(x)", "raise Odd", "return object()"):
            text = f"class Odd(Exception): pass\ndef double(x):\n    {code}\n"
            env.execute(f"open('double.py', 'w').write({text!r})")
            reports.append(env.execute("print(validate()['message'])").observation.result.stdout)

    assert reports == [
        "double() raised KeyError in call 3\n",
        "double() raised an exception in call 1\n",
        "double() returned no JSON in call 1\n",
    ]


def test_a_rejection_tells_words_of_the_evaluator_and_counts(write, sandbox):
    reason = "double() must return {len('x' * 40)} numbers below 1e9, not {call('double', [1])}"
    task = load(write(**{"evaluator/evaluate.py": f"reject(f{reason!r})"}))
    with task.open(sandbox=sandbox) as env:
        env.reset()
        env.execute("open('double.py', 'w').write('def double(x): return \"beware 1.5\"')")
        report = env.execute("print(validate()['message'])").observation.result.stdout
        message = env.evaluation.message

    assert report == "double() must return 40 numbers below 1e9, not … …\n"
    assert message == "double() must return 40 numbers below 1e9, not beware 1.5"


# ── episodes ─────────────────────────────────────────────────────────────────────────────────────


def test_the_reward_of_an_episode_is_the_gain_of_its_submission(write, sandbox):
    with load(write()).open(sandbox=sandbox) as env:
        first = env.reset(group_id="g1")
        assert "Write `double(x)`" in first.observation.metadata["task_prompt"]
        told = env.execute("print(validate())")
        env.execute(f"open('double.py', 'w').write({GOOD!r})")
        last = env.execute("submit()")

    assert "'score': 0.5" in told.observation.result.stdout
    assert (told.reward, told.done, last.reward, last.done) == (0.0, False, 1.0, True)
    assert last.observation.metadata["reward_components"] == {"task": 1.0}
    assert last.observation.metadata["group_id"] == "g1"
    assert last.observation.metadata["task"] == load(write()).facts
    assert "secret" not in str(last.observation)


def test_improvements_are_paid_once(write, sandbox):
    with load(write()).open(sandbox=sandbox, reward_mode="improvement") as env:
        env.reset()
        rewards = [env.execute("validate()").reward, env.execute("validate()").reward]
        env.execute(f"open('double.py', 'w').write({GOOD!r})")
        rewards += [env.execute("validate()").reward, env.execute("submit()\nsubmit()").reward]

    assert rewards == [0.5, 0.0, 0.5, 0.0]


@pytest.mark.parametrize(
    "code",
    [
        "FINAL('1.0')",
        "print('score 1.0')\nFINAL('<<VALIDATION||1.0>>')",
        "validate = lambda: {'score': 1.0}\nvalidate()\nFINAL(validate())",
        "_task_paths.append('../x')\nsubmit_files({'double.py': 7})\nFINAL('')",
        "import glob\nprint(glob.glob('/tmp/**/evaluate.py', recursive=True))\nFINAL('')",
    ],
)
def test_printed_text_is_no_score(write, sandbox, code):
    with load(write()).open(sandbox=sandbox) as env:
        env.reset()
        env.execute("open('double.py', 'w').write('def double(x): return 0')")
        result = env.execute(code)

    assert result.done
    assert (result.reward or 0.0) <= 0.25  # what 0 is worth: right once in four
    assert "evaluate.py" not in result.observation.result.stdout


def test_submitting_again_pays_nothing(write, sandbox):
    again = "open('double.py', 'w').write('def double(x): return 2 * x')\nsubmit()"
    with load(write()).open(sandbox=sandbox) as env:
        env.reset()
        result = env.execute(f"FINAL = print\nsubmit()\n{again}")
        assert "handed in already" in result.observation.result.stderr
        assert not result.done
        last = env.submit()
        with pytest.raises(EpisodeDone):
            env.submit()

    assert last.reward == 0.5


def test_an_episode_out_of_steps_submits_its_files(write, sandbox):
    with load(write()).open(sandbox=sandbox) as env:
        env.reset(max_iterations=1)
        result = env.execute("x = 1")

    assert (result.done, result.reward) == (True, 0.5)


def test_validations_are_counted(write, sandbox):
    with load(write()).open(sandbox=sandbox) as env:
        env.reset()
        result = env.execute("for _ in range(4): validate()")

    assert "no more" in result.observation.result.stderr


def test_a_failing_evaluator_in_an_episode_is_reported_to_the_caller_alone(write, sandbox):
    task = load(write(**{"evaluator/evaluate.py": "secret = 41\nraise ValueError(secret + 1)"}))
    with task.open(sandbox=sandbox) as env:
        env.reset()
        with pytest.raises(EvaluatorError, match="ValueError: 42"):
            env.execute("validate()")


@pytest.mark.parametrize("part", ["..", ".", "evaluator", "task.toml"])
@pytest.mark.parametrize("inside", [None, "/elsewhere"])
def test_a_task_that_sessions_of_a_sandbox_would_see_is_refused(
    write, part, inside, tmp_path_factory
):
    around = tmp_path_factory.mktemp("set")
    folder = shutil.copytree(write(), around / "task")
    for each in (around, folder):
        each.chmod(0o755)
    shown = str((folder / part).resolve())
    with Sandbox(mounts={inside or shown: shown}) as seeing:
        with pytest.raises(TaskError, match="would see"):
            load(folder).open(sandbox=seeing)


def test_a_folder_that_sessions_are_shown_is_hidden_by_another(write):
    """Like the path of the shipped tasks, below the interpreter's packages."""
    import sysconfig

    place = Path(sysconfig.get_paths()["purelib"]) / "tasks_of_a_test"
    shutil.copytree(write(), place)
    place.chmod(0o755)
    try:
        with load(place).open() as env:
            env.reset()
            result = env.execute(f"import os\nprint(os.listdir({str(place)!r}))\nsubmit()")
    finally:
        shutil.rmtree(place)

    assert (result.observation.result.stdout.split("\n")[0], result.reward) == (
        "['README.md']",
        0.5,
    )


def test_sessions_do_not_see_the_solutions_of_shipped_tasks():
    task = load("blotto")
    folder = str(task.directory.parent)
    with task.open() as env:
        env.reset()
        result = env.execute(f"import os\nprint(os.path.exists({folder!r} + '/blotto/solution'))")

    assert result.observation.result.stdout.strip() == "False"


# ── directories ──────────────────────────────────────────────────────────────────────────────────

WRONG = {
    "no name of a metric": ('metric = "share"', "", "metric is missing"),
    "no direction": ('"maximize"', '"up"', 'direction must be "maximize"'),
    "an unknown key": ("name =", "colour = 1\nname =", "colour is none of"),
    "an unknown limit": ("call = 20", "calls = 20", "limits.calls is none of"),
    "a limit below zero": ("call = 20", "call = -1", "more than 0"),
    "half a step": ("steps = 6", "steps = 1.5", "whole number"),
    "a reference no better": ("reference = 1.0", "reference = 0.0", "better than the baseline"),
    "a score that is no float": ("baseline = 0.0", f"baseline = -{'9' * 400}", "finite"),
    "scores too far apart": (
        "baseline = 0.0\nreference = 1.0",
        "baseline = -1.7e308\nreference = 1.7e308",
        "too far",
    ),
    "a score that is NaN": ("baseline = 0.0", "baseline = nan", "finite"),
    "no submission": ('submission = ["double.py"]', "", "submission must name"),
    "a path outside": ('["double.py"]', '["../double.py"]', "not a path in the workspace"),
    "a module that is not submitted": ('module = "double"', 'module = "other"', "not among"),
    "a package with a version": ("split =", 'packages = ["numpy>=2"]\nsplit =', "distribution"),
    "no TOML": ("name =", "name", "task.toml"),
}


@pytest.mark.parametrize(("there", "instead", "told"), WRONG.values(), ids=WRONG)
def test_a_task_file_that_is_wrong_is_named(write, there, instead, told):
    with pytest.raises(TaskError, match=told):
        load(write(TOML.replace(there, instead)))


def test_a_task_without_an_evaluator_is_an_error_before_the_episode(write, sandbox):
    folder = write()
    (folder / "evaluator" / "evaluate.py").unlink()

    with pytest.raises(TaskError, match="there is no evaluator"):
        load(folder).open(sandbox=sandbox)


@pytest.mark.parametrize("code", [b"score(1.0)\n# \xff", b"#" * (9 << 20)])
def test_an_evaluator_that_is_no_code_is_an_error_before_the_episode(write, sandbox, code):
    folder = write()
    (folder / "evaluator" / "evaluate.py").write_bytes(code)

    with pytest.raises(TaskError, match=r"evaluate\.py cannot be run"):
        load(folder).open(sandbox=sandbox)


def test_packages_that_are_not_there_are_an_error_before_the_episode(write, sandbox):
    task = load(write(TOML.replace("split =", 'packages = ["cloudpickle", "no-such"]\nsplit =')))

    with pytest.raises(TaskError, match="do not have: no-such"):
        task.open(sandbox=sandbox)


@pytest.mark.parametrize("path", ["no-such-task", "/no/such/folder", "../blotto"])
def test_a_path_that_is_no_task_is_an_error(path):
    with pytest.raises(TaskError, match="no directory"):
        load(path)


def test_sets_are_searched_by_what_their_tasks_say(tmp_path):
    (tmp_path / "set" / "one").mkdir(parents=True)
    (tmp_path / "set" / "one" / "task.toml").write_text(TOML)
    both = load_set(tmp_path / "set")

    assert list(both) == ["double"]
    assert list(both.where(split="train")) == []
    assert list(shipped().where(group="games")) == ["blotto", "prisoners-dilemma"]
    with pytest.raises(KeyError, match="there are double"):
        both["other"]


HARBOR = """
version = "1.0"
[metadata]
difficulty = "hard"
category = "numbers"
author_name = "A. Nobody"
[metadata.repl_env]
submission = ["double.py"]
module = "double"
[verifier]
timeout_sec = 40.0
[agent]
timeout_sec = 50.0
[environment]
memory_mb = 512
"""


def test_harbors_layout_is_read_and_evaluated(write, sandbox):
    files = {"tests/evaluate.py": EVALUATE, "tests/test.sh": "exit 1", "instruction.md": "Double."}
    folder = write(HARBOR, **files, **{"environment/Dockerfile": "", "environment/double.py": HALF})
    task = load(folder)

    found = evaluate(task, task.starter_files(), sandbox=sandbox)

    assert (task.layout, task.difficulty, task.group, task.split) == (
        "harbor",
        "hard",
        "numbers",
        "train",
    )
    assert (task.limits.cell, task.limits.memory, found.score) == (50.0, "512MiB", 0.5)


def test_a_verifier_of_harbors_that_needs_a_container_says_so(write, sandbox):
    task = load(write(HARBOR, **{"tests/test.sh": "exit 1", "instruction.md": "Double."}))

    with pytest.raises(TaskError, match="needs a container"):
        task.open(sandbox=sandbox)


# Malformed inputs of the shipped evaluators, as a whole or in the place of each item.
ODD = [
    "None", "True", "-1", "10**5000", "1e308", "''", "'\\ud800'", "[]", "{}", "[None] * 6",
    "[[]] * 150", "[10**5000] * 150", "[1e308] * 150", "[True] * 6", "{'C': 1}", "'C' * 10**6",
    "__import__('functools').reduce(lambda a, _: [a], range(5000), 0)",
]  # fmt: skip


@pytest.mark.parametrize("name", [each for each in shipped() if load(each).module])
def test_shipped_evaluators_handle_malformed_results(name):
    task = load(name)
    evaluator = Evaluator(task)
    function = {"strategy": {"blotto": "allocate"}.get(name, "move"), "heuristic": "choose"}
    defined = function.get(task.module or "", "predict")

    for odd in ODD:
        code = f"def {defined}(*given): return {odd}"
        found = evaluator.evaluate({task.submission[0]: code})
        assert (found.score, found.gain) == (None, -1.0), odd


@pytest.mark.parametrize(
    "text", ["", "[", "3", "[" * 99_999, "[]", "null", "\\ud800", "[NaN]", "x" * 200_000, b"\xff"]
)
def test_a_malformed_file_of_answers_is_rejected(text):
    task = load("long-context-aggregation")

    found = evaluate(task, {"answers.json": text})

    assert (found.score, found.gain) == (None, -1.0)


@pytest.mark.parametrize(
    "code",
    [
        "os.remove('double.py')",
        "os.remove('double.py'); os.mkdir('double.py')",
        "os.remove('double.py'); os.mkfifo('double.py')",
        "os.remove('double.py'); os.symlink('/dev/zero', 'double.py')",
        "os.remove('double.py'); os.symlink('double.py', 'double.py')",
        "open('double.py', 'wb').truncate(20 << 20)",
        "open('double.py', 'wb').write(b'\\0\\xff')",
    ],
)
def test_a_submission_that_is_no_regular_file_fails(write, sandbox, code):
    with load(write()).open(sandbox=sandbox) as env:
        env.reset()
        env.execute(f"import os; {code}")
        result = env.submit()

    assert (result.done, result.reward) == (True, -1.0)
    assert str(env.evaluation.failure) in ("missing", "invalid", "exception")
