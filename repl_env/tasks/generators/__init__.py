"""Long-context tasks that are generated, with exact answers.

`make_task(kind, size, seed)` is a pure function: the same bytes on every system and in every
version of Python. `repl-env bench-tasks make` writes datasets of them, `repl-env eval` runs a
solver over such a dataset.
"""

from __future__ import annotations

from repl_env.tasks.generators.generated_task import MAX_SIZE, MIN_SIZE, GeneratedTask
from repl_env.tasks.generators.task_kinds import KINDS, make_task

__all__ = ["KINDS", "MAX_SIZE", "MIN_SIZE", "GeneratedTask", "make_task"]
