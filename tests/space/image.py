"""`Image`: a Dockerfile of a Space, read."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Image:
    """The container settings of a Dockerfile."""

    run: str
    environment: dict[str, str]
    command: list[str]

    @classmethod
    def of(cls, folder: Path) -> Image:
        text = (folder / "Dockerfile").read_text().replace("\\\n", " ")
        settings = [
            each for line in re.findall(r"(?m)^ENV (.*)$", text) for each in shlex.split(line)
        ]
        (run,) = (line for line in re.findall(r"(?m)^RUN (.*)$", text) if "pip" in line)
        (command,) = re.findall(r"(?m)^CMD (.*)$", text)
        environment = dict(each.split("=", 1) for each in settings)
        return cls(run.replace("/opt/", f"{folder}/"), environment, json.loads(command))
