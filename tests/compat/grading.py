"""OpenEnv's runtime graders on a running server, printed as JSON: `python grading.py URL`.

OpenEnv builds and starts an image to collect evidence; the graders judge the evidence, which can be
collected from any server.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from openenv.validation.graders import Subject
from openenv.validation.graders.runtime import (
    ObservationSchemaGrader,
    RewardWellFormedGrader,
    StateContractGrader,
)
from openenv.validation.parsers.openenv_yaml import OpenEnvYamlParser
from openenv.validation.runtime.collector import collect_runtime_evidence
from openenv.validation.runtime.contracts import RuntimePlan, RuntimeReset

ROOT = Path(__file__).parents[2]

PLAN = RuntimePlan(
    plan_schema_version="1",
    reset=RuntimeReset(
        episode_id="graded",
        seed=7,
        options={"context": "one two three", "expected_answer": "3", "task_prompt": "How many?"},
    ),
    actions=[
        {"code": "count = len(context.split())\ncount"},
        {"code": "1 / 0"},
        {"code": "print('a\\ud800b' * 10_000)"},
        {"code": "def ("},
        {"code": "FINAL(count)"},
    ],
)


def main() -> None:
    """See the module."""
    evidence = collect_runtime_evidence(sys.argv[1], PLAN, episode_timeout_s=120)
    seen = [exchange.operation for exchange in evidence.exchanges]
    print(json.dumps({"story": "seen", "told": seen}))
    print(json.dumps({"story": "failure", "told": evidence.failure_reason}))
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(
            root=ROOT,
            manifest=OpenEnvYamlParser().parse(ROOT),
            image_ref=None,
            running=None,
            outputs_dir=Path(folder),
            runtime_evidence=evidence,
        )
        for grader in (RewardWellFormedGrader(), ObservationSchemaGrader(), StateContractGrader()):
            result = grader.run(subject)
            told = [result.status.value, *result.evidence]
            print(json.dumps({"story": grader.check_id, "told": told}))


if __name__ == "__main__":
    main()
