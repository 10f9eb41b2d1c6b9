"""The module names of OpenEnv's `repl_env.server`; what they export is defined elsewhere."""
