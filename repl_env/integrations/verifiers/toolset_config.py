"""The configuration of `REPLToolset`, apart from it: its module is what a tool server runs."""

from __future__ import annotations

import verifiers.v1 as vf

from repl_env.common.display import set_module
from repl_env.integrations.verifiers.sessions import SessionConfig


@set_module("repl_env.integrations.verifiers")
class REPLToolsetConfig(vf.ToolsetConfig):
    """The place of the tool server and of its sessions."""

    sessions: SessionConfig = SessionConfig()
