"""The texts of the prompts, and how a template is filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SYSTEM = """\
You solve a task in a persistent Python session: variables, functions, imports and files stay from \
one reply to the next. Reply with your reasoning and exactly one block of code:

```python
print("hello")
```

The next message shows the output of the block. A reply without a block runs nothing and uses up a \
step.

Functions that the session has:
{command_docs}"""

TASK = """\
Task: {name}

{description}

{remaining_steps} steps remain. Working directory: {working_dir}; it has: {files}."""

NEXT_STEP = """\
{observation}

Step {current_step} is over; {remaining_steps} remain."""

NO_OUTPUT = """\
The code ran and printed nothing.

Step {current_step} is over; {remaining_steps} remain."""

WRONG_FORMAT = (
    "FormatError: no code ran, because the reply has no block of code. Reply with exactly one "
    "block that begins with ```{language} and ends with ```."
)

# A field is a name in braces; doubled braces stand for one. Any other brace is text.
_FIELD = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill(template: str, values: Mapping[str, Any]) -> str:
    """`template` with the values of its fields, as `str.format` has it for plain names.

    Values are text and are never looked into, and a field that no value is for stays as it is.
    """

    def of(match: re.Match[str]) -> str:
        if (name := match[1]) is None:
            return match[0][0]
        return str(values[name]) if name in values else match[0]

    return _FIELD.sub(of, template)


def fields_of(template: str) -> set[str]:
    """The names of the fields of `template`."""
    return {match[1] for match in _FIELD.finditer(template)} - {None}
