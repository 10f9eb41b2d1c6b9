"""The files of a task in a checkout of MLGym, as its configuration names them."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from repl_env.tasks.task_errors import TaskError
from repl_env.tasks.task_file import TaskFields

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
