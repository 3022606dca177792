"""`python -m watershed` is the command `cdc`, for processes that are started by the interpreter that runs."""

from watershed.cli.main import main

if __name__ == "__main__":
    main()
