"""`python -m repl_env COMMAND`: `repl-env COMMAND` with a chosen interpreter."""

from .cli.main import main

if __name__ == "__main__":
    main()
