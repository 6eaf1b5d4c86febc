"""The wire: what is sent arrives, what is malformed is named, and nothing a stranger sends does harm."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import perdure.cluster
from perdure.cluster import wire
from perdure.cluster.wire import (
    ArraySpec,
    Beat,
    EvaluationResult,
    Malformation,
    Register,
    SampleHeader,
    check_sendable,
    decode_from_learner,
    decode_from_member,
    encode,
    frames_of,
    pack,
    unpack,
)
from perdure.core.restarts import Phase
from perdure.errors import InvalidInputError

LIFE = "0" * 32 + ".1.2.00000000"
SAMPLE = SampleHeader(
    run="run",
    generation=1,
    member="a",
    incarnation=LIFE,
    sequence=1,
    learner_step=0,
    rows=2,
    info={"return": 1.5, "flags": [True, None, "x", 3]},
    arrays=[ArraySpec("x", "float32", (2, 3))],
)
DTYPES = st.sampled_from([np.dtype(name) for name in wire._DTYPES])


@pytest.mark.parametrize(
    "message",
    [
        SAMPLE,
        Register(run="run", member="a", incarnation=LIFE, number=1, role="actor"),
        Beat(run="run", member="a", incarnation=LIFE, number=2**63 - 1, phase=Phase.SAVING, progress=7, held=1),
        EvaluationResult(
            run="r", generation=1, member="e", incarnation=LIFE, sequence=1, learner_step=5, metrics={"return": 2.5}
        ),
    ],
)
def test_a_message_arrives_as_it_was(message) -> None:
    """Every field of a message survives its frame."""
    assert decode_from_member(encode(message)) == message


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=4),
        hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)),
        max_size=3,
    )
)
def test_arrays_arrive_bit_for_bit(arrays) -> None:
    """Any array of an allowed dtype arrives with its shape, dtype and bits, in memory of its own."""
    specs, copies = pack(arrays)
    arrived = unpack(specs, frames_of(copies))
    assert list(arrived) == list(arrays)
    for name, array in arrays.items():
        assert arrived[name].shape == array.shape
        assert arrived[name].dtype == array.dtype.newbyteorder("=")
        assert arrived[name].tobytes() == array.astype(arrived[name].dtype).tobytes()
        assert arrived[name].flags.writeable
        assert arrived[name].flags.owndata
        assert not np.shares_memory(arrived[name], copies[name])


def test_views_and_foreign_byte_orders_travel_by_value() -> None:
    """A transposed, strided or big-endian array arrives as an ordinary one with the same values."""
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    arrays = {"transposed": base.T, "strided": base[::2, ::-3], "big": base.astype(">i4"), "scalar": np.float64(3)}
    specs, copies = pack(arrays)
    arrived = unpack(specs, frames_of(copies))
    for name, array in arrays.items():
        np.testing.assert_array_equal(arrived[name], array)
    assert arrived["big"].dtype == np.dtype(np.int32)


def test_what_is_sent_is_copied() -> None:
    """Changing an array after it was packed changes nothing that is sent."""
    array = np.zeros(3)
    specs, copies = pack({"x": array})
    array += 1
    np.testing.assert_array_equal(unpack(specs, frames_of(copies))["x"], np.zeros(3))


@pytest.mark.parametrize(
    "array", [np.array([object()]), np.array(["text"]), np.zeros(2, "M8[s]"), np.zeros(2, "i4,f4"), [1, 2, 3]]
)
def test_other_arrays_do_not_travel(array) -> None:
    """What is not a plain array of numbers is refused by name, before anything is sent."""
    with pytest.raises(InvalidInputError) as caught:
        pack({"bad": array})
    assert (caught.value.kind, caught.value.field) == ("array.invalid", "bad")


@pytest.mark.parametrize(
    "info",
    [
        {"x": 2**70},
        {"x": object()},
        {"x": np.float32(1)},
        {1: 2.0},
        {"": 1},
        {"x": {"nested": 1}},
        {"x": b"bytes"},
        {"x": "y" * 2_000_000},
    ],
)
def test_values_that_cannot_travel_are_refused(info) -> None:
    """A value that would not be understood at the other end is refused at this one."""
    with pytest.raises(InvalidInputError) as caught:
        check_sendable(lambda stamp: msgspec.structs.replace(SAMPLE, incarnation=stamp.incarnation, info=info))
    assert caught.value.kind == "message.invalid"


def _tampered(**changes):
    fields = msgspec.msgpack.decode(encode(SAMPLE))
    fields.update(changes)
    return msgspec.msgpack.encode(fields)


@pytest.mark.parametrize(
    ("header", "malformation"),
    [
        pytest.param(b"", Malformation.HEADER, id="empty"),
        pytest.param(b"\xc1" * 50, Malformation.HEADER, id="no-msgpack"),
        pytest.param(encode(SAMPLE)[:-1], Malformation.HEADER, id="truncated"),
        pytest.param(encode(SAMPLE) + b"x", Malformation.HEADER, id="longer"),
        pytest.param(b"\x91" * 300_000, Malformation.HEADER, id="nested"),
        pytest.param(b"\x82\xa4type\xa6sample\xa1z" + b"\x91" * 300_000, Malformation.HEADER, id="nested-unknown"),
        pytest.param(bytes(wire.MAXIMUM_HEADER_BYTES + 1), Malformation.HEADER, id="too-large"),
        pytest.param(_tampered(type="launch"), Malformation.HEADER, id="unknown-type"),
        pytest.param(_tampered(protocol=2), Malformation.HEADER, id="other-protocol"),
        pytest.param(_tampered(more=1), Malformation.HEADER, id="unknown-field"),
        pytest.param(_tampered(generation=-1), Malformation.HEADER, id="negative"),
        pytest.param(_tampered(sequence=2**64 - 1), Malformation.HEADER, id="beyond-64-bits"),
        pytest.param(_tampered(rows="2"), Malformation.HEADER, id="wrong-kind"),
        pytest.param(_tampered(member=""), Malformation.HEADER, id="no-name"),
        pytest.param(_tampered(info={"a": {"b": 1}}), Malformation.HEADER, id="nested-info"),
        pytest.param(_tampered(incarnation="../../x"), Malformation.IDENTITY, id="no-incarnation"),
    ],
)
def test_a_malformed_header_is_named(header: bytes, malformation: Malformation) -> None:
    """Whatever the bytes are, the answer is a reason and never an exception."""
    assert decode_from_member(header) is malformation


def test_a_member_does_not_take_members_messages() -> None:
    """Messages of the one direction are unknown in the other."""
    assert decode_from_learner(encode(SAMPLE)) is Malformation.HEADER


@pytest.mark.parametrize(
    ("specs", "frames"),
    [
        pytest.param([("x", "float32", (2,))], [], id="frame-missing"),
        pytest.param([], [b"1234"], id="frame-undeclared"),
        pytest.param([("x", "float32", (2,))], [b"1234"], id="frame-short"),
        pytest.param([("x", "float32", (2,))], [bytes(9)], id="frame-long"),
        pytest.param([("x", "object", (1,))], [bytes(8)], id="dtype-object"),
        pytest.param([("x", "U9999999", (1,))], [bytes(4)], id="dtype-text"),
        pytest.param([("x", "float32", (1,))] * 2, [bytes(4)] * 2, id="name-twice"),
        pytest.param([("x", "float32", (2**40, 2**40))], [bytes(4)], id="size-beyond-caps"),
        pytest.param([("x", "float32", (0, 2**62, 2**62))], [b""], id="empty-beyond-measure"),
        pytest.param([("x", "uint8", (wire.MAXIMUM_PAYLOAD_BYTES + 1,))], [b""], id="payload-beyond-cap"),
    ],
)
def test_arrays_that_are_not_as_declared_are_refused_before_anything_is_allocated(specs, frames) -> None:
    """Count, names, dtypes and sizes are compared with the frames and the caps first."""
    assert unpack([ArraySpec(*spec) for spec in specs], frames) is Malformation.ARRAYS


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=20).map(lambda noise: encode(SAMPLE)[:60] + noise)))
def test_no_bytes_raise(header: bytes) -> None:
    """Decoding arbitrary bytes returns a message or a reason."""
    for decode in (decode_from_member, decode_from_learner):
        assert isinstance(decode(header), msgspec.Struct | Malformation)


def test_nothing_on_the_way_can_run_code_from_data() -> None:
    """No module of the cluster imports or calls anything that turns bytes into code."""
    forbidden = {"pickle", "marshal", "dill", "cloudpickle", "eval", "exec", "recv_pyobj", "send_pyobj", "shelve"}
    for path in Path(perdure.cluster.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = {getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "module", "")}
            names |= {alias.name for alias in getattr(node, "names", []) if isinstance(alias, ast.alias)}
            assert not names & forbidden, path
