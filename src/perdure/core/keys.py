"""
Keys: whoever holds one can tell checkpoints that were written with it from those that somebody forged.

A seal finds accidents, but who can write the files can seal what he wrote. A signature, HMAC-SHA256 (RFC 2104) over the
manifest, can only be made with the key; and because the manifest holds the digest of every file, it vouches for them
too. Several keys may be known at once, so that one can take over from another: the first one signs, all of them vouch.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from perdure.errors import InvalidInputError

MINIMUM_SECRET_BYTES = 32
"""As long as the digest: a shorter key is the weakest part (RFC 2104, section 3)."""
MAXIMUM_KEYS = 64

_ALGORITHM = "hmac-sha256"
_ID = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_HEX = re.compile(r"(?:[0-9a-f]{2})+")
_LINE = re.compile(rb'\{\n "signature": "hmac-sha256:([A-Za-z0-9_.\-]{1,64}):([0-9a-f]{64})",(?=\n)')


@dataclass(frozen=True, slots=True)
class Key:
    """A secret and the name by which signatures refer to it."""

    id: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Signature:
    """What a document says about who wrote it."""

    key_id: str
    digest: str


class Trust(Enum):
    """How far a document can be trusted."""

    UNCHECKED = "no key is set to tell by"
    SIGNED = "it is signed with a key that is set"
    UNSIGNED = "it is not signed, and a key is set"
    UNKNOWN_KEY = "it is signed with a key that is not set"
    FORGED = "its signature is not that of the key it names"


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys that are known, the one that signs first. An empty one neither signs nor asks for signatures."""

    keys: tuple[Key, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.keys)

    def sign(self, document: bytes) -> bytes:
        """Put a signature before the first key of a JSON object, whose first line is a brace; as it is without keys."""
        assert document.startswith(b"{\n"), "a signature goes between the brace and the first key"
        if not self.keys:
            return document
        key = self.keys[0]
        return f'{{\n "signature": "{_ALGORITHM}:{key.id}:{_digest(key, document)}",'.encode() + document[1:]

    def knows(self, signature: Signature | None) -> bool:
        """Whether a signature names one of the keys; it may still be forged."""
        return signature is not None and any(key.id == signature.key_id for key in self.keys)

    def judge(self, signature: Signature | None, document: bytes) -> Trust:
        """Say how far a document can be trusted; ``document`` is what `split_signature` left of it."""
        if not self.keys:
            return Trust.UNCHECKED
        if signature is None:
            return Trust.UNSIGNED
        key = next((key for key in self.keys if key.id == signature.key_id), None)
        if key is None:
            return Trust.UNKNOWN_KEY
        return Trust.SIGNED if hmac.compare_digest(_digest(key, document), signature.digest) else Trust.FORGED


def split_signature(document: bytes) -> tuple[Signature | None, bytes]:
    """Take a document's signature off; the rest is, byte for byte, what was signed."""
    opening = _LINE.match(document)
    if opening is None:
        return None, document
    return Signature(opening[1].decode(), opening[2].decode()), b"{" + document[opening.end() :]


def _digest(key: Key, document: bytes) -> str:
    return hmac.new(key.secret, document, hashlib.sha256).hexdigest()


def parse_keys(text: str, source: str) -> Keyring:
    """
    Read keys from text: a line each, ``ID HEX``; empty lines and those that begin with ``#`` are left out.

    Args:
        text: What a key file holds.
        source: Named in errors, which never show a secret.

    Raises:
        InvalidInputError: Kind ``keys.malformed``.
    """
    keys = tuple(_parse(text, source))
    if not keys:
        raise _malformed(source, "it holds no key")
    if len(keys) > MAXIMUM_KEYS:
        raise _malformed(source, f"it holds more than {MAXIMUM_KEYS} keys")
    if len({key.id for key in keys}) != len(keys):
        raise _malformed(source, "two keys have the same name")
    return Keyring(keys)


def key_text(key: Key) -> str:
    """The line of a key file that holds a key."""
    return f"{key.id} {key.secret.hex()}\n"


def _parse(text: str, source: str) -> Iterator[Key]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not _ID.fullmatch(words[0]) or not _HEX.fullmatch(words[1]):
            raise _malformed(source, f"line {number} is not a name and hexadecimal digits")
        secret = bytes.fromhex(words[1])
        if len(secret) < MINIMUM_SECRET_BYTES:
            raise _malformed(source, f"the key of line {number} has less than {MINIMUM_SECRET_BYTES} bytes")
        yield Key(words[0], secret)


def _malformed(source: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"cannot use the keys of {source}: {why}",
        kind="keys.malformed",
        hint="a line holds a name and at least 64 hexadecimal digits; `perdure key FILE` makes one",
        field=source,
    )
