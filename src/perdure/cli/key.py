"""``perdure key``."""

from __future__ import annotations

import secrets
import uuid
from argparse import Namespace
from datetime import datetime, timezone
from pathlib import Path

from perdure.cli.exits import Exit
from perdure.cli.text import count_text
from perdure.cli.verb import Context, Verb, argument
from perdure.core.keys import MINIMUM_SECRET_BYTES, Key
from perdure.files.door import Files
from perdure.store.keyfile import KEY_FILE_VARIABLE, add_key


def _execute(arguments: Namespace, context: Context) -> int:
    path = Path(arguments.file)
    name = arguments.id or datetime.now(timezone.utc).strftime("key-%Y%m%d-%H%M%S")
    keyring = add_key(Files(), path, Key(name, secrets.token_bytes(MINIMUM_SECRET_BYTES)), uuid.uuid4().hex)
    names = [key.id for key in keyring.keys]
    output = context.output
    output.document({"file": str(path), "signs": name, "keys": names})
    if output.manner.quiet:
        output.line(name)
        return Exit.OK
    output.line(f"{path}: {name} signs from now on; {count_text(len(names), 'key')} can be told by it")
    output.note(f"{KEY_FILE_VARIABLE}={path} makes perdure use it; keep a copy, without it signed runs are refused")
    return Exit.OK


VERB = Verb(
    description=(
        "Make a key that manifests are signed with, HMAC-SHA256, so that nobody without it can forge or change a "
        "checkpoint unnoticed. In a file that has keys the new one comes first: it signs, and the older ones are "
        "still believed, until their lines are taken out. `perdure migrate` signs what there is with the new one."
    ),
    arguments=(
        argument("file", metavar="FILE", help="the key file; made if it is missing, readable by you alone"),
        argument("--id", metavar="NAME", help="name of the key; by default the date and time"),
    ),
    exits=(Exit.NOT_FOUND,),
    execute=_execute,
    examples=("perdure key perdure.key", "perdure key perdure.key --id 2027"),
)
