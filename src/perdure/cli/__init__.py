"""
The command line, one file a verb.

`main` is all that a caller needs. A verb is imported when it is asked for, so that `perdure version` stays as light as
it looks.
"""

from perdure.cli.program import main

__all__ = ["main"]
