"""`from_mlgym`: a task of a checkout of MLGym as a task directory, where it needs no container."""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from repl_env.common.display import set_module
from repl_env.common.values import as_path, one_of
from repl_env.tasks.submission import EVALUATOR_FILE, TaskError
from repl_env.tasks.task import FILE, Task, TaskFields, read_task

# The files of a task in a checkout of MLGym, as its configuration names them.

SCRIPT = "mlgym_script.py"  # the evaluation script in the evaluator's folder
_CSV, _PYTHON = "CSVSubmissionTasks", "PythonSubmissionTasks"


@dataclass(frozen=True, slots=True)
class MLGymParts:
    """The files of a task, by the folder of a task directory and their path in it."""

    files: dict[tuple[str, str], Path]
    submission: str
    module: str | None

    def write(self, target: Path) -> None:
        """Copy the files into the task directory `target`."""
        for (folder, name), source in self.files.items():
            path = target / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)


class Checkout:
    """The configuration of a task in a checkout, and the files that it names."""

    def __init__(self, root: Path, fields: TaskFields, datasets: list[TaskFields]) -> None:
        self.root, self.fields, self.datasets = root, fields, datasets

    @classmethod
    def read(cls, root: Path, task: str) -> Checkout:
        """The task of this name; TaskError if there is none or its file is no table."""
        folder = root / "configs" / "tasks"
        file = folder / f"{task}.yaml"
        if not isinstance(task, str) or PurePosixPath(task).name != task or not file.is_file():
            names = [path.stem for path in sorted(folder.glob("*.yaml"))]
            raise TaskError(f"{folder}: no task {task!r}; there are {', '.join(names) or 'none'}")
        fields = _yaml(file)
        paths = fields.texts("dataset_configs")
        return cls(root, fields, [_yaml(_inside(root / "configs", path, fields)) for path in paths])

    def instruction(self) -> str:
        """The description, with the documentation of the data."""
        docs = "".join(
            f"{data.text('name').upper()}:\n{data.text('description')}\n\n"
            for data in self.datasets
        )
        description = self.fields.text("description")
        try:
            return description.format(dataset_docs=docs)
        except (KeyError, IndexError, ValueError):  # braces that are meant as they stand
            return description.replace("{dataset_docs}", docs)

    def baseline(self, metric: str | None, score: float | None) -> tuple[str, float]:
        """The metric and the baseline's score."""
        scores = self.fields.table.get("baseline_scores") or []
        first = scores[0] if isinstance(scores, list) and scores else {}
        if not isinstance(first, dict):
            raise self.fields.error("baseline_scores", "must be a list of tables")
        metric = metric or next(iter(map(str, first)), None)
        if metric is None:
            raise self.fields.error("baseline_scores", "is missing; give metric and baseline")
        if score is None:
            score = TaskFields(self.fields.file, first, "baseline_scores").number(metric)
        return metric, float(score)

    def parts(self, submission: str | None, packages: Collection[str]) -> MLGymParts:
        """The files, sorted by who may see them."""
        fields = self.fields
        if "requirements_path" in fields.table and not packages:
            raise fields.error("requirements_path", "names packages; give them as packages")
        entry = fields.text("task_entrypoint", _CSV)
        if entry not in (_CSV, _PYTHON):
            raise fields.error("task_entrypoint", f"is {entry}, which needs MLGym's container")
        scripts = [PurePosixPath(path).name for path in fields.texts("evaluation_paths")]
        if not scripts:
            raise fields.error("evaluation_paths", "is missing: there is no evaluator")
        hidden = {*scripts, *(PurePosixPath(path).name for path in fields.texts("secret_files"))}
        starter, data = self._starter(), self._data()
        if scripts[0] not in starter:
            raise fields.error("evaluation_paths", f"{scripts[0]} is not among starter_code")
        module = None
        if entry == _PYTHON:
            submission = submission or self._imported(starter, scripts[0], hidden)
            module = submission.removesuffix(".py").replace("/", ".")
        submission = submission or "submission.csv"
        files: dict[tuple[str, str], Path] = {}
        for name, source in starter.items():
            secret = PurePosixPath(name).name in hidden
            if not secret:
                files["starter", name] = source
            if secret or name != submission:
                files["evaluator", SCRIPT if name == scripts[0] else name] = source
        for name, source in data.items():
            secret = PurePosixPath(name).name in hidden
            files["evaluator" if secret else "data", f"data/{name}" if secret else name] = source
        for path in fields.texts("baseline_paths"):
            if PurePosixPath(path).name == submission and path in starter:
                files["baseline", submission] = starter[path]
        return MLGymParts(files, submission, module)

    def _starter(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for path in self.fields.texts("starter_code"):
            found |= _files(_inside(self.root, path, self.fields), named=True)
        return found

    def _data(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for data in self.datasets:
            if data.table.get("is_local") is not True:
                raise data.error("is_local", "must be true: data that MLGym downloads is not read")
            found |= _files(_inside(self.root, data.text("data_path"), data), named=False)
        return found

    def _imported(self, starter: dict[str, Path], script: str, hidden: set[str]) -> str:
        """The starter file that the evaluation script imports."""
        try:
            tree = ast.parse(starter[script].read_text(encoding="utf-8"))
        except (SyntaxError, ValueError) as error:
            raise TaskError(f"{starter[script]}: {error}") from error
        modules: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module)
        names = {f"{module.replace('.', '/')}.py" for module in modules}
        mine = sorted((names & starter.keys()) - hidden - {"target.py"})
        if len(mine) != 1:
            raise self.fields.error(
                "starter_code", f"does not say what is handed in; give submission, one of {mine}"
            )
        return mine[0]


def _yaml(file: Path) -> TaskFields:
    try:
        import yaml
    except ImportError as error:
        raise TaskError(f"{file}: reading it needs PyYAML: pip install pyyaml") from error
    try:
        table = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TaskError(f"{file}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: {error}") from error
    fields = TaskFields(file, table)
    fields.table = {key: value for key, value in fields.table.items() if value is not None}
    return fields


def _inside(root: Path, path: str, fields: TaskFields) -> Path:
    """The file or folder `path` of the checkout."""
    found = root / path
    if not found.resolve().is_relative_to(root.resolve()):
        raise TaskError(f"{fields.file}: {path} is outside the checkout")
    if not found.exists():
        raise TaskError(f"{fields.file}: {path} is not in the checkout")
    return found


def _files(path: Path, *, named: bool) -> dict[str, Path]:
    """The files below `path` by their names there, or a file by its own; no links."""
    if path.is_file():
        return {path.name: path}
    prefix = f"{path.name}/" if named else ""
    return {
        f"{prefix}{each.relative_to(path).as_posix()}": each
        for each in sorted(path.rglob("*"))
        if each.is_file() and not each.is_symlink() and "__pycache__" not in each.parts
    }


# `from_mlgym`.

_BRIDGE = Path(__file__).with_name("session_code") / "mlgym_bridge.py"
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
