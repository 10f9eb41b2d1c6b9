"""Run where repl-env is installed: pack it as `openenv-repl-env` into the folder that is named."""

import sys
from pathlib import Path

from repl_env.integrations.space import pack_wheel

pack_wheel(Path(sys.argv[1]))
