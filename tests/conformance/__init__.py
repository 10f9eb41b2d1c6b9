"""Requirements on every backend of sessions, as data, and a runner for the requirements.

```python
from repl_sandbox import Sandbox
from tests.conformance import CHECKS, run

with Sandbox() as sandbox:
    report = run(sandbox.session)
assert report.ok, report.failed
```
Covers: what a caller of a session can see, with the exact outcome. Does not cover attacks, which
are a corpus of their own, nor speed.
"""

from __future__ import annotations

from .checks import CHECKS
from .runner import CheckResult, Report, run
from .steps import Check

__all__ = ["CHECKS", "Check", "CheckResult", "Report", "run"]
