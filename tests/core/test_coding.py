"""Which coding is chosen for a column, as tables."""

import pytest

from perdure.core.coding import CODINGS, RAW, Coding, Trial, choose_coding, codings_for, picture_bytes
from perdure.core.ring import Column

MB = 1_000_000
ZSTD, LZ4, FRAMES, BOTH = Coding("", "zstd"), Coding("", "lz4"), Coding("leading"), Coding("leading", "zstd")


def trial(coding, coded_mb, encode=0.01, decode=0.01):
    """A trial on ten megabytes."""
    return Trial(coding, 10 * MB, int(coded_mb * MB), encode, decode)


@pytest.mark.parametrize(
    ("trials", "chosen"),
    [
        ([], RAW),
        ([trial(RAW, 10)], RAW),
        ([trial(RAW, 10), trial(ZSTD, 9)], RAW),
        ([trial(RAW, 10), trial(ZSTD, 5)], ZSTD),
        ([trial(ZSTD, 1), trial(BOTH, 0.1), trial(FRAMES, 1.3)], BOTH),
        ([trial(ZSTD, 0.10, encode=0.03), trial(LZ4, 0.12)], LZ4),
        ([trial(ZSTD, 0.10, encode=0.03), trial(LZ4, 0.13)], ZSTD),
        ([trial(ZSTD, 0.1, encode=0.11), trial(LZ4, 1)], LZ4),
        ([trial(ZSTD, 0.1, decode=0.11)], RAW),
    ],
)
def test_the_fastest_of_those_that_save_most_is_chosen(trials, chosen):
    """What saves less than half or is slow is left out; of the rest the smallest wins, or a faster one as good."""
    assert choose_coding(trials) == chosen


def test_codings_have_texts_of_their_own():
    """Every coding is found again by its text, and no two share one."""
    assert len(CODINGS) == 9
    assert all(coding.text == text for text, coding in CODINGS.items())
    assert CODINGS["raw"] == RAW


@pytest.mark.parametrize(
    ("shape", "dtype", "sizes"),
    [
        ((1, 4, 84, 84), "uint8", {"leading": 84 * 84, "trailing": 4 * 84}),
        ((8, 84, 84, 4), "uint8", {"leading": 84 * 4, "trailing": 84 * 84}),
        ((2, 4, 3, 84, 84), "uint8", {"leading": 84 * 84, "trailing": 3 * 84}),
        ((2, 84, 84), "uint16", {"leading": 84 * 84 * 2}),
        ((3, 17), "float32", {"leading": 17 * 4}),
        ((300,), "float64", {"leading": 8}),
    ],
)
def test_stacks_are_looked_for_on_both_sides_of_a_picture(shape, dtype, sizes):
    """A frame is two dimensions of a transition, the last ones or those before the last; or else the transition."""
    column = Column("obs", dtype, shape)
    assert {frames: picture_bytes(column, frames) for frames in sizes} == sizes
    found = codings_for(column, ("zstd",))
    assert {coding.frames for coding in found} == {"", *sizes}
    assert len(found) == len(set(found)) == 2 * (1 + len(sizes))
