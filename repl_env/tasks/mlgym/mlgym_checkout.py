"""`from_mlgym`: a task of a checkout of MLGym as a task directory, where it needs no container."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from repl_env.common.argument_checks import as_path, one_of
from repl_env.common.set_module import set_module
from repl_env.tasks.mlgym.mlgym_files import SCRIPT, Checkout, MLGymParts
from repl_env.tasks.task import Task
from repl_env.tasks.task_errors import TaskError
from repl_env.tasks.task_file import FILE, read_task
from repl_env.tasks.task_folder import EVALUATOR_FILE

_BRIDGE = Path(__file__).parents[1] / "session_code" / "mlgym_bridge.py"
_LONGEST = 600.0  # seconds of an evaluation, whatever `training_timeout` is
_SEED = 42


@set_module("repl_env.tasks")
def from_mlgym(
    checkout: str | os.PathLike[str],
    task: str,
    into: str | os.PathLike[str],
    *,
    direction: str = "maximize",
    metric: str | None = None,
    baseline: float | None = None,
    reference: float | None = None,
    submission: str | None = None,
    packages: Iterable[str] = (),
) -> Task:
    """Write the task of a checkout of MLGym into the new folder `into`, and read it.

    The evaluation script runs in the evaluator's session. The functions of a Python submission are
    called in the submission's session, so that their arguments and results must be JSON.

    Args:
        checkout: the repository's folder, with `configs/` and `data/`.
        task: the name of a file in `configs/tasks/`, without its suffix.
        direction: whether more is better, which MLGym's files do not say.
        metric, baseline: by default those of `baseline_scores`.
        reference: the score whose gain is 1; by default the baseline improved by its own size.
        submission: the file that is handed in; by default `submission.csv`, or the one starter
            file that the evaluation script imports.
        packages: distributions that submission or evaluation need.

    Raises:
        TaskError: the task needs a container, is incomplete or wrong, or PyYAML is not there.
    """
    packages = list(packages)
    one_of(direction, ("maximize", "minimize"), "direction")
    found = Checkout.read(as_path(checkout, "checkout"), task)
    target = as_path(into, "into")
    if target.exists():
        raise TaskError(f"{target}: exists already; give a folder that does not")
    parts = found.parts(submission, packages)
    metric, base = found.baseline(metric, baseline)
    if reference is None:
        improvement = abs(base) or 1.0
        reference = base + (improvement if direction == "maximize" else -improvement)
    table = _task_table(found, parts, name=task, metric=metric, direction=direction)
    table["packages"] = packages
    scores = {"baseline": base, "reference": reference}
    limits = {"evaluation": min(found.fields.number("training_timeout", _LONGEST), _LONGEST)}
    try:
        parts.write(target)
        (target / "instruction.md").write_text(found.instruction(), encoding="utf-8")
        _write_evaluator(target / "evaluator", _script_call(parts, metric, packages))
        (target / FILE).write_text(_toml(table, scores=scores, limits=limits), encoding="utf-8")
        return read_task(target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _task_table(found: Checkout, parts: MLGymParts, *, name: str, **facts: str) -> dict[str, Any]:
    """Return the top level of the task's `task.toml`, without its packages."""
    return {
        "name": found.fields.text("id", name),
        **facts,
        "submission": [parts.submission],
        **({"module": parts.module} if parts.module else {}),
        "group": found.fields.text("benchmark_name", "mlgym"),
    }


def _script_call(parts: MLGymParts, metric: str, packages: list[str]) -> dict[str, Any]:
    """Return what the evaluator needs for a call of the evaluation script."""
    return {
        "script": SCRIPT,
        "arguments": ["--submission_file", "submission.csv"] if parts.module is None else [],
        "read": [] if parts.module else [parts.submission],
        "module": parts.module,
        "metric": metric,
        "packages": packages,
        "seed": _SEED,
    }


def _write_evaluator(folder: Path, script_call: dict[str, Any]) -> None:
    (folder / "mlgym.json").write_text(json.dumps(script_call), encoding="utf-8")
    shutil.copyfile(_BRIDGE, folder / EVALUATOR_FILE)


def _toml(table: dict[str, Any], **tables: dict[str, Any]) -> str:
    lines = [f"{key} = {_value(value)}" for key, value in table.items()]
    for name, below in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in below.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    # TOML's texts, lists and numbers are written as JSON's, where no character is escaped twice.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
