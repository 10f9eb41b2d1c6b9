"""Files that commands and code of pages read, by path."""

from __future__ import annotations

FILES = {
    "book.txt": "Chapter 1. A road.\nChapter 2. The sea.\n",
    "invoices.txt": "Ann 12\nBob 7\nAnn 12\n",
    "server.log": "10:00 start\n10:01 error: disk\n",
    "report.txt": "one two three\n",
    "a.txt": "one two three\n",
    "data.csv": "a,b\n1,2\n",
    "cells.py": "n = 6\nn * 7\n",
    "episode.json": '{"reset": {}, "actions": [], "observations": [{"result": {}}]}',
    # A task in MLGym's layout.
    "MLGym/configs/tasks/prisonersDilemma.yaml": """
id: prisonersDilemma
name: A game
description: Write a strategy.
dataset_configs: []
task_entrypoint: PythonSubmissionTasks
starter_code:
- data/prisonersDilemma/evaluate.py
- data/prisonersDilemma/strategy.py
baseline_paths:
- strategy.py
baseline_scores:
- Score: 0.5
evaluation_paths:
- evaluate.py
""",
    "MLGym/data/prisonersDilemma/strategy.py": "def row_strategy(history):\n    return 0\n",
    "MLGym/data/prisonersDilemma/evaluate.py": """
import json
from strategy import row_strategy

print(json.dumps({"Score": row_strategy([]) / 2}))
""",
}
