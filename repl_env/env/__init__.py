"""The parts of `REPLEnvironment`: its current episode, and the work of each of its calls.

Each part has an interface of its own; `repl_env.env.episodes` puts them together. The work is
written once, as turns (`repl_env.turns`), for plain and asynchronous callers.
"""
