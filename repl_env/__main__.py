"""`python -m repl_env COMMAND`: as `repl-env COMMAND`, by an interpreter of one's choice."""

from .cli.main import main

if __name__ == "__main__":
    main()
