"""
Sealed JSON: the first line of an object carries a digest of all that follows.

A sealed document is believed whole or not at all: a damaged bit is noticed before its content is looked at, whatever
version wrote it. It stays an ordinary JSON object with one key more. A seal finds accidents; who can write the file can
write the seal.
"""

from __future__ import annotations

import re

from blake3 import blake3

_SEALED = re.compile(rb'\{\n "seal": "(blake3:[0-9a-f]{64})",(?=\n)')


def seal(document: bytes) -> bytes:
    """Seal a JSON object that is not empty and indented by one space, its first line being a brace."""
    assert document.startswith(b"{\n"), "a seal goes between the brace and the first key"
    return b'{\n "seal": "' + _digest(document) + b'",' + document[1:]


def unseal(content: bytes) -> bytes | None:
    """Return the document that was sealed, byte for byte, or None if this is not it."""
    opening = _SEALED.match(content)
    if opening is None:
        return None
    document = b"{" + content[opening.end() :]
    return document if opening[1] == _digest(document) else None


def _digest(document: bytes) -> bytes:
    return f"blake3:{blake3(document).hexdigest()}".encode()
