"""The configuration of `REPLToolset`, apart from it: its module is what a tool server runs."""

from __future__ import annotations

import verifiers.v1 as vf

from repl_env.integrations.verifiers.sessions import SessionConfig


class REPLToolsetConfig(vf.ToolsetConfig):
    """Where the tool server and its sessions are."""

    sessions: SessionConfig = SessionConfig()
