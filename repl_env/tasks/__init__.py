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

from repl_env.first_use import on_first_use

if TYPE_CHECKING:
    from repl_env.tasks.episode import TaskEnv
    from repl_env.tasks.errors import EvaluatorError, TaskError
    from repl_env.tasks.evaluator import Evaluation, Evaluator, evaluate
    from repl_env.tasks.generators import KINDS, MAX_SIZE, MIN_SIZE, GeneratedTask, make_task
    from repl_env.tasks.mlgym_checkout import from_mlgym
    from repl_env.tasks.task import Task, TaskLimits
    from repl_env.tasks.task_set import TaskSet, load, load_set, shipped
    from repl_env.tasks.vector import TaskVectorEnv

__all__ = [
    "KINDS",
    "MAX_SIZE",
    "MIN_SIZE",
    "Evaluation",
    "Evaluator",
    "EvaluatorError",
    "GeneratedTask",
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

__getattr__, __dir__ = on_first_use(
    "repl_env.tasks",
    {
        "generators": ("KINDS", "MAX_SIZE", "MIN_SIZE", "GeneratedTask", "make_task"),
        "episode": ("TaskEnv",),
        "errors": ("EvaluatorError", "TaskError"),
        "evaluator": ("Evaluation", "Evaluator", "evaluate"),
        "mlgym_checkout": ("from_mlgym",),
        "task": ("Task", "TaskLimits"),
        "task_set": ("TaskSet", "load", "load_set", "shipped"),
        "vector": ("TaskVectorEnv",),
    },
)
