"""`from_mlgym`: a task of a checkout of MLGym as a task directory, where it needs no container."""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from repl_env.arguments import as_path, one_of
from repl_env.tasks.errors import TaskError
from repl_env.tasks.task import EVALUATE, Task
from repl_env.tasks.task_file import FILE, Fields, read_task

_BRIDGE = Path(__file__).with_name("inside") / "mlgym_evaluate.py"
_CSV, _PYTHON = "CSVSubmissionTasks", "PythonSubmissionTasks"
_LONGEST = 600.0  # seconds of an evaluation, whatever `training_timeout` is
_SEED = 42
_SCRIPT = "mlgym_script.py"  # in the evaluator's folder, where evaluate.py is ours


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
    one_of(direction, ("maximize", "minimize"), "direction")
    found = _Checkout.read(as_path(checkout, "checkout"), task)
    target = as_path(into, "into")
    if target.exists():
        raise TaskError(f"{target}: exists already; give a folder that does not")
    parts = found.parts(submission)
    name, base = found.baseline(metric, baseline)
    better = abs(base) or 1.0
    reached = base + (better if direction == "maximize" else -better)
    how = {
        "script": _SCRIPT,
        "arguments": ["--submission_file", "submission.csv"] if parts.module is None else [],
        "read": [] if parts.module else [parts.submission],
        "module": parts.module,
        "metric": name,
        "packages": list(packages),
        "seed": _SEED,
    }
    table = {
        "name": found.given.text("id", task),
        "metric": name,
        "direction": direction,
        "submission": [parts.submission],
        **({"module": parts.module} if parts.module else {}),
        "packages": list(packages),
        "group": found.given.text("benchmark_name", "mlgym"),
    }
    scores = {"baseline": base, "reference": reached if reference is None else reference}
    limits = {"evaluation": min(found.given.number("training_timeout", 60.0), _LONGEST)}
    try:
        parts.write(target)
        (target / "instruction.md").write_text(found.instruction(), encoding="utf-8")
        (target / "evaluator" / "mlgym.json").write_text(json.dumps(how), encoding="utf-8")
        shutil.copyfile(_BRIDGE, target / "evaluator" / EVALUATE)
        (target / FILE).write_text(_toml(table, scores=scores, limits=limits), encoding="utf-8")
        return read_task(target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


@dataclass(frozen=True, slots=True)
class _Parts:
    """The files of a task, by the folder of a task directory and their path in it."""

    files: dict[tuple[str, str], Path]
    submission: str
    module: str | None

    def write(self, target: Path) -> None:
        for (folder, name), source in self.files.items():
            path = target / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)


class _Checkout:
    """The configuration of a task in a checkout."""

    def __init__(self, root: Path, given: Fields, datasets: list[Fields]) -> None:
        self.root, self.given, self.datasets = root, given, datasets

    @classmethod
    def read(cls, root: Path, task: str) -> _Checkout:
        folder = root / "configs" / "tasks"
        file = folder / f"{task}.yaml"
        if not isinstance(task, str) or PurePosixPath(task).name != task or not file.is_file():
            names = [path.stem for path in sorted(folder.glob("*.yaml"))]
            raise TaskError(f"{folder}: no task {task!r}; there are {', '.join(names) or 'none'}")
        given = _yaml(file)
        paths = given.texts("dataset_configs")
        return cls(root, given, [_yaml(_inside(root / "configs", path, given)) for path in paths])

    def instruction(self) -> str:
        """The description, with the documentation of the data."""
        docs = "".join(
            f"{data.text('name').upper()}:\n{data.text('description')}\n\n"
            for data in self.datasets
        )
        description = self.given.text("description")
        try:
            return description.format(dataset_docs=docs)
        except (KeyError, IndexError, ValueError):  # braces that are meant as they stand
            return description.replace("{dataset_docs}", docs)

    def baseline(self, metric: str | None, score: float | None) -> tuple[str, float]:
        """The metric and the baseline's score."""
        scores = self.given.table.get("baseline_scores") or []
        first = scores[0] if isinstance(scores, list) and scores else {}
        if not isinstance(first, dict):
            raise self.given.error("baseline_scores", "must be a list of tables")
        metric = metric or next(iter(map(str, first)), None)
        if metric is None:
            raise self.given.error("baseline_scores", "is missing; give metric and baseline")
        if score is None:
            score = Fields(self.given.file, first, "baseline_scores").number(metric)
        return metric, float(score)

    def parts(self, submission: str | None) -> _Parts:
        """The files, sorted by who may see them."""
        given = self.given
        entry = given.text("task_entrypoint", _CSV)
        if entry not in (_CSV, _PYTHON):
            raise given.error("task_entrypoint", f"is {entry}, which needs MLGym's container")
        scripts = [PurePosixPath(path).name for path in given.texts("evaluation_paths")]
        if not scripts:
            raise given.error("evaluation_paths", "is missing: there is no evaluator")
        hidden = {*scripts, *(PurePosixPath(path).name for path in given.texts("secret_files"))}
        starter, data = self._starter(), self._data()
        if scripts[0] not in starter:
            raise given.error("evaluation_paths", f"{scripts[0]} is not among starter_code")
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
                files["evaluator", _SCRIPT if name == scripts[0] else name] = source
        for name, source in data.items():
            secret = PurePosixPath(name).name in hidden
            files["evaluator" if secret else "data", f"data/{name}" if secret else name] = source
        for path in given.texts("baseline_paths"):
            if PurePosixPath(path).name == submission and path in starter:
                files["baseline", submission] = starter[path]
        return _Parts(files, submission, module)

    def _starter(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for path in self.given.texts("starter_code"):
            found |= _files(_inside(self.root, path, self.given), named=True)
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
            raise self.given.error(
                "starter_code", f"does not say what is handed in; give submission, one of {mine}"
            )
        return mine[0]


def _yaml(file: Path) -> Fields:
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
    given = Fields(file, table)
    given.table = {key: value for key, value in given.table.items() if value is not None}
    return given


def _inside(root: Path, path: str, given: Fields) -> Path:
    """The file or folder `path` of the checkout."""
    found = root / path
    if not found.resolve().is_relative_to(root.resolve()):
        raise TaskError(f"{given.file}: {path} is outside the checkout")
    if not found.exists():
        raise TaskError(f"{given.file}: {path} is not in the checkout")
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


def _toml(table: dict[str, Any], **tables: dict[str, Any]) -> str:
    lines = [f"{key} = {_value(value)}" for key, value in table.items()]
    for name, below in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in below.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    # TOML's texts, lists and numbers are written as JSON's, where no character is escaped twice.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
