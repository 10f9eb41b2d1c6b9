"""Run beside a server in its container: print what a session is held by and answers, as JSON."""

import json
import os
import sys

from repl_env import REPLEnv

CODE = sys.argv[1] if len(sys.argv) > 1 else "6 * 7"

with REPLEnv("http://127.0.0.1:8000").sync() as env:
    env.reset()
    seen = env.execute(CODE, timeout_s=60).observation
    tier = seen.metadata["isolation"]["tier"] if seen.result.success else seen.result.stderr
    print(json.dumps({"tier": tier, "uid": os.getuid(), "value": seen.result.value}))
