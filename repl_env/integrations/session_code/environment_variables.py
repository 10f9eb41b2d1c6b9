# Runs in the session of an episode: sets the environment variables that the host has put there.
__import__("os").environ.update(_task_variables)
del _task_variables
