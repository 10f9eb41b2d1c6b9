"""Tasks for these tests: texts whose words have to be counted."""

from __future__ import annotations

TASKS = [
    {"context": "w " * n, "task_prompt": "How many words?", "expected_answer": n, "task_id": str(n)}
    for n in range(2, 8)
]
COUNTED = "FINAL(len(context.split()))"
