"""The console script. Errors meant for the user become one line on stderr; all others keep their traceback."""

from __future__ import annotations

import sys

from .cli import app

USAGE, FAILED = 2, 1


def main() -> None:
    try:
        app()
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        sys.stderr.write(f"{error}\n")
        sys.exit(code)


def _exit_code(error: Exception) -> int | None:
    # imported here, where time no longer matters: --help needs neither
    from .configfile import ConfigError
    from .models.job import StoreError

    if isinstance(error, ConfigError):
        return USAGE
    return FAILED if isinstance(error, StoreError) else None


if __name__ == "__main__":
    main()
