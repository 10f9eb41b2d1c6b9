"""The headings under which help screens list options."""

from __future__ import annotations

from typing import Final

INPUT: Final = "Input"
MODEL: Final = "Model"
TURNS: Final = "Turns and child runs"
BUDGET: Final = "Budget"
EVALUATION: Final = "Evaluation"
ISOLATION: Final = "Isolation"
LIMITS: Final = "Limits of a session"
OUTPUT: Final = "Output"
