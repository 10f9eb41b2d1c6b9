"""Run beside the servers of compose.yaml: use sessions of one tenant through the proxy."""

import os

from repl_env import REPLEnv

ADDRESS, KEY = "http://127.0.0.1:8000", os.environ["REPL_API_KEY"]

with REPLEnv(ADDRESS, api_key=KEY).sync() as one, REPLEnv(ADDRESS, api_key=KEY).sync() as two:
    one.reset(context="kept")
    two.reset()
    assert one.execute("x = context").observation.result.success
    assert one.execute("x").observation.result.value == "'kept'"
    assert not two.execute("x").observation.result.success
