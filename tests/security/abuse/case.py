"""One case of the corpus: code that attacks, and what must hold while and after it runs.

`corpus/fixtures.json` says what each key means. An unknown key is an error: a check that is
not made must not look like one that passed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parents[1] / "corpus"
FILES = (CORPUS / "abuse.jsonl", CORPUS / "engine.jsonl")
# Seconds for what the harness itself waits for, and for cells that end by themselves. No verdict
# allows them: a reply may be late by what a quiet session beside it has to wait (see `quiet`).
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Check:
    """Conditions that must hold. Patterns are regular expressions, times seconds, sizes bytes.

    `proof`: found in the case's reply only if the attack took place; where tiers differ, by tier,
    with "else" for those that have none of their own.
    """

    deny: tuple[str, ...]
    proof: str | Mapping[str, str]
    timeout: float
    reply_within: float
    alive_within: float
    state: str
    need: tuple[str, ...] = ()
    need_error: bool = False
    after: tuple[str, str] | None = None
    reset_allowed: bool = False
    max_output: int | None = None
    raw_ok: bool = False
    followup: str | None = None
    followup_timeout: float = 2.0
    followup_reply_within: float = 10.0
    prep_other: str | None = None
    prep_self_then_reset: str | None = None
    host: tuple[str, ...] = ()

    def proof_in(self, tier: str) -> str:
        """The pattern that a reply in `tier` must have."""
        if isinstance(self.proof, str):
            return self.proof
        return self.proof.get(tier, self.proof["else"])


@dataclass(frozen=True, slots=True)
class Case:
    """One line of a corpus file. `tiers`: those that must pass it."""

    id: str
    group: str
    code: str
    expect: str
    check: Check
    tiers: tuple[str, ...]

    @property
    def patience(self) -> float:
        """Seconds for the cell. A cell that ends by itself may have to wait for its time slice."""
        check = self.check
        ends = not check.need_error and (check.state == "kept" or bool(check.need))
        return check.timeout + (PATIENCE if ends else 0)

    @property
    def longest(self) -> float:
        """Seconds after which no reply is a hang of the host and not of the session."""
        check = self.check
        asked = check.reply_within + check.alive_within + check.followup_reply_within
        return asked + 4 * PATIENCE


def load(path: Path) -> list[Case]:
    """The cases of a corpus file.

    Raises:
        ValueError: a line has a key that is not known, or lacks one; or an id is used twice.
    """
    cases = [parse(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    ids = [case.id for case in cases]
    if twice := {name for name in ids if ids.count(name) > 1}:
        raise ValueError(f"{path.name}: used twice: {sorted(twice)}")
    return cases


def parse(row: Mapping[str, Any]) -> Case:
    """A case as a line of a corpus file has it, or as `dataclasses.asdict` makes it."""
    unknown = row.keys() - {field.name for field in fields(Case)} - {"refs"}
    unknown |= row["check"].keys() - {field.name for field in fields(Check)}
    if unknown:
        raise ValueError(f"{row['id']}: unknown keys {sorted(unknown)}")
    check = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in row["check"].items()
    }
    named = (row[name] for name in ("id", "group", "code", "expect"))
    return Case(*named, Check(**check), tuple(row["tiers"]))  # type: ignore[call-arg]
