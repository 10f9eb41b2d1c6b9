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
    from repl_env.tasks.environments import TaskSetEnvironment, TaskVectorEnv
    from repl_env.tasks.episodes import TaskEnv
    from repl_env.tasks.generators import KINDS, MAX_SIZE, MIN_SIZE, GeneratedTask, make_task
    from repl_env.tasks.mlgym import from_mlgym
    from repl_env.tasks.submission import (
        Evaluator,
        EvaluatorError,
        SubmissionEvaluation,
        TaskError,
        evaluate,
    )
    from repl_env.tasks.task import Task, TaskLimits, TaskSet, load, load_set, shipped

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
    "TaskSetEnvironment",
    "TaskVectorEnv",
    "evaluate",
    "from_mlgym",
    "load",
    "load_set",
    "make_task",
    "shipped",
]

_NAMES_BY_MODULE = {
    "repl_env.tasks.episodes": ("TaskEnv",),
    "repl_env.tasks.environments": (
        "TaskSetEnvironment",
        "TaskVectorEnv",
    ),
    "repl_env.tasks.submission": (
        "Evaluator",
        "EvaluatorError",
        "SubmissionEvaluation",
        "TaskError",
        "evaluate",
    ),
    "repl_env.tasks.generators": (
        "GeneratedTask",
        "KINDS",
        "MAX_SIZE",
        "MIN_SIZE",
        "make_task",
    ),
    "repl_env.tasks.mlgym": ("from_mlgym",),
    "repl_env.tasks.task": (
        "Task",
        "TaskLimits",
        "TaskSet",
        "load",
        "load_set",
        "shipped",
    ),
}

__getattr__, __dir__ = lazy_exports(__name__, _NAMES_BY_MODULE)
