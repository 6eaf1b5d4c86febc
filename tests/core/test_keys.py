"""Keys: what is signed with a known key is believed, and nothing else is."""

import hashlib
import hmac
import json

import pytest

from perdure.core.keys import Key, Keyring, Trust, key_text, parse_keys, split_signature
from perdure.core.manifest import Cut, Manifest, decode_manifest, encode_manifest
from perdure.core.sealing import seal, unseal
from perdure.errors import CorruptionError, FormatError, InvalidInputError

OLD, NEW, OTHER = (Key(name, name.encode() * 16) for name in ("old", "new", "other"))
DOCUMENT = b'{\n "a": 1\n}\n'
MANIFEST = Manifest(
    run="run",
    id="0" * 32,
    global_step=1,
    generation=1,
    sequence=1,
    cut=Cut(1, "loop"),
    reason="x",
    created_at="2026-01-01T00:00:00Z",
)


def test_a_signature_is_the_hmac_of_the_document_as_published():
    """The signature line holds the key's name and the HMAC-SHA256 of the document without it; it stays JSON."""
    signed = Keyring((OLD,)).sign(DOCUMENT)
    digest = hmac.new(OLD.secret, DOCUMENT, hashlib.sha256).hexdigest()
    assert {"signature": f"hmac-sha256:old:{digest}", "a": 1} == json.loads(signed)
    assert DOCUMENT == split_signature(signed)[1]


@pytest.mark.parametrize(
    ("writer", "reader", "trust"),
    [
        ((), (), Trust.UNCHECKED),
        ((OLD,), (), Trust.UNCHECKED),
        ((), (OLD,), Trust.UNSIGNED),
        ((OLD,), (OLD,), Trust.SIGNED),
        ((OLD,), (NEW, OLD), Trust.SIGNED),
        ((OLD,), (NEW,), Trust.UNKNOWN_KEY),
        ((Key("old", b"x" * 32),), (OLD,), Trust.FORGED),
    ],
)
def test_trust_depends_on_who_signed_and_which_keys_are_known(writer, reader, trust):
    """With keys, only what one of them has signed is trusted; without, nothing is checked."""
    signature, document = split_signature(Keyring(writer).sign(DOCUMENT))
    assert trust is Keyring(reader).judge(signature, document)


def test_a_manifest_changed_and_sealed_anew_is_forged():
    """Who can write files but has no key cannot change a single field."""
    keys = Keyring((OLD,))
    content = encode_manifest(MANIFEST, keys)
    assert MANIFEST == decode_manifest(content, "m", keys)
    forged = seal(unseal(content).replace(b'"global_step": 1', b'"global_step": 2'))
    assert decode_manifest(forged, "m").global_step == 2
    with pytest.raises(CorruptionError) as raised:
        decode_manifest(forged, "m", keys)
    assert "manifest.forged" == raised.value.kind


@pytest.mark.parametrize("writer", [(), (OTHER,)])
def test_a_manifest_that_no_known_key_signed_is_refused_and_not_passed_over(writer):
    """It is an error that says what to do, not damage for which an older checkpoint stands in."""
    with pytest.raises(FormatError) as raised:
        decode_manifest(encode_manifest(MANIFEST, Keyring(writer)), "m", Keyring((OLD,)))
    assert "manifest.unsigned" == raised.value.kind
    assert "perdure migrate" in raised.value.hint


def test_a_key_file_holds_a_key_a_line_the_signing_one_first():
    """Comments and empty lines are left out, and what is written is read back."""
    text = "# keys\n\n" + key_text(NEW) + key_text(OLD)
    assert Keyring((NEW, OLD)) == parse_keys(text, "f")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing",
        "old",
        "old 00",
        "old " + "0g" * 32,
        "o:d " + "00" * 32,
        "old " + "00" * 32 + " more",
        ("old " + "00" * 32 + "\n") * 2,
        "".join(f"k{n} {'00' * 32}\n" for n in range(65)),
    ],
)
def test_a_key_file_that_is_none_is_refused_without_showing_it(text):
    """Too short, malformed, doubled or too many keys are refused; the message shows no secret."""
    with pytest.raises(InvalidInputError) as raised:
        parse_keys(text, "keyfile")
    assert "keys.malformed" == raised.value.kind
    assert "00" * 4 not in str(raised.value)


def test_a_key_does_not_show_its_secret():
    """Logs and tracebacks show a key's name only."""
    assert "old" in repr(OLD)
    assert repr(OLD.secret) not in repr(Keyring((OLD,)))
