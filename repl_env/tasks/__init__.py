"""Tasks: directories with an instruction and an evaluator, and generated long-context questions.

```python
from repl_env.tasks import load

with load("blotto").open() as env:
    env.reset()
    result = env.execute("print(validate())\nsubmit()")
    print(result.reward, env.evaluation.score)
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from repl_env.tasks.episodes.task_env import TaskEnv
    from repl_env.tasks.episodes.task_vector_env import TaskVectorEnv
    from repl_env.tasks.generators import KINDS, MAX_SIZE, MIN_SIZE, GeneratedTask, make_task
    from repl_env.tasks.mlgym.mlgym_checkout import from_mlgym
    from repl_env.tasks.submission_evaluator import Evaluator, SubmissionEvaluation, evaluate
    from repl_env.tasks.task import Task, TaskLimits
    from repl_env.tasks.task_errors import EvaluatorError, TaskError
    from repl_env.tasks.task_set import TaskSet, load, load_set, shipped

__all__ = [
    "KINDS",
    "MAX_SIZE",
    "MIN_SIZE",
    "Evaluator",
    "EvaluatorError",
    "GeneratedTask",
    "SubmissionEvaluation",
    "Task",
    "TaskEnv",
    "TaskError",
    "TaskLimits",
    "TaskSet",
    "TaskVectorEnv",
    "evaluate",
    "from_mlgym",
    "load",
    "load_set",
    "make_task",
    "shipped",
]

_NAMES_BY_MODULE = {
    "repl_env.tasks.episodes.task_env": ("TaskEnv",),
    "repl_env.tasks.task_errors": (
        "EvaluatorError",
        "TaskError",
    ),
    "repl_env.tasks.submission_evaluator": (
        "SubmissionEvaluation",
        "Evaluator",
        "evaluate",
    ),
    "repl_env.tasks.generators": (
        "KINDS",
        "MAX_SIZE",
        "MIN_SIZE",
        "GeneratedTask",
        "make_task",
    ),
    "repl_env.tasks.mlgym.mlgym_checkout": ("from_mlgym",),
    "repl_env.tasks.task": (
        "Task",
        "TaskLimits",
    ),
    "repl_env.tasks.task_set": (
        "TaskSet",
        "load",
        "load_set",
        "shipped",
    ),
    "repl_env.tasks.episodes.task_vector_env": ("TaskVectorEnv",),
}

__getattr__, __dir__ = lazy_exports(__name__, _NAMES_BY_MODULE)
