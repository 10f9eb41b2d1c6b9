"""verl: a session as a tool of verl's agent loop.

Needs verl, in a virtual environment of its own: `pip install repl-env verl`. A configuration of
tools names the class:
```yaml
tools:
  - class_name: repl_env.integrations.verl.python_tool.REPLTool
    config: {type: native}
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.integrations.extra_imports import exports_of_extra

if TYPE_CHECKING:
    from repl_env.integrations.verl.python_tool import REPLTool

__all__ = ["REPLTool"]

__getattr__, __dir__ = exports_of_extra(
    __name__,
    {"repl_env.integrations.verl.python_tool": ["REPLTool"]},
    "verl: pip install verl",
    ("verl",),
)
