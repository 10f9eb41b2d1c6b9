"""An integration without its library says how to install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.surface.names import INTEGRATIONS, listed

# The libraries that are missing, and what the error tells to do.
MISSING = {
    "gymnasium": (["gymnasium", "numpy"], "Gymnasium: pip install 'repl-env[gymnasium]'"),
    "trl": (["trl", "torch"], "TRL: pip install 'repl-env[trl]'"),
    "verifiers": (["verifiers", "pydantic_config"], "verifiers: pip install 'repl-env[verifiers]'"),
    "torchrl": (
        ["torchrl", "torch", "tensordict", "gymnasium", "numpy"],
        "TorchRL: pip install 'repl-env[torchrl]'",
    ),
    "skyrl_gym": (["skyrl_gym"], "skyrl-gym: pip install 'repl-env[skyrl]'"),
    "inspect_ai": (["inspect_ai"], "Inspect: pip install 'repl-env[inspect]'"),
    "verl": (["verl", "torch"], "verl: pip install 'repl-env[verl]'"),
    "rllm": (["rllm"], "rLLM, from its repository"),
    "nemo_gym": (["resources_servers", "nemo_gym"], "NeMo Gym, from its repository"),
}
MODULES = [module for module in listed() if module.startswith(INTEGRATIONS)]
# Names that need no library of these.
LIGHT = {
    "REPLToolEnv", "Rollouts", "episode_reward", "masked_rewards", "rollout_func", "use_fences",
    "get_args",
}  # fmt: skip
PROGRAM = """
import sys
from importlib import import_module
module, missing, names = sys.argv[1], sys.argv[2].split(","), sys.argv[3].split(",")
sys.modules.update(dict.fromkeys(missing))
for name in names:
    try:
        getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        print(name, error)
"""


@pytest.mark.parametrize("module", MODULES)
def test_each_name_says_what_to_install(module: str) -> None:
    missing, advice = MISSING[module.removeprefix(INTEGRATIONS).partition(".")[0]]
    names = [name for name in listed()[module] if "." not in name]
    if module != f"{INTEGRATIONS}torchrl.mlgym":  # which is about its library as a whole
        names = [name for name in names if name not in LIGHT]
    command = [sys.executable, "-c", PROGRAM, module, ",".join(missing), ",".join(names)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == [f"{name} this needs {advice}" for name in names]
