"""The work that is measured, the same text for everyone."""

from __future__ import annotations

STEP = "x = 1"
CPU_LOOP = "t = 0\nfor i in range(2_000_000):\n    t += i * i\n"
PRINT_1_MB = "print('a' * 1_000_000)"
TEXT_LINE = "a line of text that stands for all others\n"
