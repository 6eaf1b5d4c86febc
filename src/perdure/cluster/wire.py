"""
What travels between a learner and its members: typed, bounded messages, and arrays as raw frames behind them.

A message is a list of frames. The first is a header in msgpack whose type fixes every field; each further one is the
memory of an array, little-endian and in C order, whose name, dtype and shape the header declares. Nothing is created
for an array before its declared size was checked against the caps and against its frame. Nothing is unpickled, ever:
a stranger's bytes can at worst be counted as malformed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from perdure.core.fencing import Announcement, Stamp
from perdure.core.leases import Incarnation, Verdict
from perdure.core.names import MAXIMUM_NAME_BYTES
from perdure.core.restarts import Phase
from perdure.errors import InvalidInputError

MAXIMUM_HEADER_BYTES = 1024 * 1024
MAXIMUM_ARRAYS = 16 * 1024
MAXIMUM_PAYLOAD_BYTES = 4 * 1024**3
MAXIMUM_DIMENSIONS = 32

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Buffer: TypeAlias = bytes | bytearray | memoryview

_Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAXIMUM_NAME_BYTES)]
_Text: TypeAlias = Annotated[str, Meta(max_length=4096)]
_Scalar: TypeAlias = int | float | bool | _Text | None
_List: TypeAlias = Annotated[list[_Scalar], Meta(max_length=4096)]
Info: TypeAlias = Annotated[dict[_Name, _Scalar | _List], Meta(max_length=256)]
"""Small values that travel with arrays: a flat mapping, so that nothing nests without end."""

_DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}


class Malformation(str, Enum):
    """Why a message was not one; the codes are stable and only ever added to."""

    HEADER = "header"
    """The header is missing, too large or of no known type."""
    IDENTITY = "identity"
    """The incarnation is not of the form of one."""
    MISPLACED = "misplaced"
    """A message that does not belong here: of another run, or sent to the wrong socket."""
    ARRAYS = "arrays"
    """Arrays that are too many, named twice, of an unknown dtype, too large or not as long as declared."""


class ArraySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Declares one array frame."""

    name: _Name
    dtype: _Name
    shape: Annotated[tuple[_Count, ...], Meta(max_length=MAXIMUM_DIMENSIONS)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    """Common to all messages."""

    run: _Name
    protocol: Literal[1] = 1


class FromMember(Message, frozen=True, kw_only=True):
    """Common to all messages of a member about itself."""

    member: _Name
    incarnation: _Name
    number: _Count = 0
    """Which of this incarnation's messages it is; the answer repeats it."""

    @property
    def life(self) -> Incarnation:
        """The sender's incarnation; valid in every message that `decode` returned."""
        life = Incarnation.parse(self.incarnation)
        assert life is not None
        return life


class Register(FromMember, frozen=True, kw_only=True, tag="register"):
    """Asks for a lease."""

    role: Literal["actor", "evaluator"]


class Beat(FromMember, frozen=True, kw_only=True, tag="beat"):
    """Renews a lease."""

    phase: Phase
    progress: _Count
    held: _Count = 0
    """Items that the member holds back at the moment."""
    overflowed: _Count = 0
    """Items that it dropped because it held too many."""
    undone: _Count = 0
    """Items that it dropped because the learner rolled back behind the policy that made them."""


class Leave(FromMember, frozen=True, kw_only=True, tag="leave"):
    """Gives a lease back."""


class Want(FromMember, frozen=True, kw_only=True, tag="want"):
    """Asks for weights newer than those named, as soon as there are any."""

    lineage: _Count
    version: _Count


class Stamped(Message, frozen=True, kw_only=True):
    """Common to all messages that the gate judges."""

    generation: _Count
    member: _Name
    incarnation: _Name
    sequence: _Count
    learner_step: _Count

    @property
    def stamp(self) -> Stamp:
        """The stamp as the gate reads it."""
        return Stamp(self.run, self.generation, self.member, self.incarnation, self.sequence, self.learner_step)


class SampleHeader(Stamped, frozen=True, kw_only=True, tag="sample"):
    """Announces the arrays of a sample."""

    rows: _Count
    info: Info
    arrays: Annotated[list[ArraySpec], Meta(max_length=MAXIMUM_ARRAYS)]


class EvaluationResult(Stamped, frozen=True, kw_only=True, tag="evaluation"):
    """Reports how good a policy is."""

    metrics: Annotated[dict[_Name, float], Meta(max_length=1024)]


class Answer(Message, frozen=True, kw_only=True, tag="answer"):
    """Tells a member where it stands, as an answer or unasked."""

    incarnation: _Name
    """Whom it concerns; an older life behind the same socket must not take it for its own."""
    number: _Count
    """Message that it answers; 0 if none."""
    verdict: Verdict
    announcement: Announcement
    is_stopping: bool = False
    """Whether the learner asks its members to stop."""


class WeightsHeader(Message, frozen=True, kw_only=True, tag="weights"):
    """Announces the arrays of a weight version."""

    announcement: Announcement
    version: _Count
    learner_step: _Count
    arrays: Annotated[list[ArraySpec], Meta(max_length=MAXIMUM_ARRAYS)]


MemberMessage: TypeAlias = Register | Beat | Leave | Want | SampleHeader | EvaluationResult
LearnerMessage: TypeAlias = Answer | WeightsHeader

_LONGEST_STAMP = Stamp(
    run="x" * MAXIMUM_NAME_BYTES,
    generation=2**63 - 1,
    member="x" * MAXIMUM_NAME_BYTES,
    incarnation=str(Incarnation("f" * 32, 2**31 - 1, 2**62, "f" * 8)),
    sequence=2**63 - 1,
    learner_step=2**63 - 1,
)

_encoder = msgspec.msgpack.Encoder()
_from_member = msgspec.msgpack.Decoder(MemberMessage)
_from_learner = msgspec.msgpack.Decoder(LearnerMessage)


def encode(message: Message) -> bytes:
    """
    Return a message's header frame.

    Raises:
        InvalidInputError: Kind ``message.invalid``: a value cannot travel.
    """
    try:
        header = _encoder.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInputError(f"cannot send a {type(message).__name__}: {error}", kind="message.invalid") from error
    if len(header) > MAXIMUM_HEADER_BYTES:
        raise InvalidInputError(
            f"cannot send a {type(message).__name__}: its header takes {len(header)} bytes and at most "
            f"{MAXIMUM_HEADER_BYTES} are read",
            kind="message.invalid",
            hint="send large values as arrays",
        )
    return header


def check_sendable(compose: Callable[[Stamp], Stamped]) -> None:
    """
    Check, where the mistake was made, that a message will be understood whatever its stamp will be.

    Raises:
        InvalidInputError: Kind ``message.invalid``.
    """
    message = compose(_LONGEST_STAMP)
    if isinstance(decode_from_member(encode(message)), Malformation):
        raise InvalidInputError(
            f"cannot send a {type(message).__name__}: a name or value in it is of a kind that does not travel",
            kind="message.invalid",
            hint="use short names, and plain numbers, texts, booleans, None or lists of them as values",
        )


def decode_from_member(header: Buffer) -> MemberMessage | Malformation:
    """Return the message of a member that a header frame holds, or why it holds none."""
    message = _decode(_from_member, header)
    if isinstance(message, FromMember | Stamped) and Incarnation.parse(message.incarnation) is None:
        return Malformation.IDENTITY
    return message  # type: ignore[no-any-return]


def decode_from_learner(header: Buffer) -> LearnerMessage | Malformation:
    """Return the message of a learner that a header frame holds, or why it holds none."""
    return _decode(_from_learner, header)  # type: ignore[no-any-return]


def _decode(decoder: msgspec.msgpack.Decoder[Any], header: Buffer) -> Any:
    if len(header) > MAXIMUM_HEADER_BYTES:
        return Malformation.HEADER
    try:
        return decoder.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Malformation.HEADER


def pack(arrays: Arrays) -> tuple[list[ArraySpec], dict[str, NDArray[Any]]]:
    """
    Copy arrays into the form in which they travel.

    Returns:
        Their declarations, and the copies in the same order; the caller owns them.

    Raises:
        InvalidInputError: Kind ``array.invalid``: an array cannot travel; ``field`` names it.
    """
    specs = []
    copies = {}
    for name, array in arrays.items():
        dtype = _DTYPES.get(array.dtype.name) if isinstance(array, np.ndarray | np.generic) else None
        if dtype is None or not 1 <= len(name) <= MAXIMUM_NAME_BYTES:
            kind = getattr(array, "dtype", type(array).__name__)
            raise _unsendable(name, f"arrays of {kind} do not travel; those of {', '.join(_DTYPES)} do")
        specs.append(ArraySpec(name, array.dtype.name, array.shape))
        copies[name] = np.array(array, dtype=dtype, order="C", copy=True)
    total_bytes = sum(copy.nbytes for copy in copies.values())
    if len(specs) > MAXIMUM_ARRAYS or total_bytes > MAXIMUM_PAYLOAD_BYTES:
        raise _unsendable("arrays", f"{len(specs)} arrays of {total_bytes} bytes are more than one message takes")
    return specs, copies


def _unsendable(name: str, why: str) -> InvalidInputError:
    return InvalidInputError(f"cannot send {name!r}: {why}", kind="array.invalid", field=name)


def frames_of(arrays: Mapping[str, NDArray[Any]]) -> list[memoryview]:
    """Return the frames of packed arrays; they borrow the arrays' memory."""
    return [array.reshape(-1).view(np.uint8).data for array in arrays.values()]


def unpack(specs: Sequence[ArraySpec], frames: Sequence[Buffer]) -> dict[str, NDArray[Any]] | Malformation:
    """
    Return the arrays that frames hold, if they hold exactly what was declared.

    Returns:
        Arrays of their own: writable, aligned, in native byte order, owned by the caller.
    """
    if not _are_as_declared(specs, frames):
        return Malformation.ARRAYS
    arrays = {}
    for spec, frame in zip(specs, frames, strict=True):
        array = np.empty(spec.shape, _DTYPES[spec.dtype])
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(frame, np.uint8)
        arrays[spec.name] = array.astype(np.dtype(spec.dtype), copy=False)
    return arrays


def _are_as_declared(specs: Sequence[ArraySpec], frames: Sequence[Buffer]) -> bool:
    is_known = all(spec.dtype in _DTYPES for spec in specs)
    if not is_known or len(frames) != len(specs) or len({spec.name for spec in specs}) != len(specs):
        return False
    # Zeros count as ones here: NumPy refuses to make an empty array whose other dimensions are beyond all measure.
    extents = [math.prod(max(length, 1) for length in spec.shape) for spec in specs]
    sizes = [math.prod(spec.shape) * _DTYPES[spec.dtype].itemsize for spec in specs]
    return sum(extents) <= MAXIMUM_PAYLOAD_BYTES >= sum(sizes) and sizes == [len(frame) for frame in frames]
