"""
Ways to write a column in fewer bytes, pure: which there are, and which of them pays.

Stacked frames repeat most of their bytes: an observation shares all frames but one with the one before it, and the next
observation is the observation of the next row. So a coding has two parts. *Frames* are kept once each, and a column
becomes the numbers of its frames. *Packing* is a general compressor, over the frames or over the column as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perdure.core.ring import Column

LEADING, TRAILING = "leading", "trailing"
"""Frames are stacked before the two dimensions of a picture, as in ``(4, 84, 84)``, or behind them."""
PACKINGS = ("lz4", "zstd")
MOST_SHARE = 0.5
"""A coding that leaves more than this of a column is not worth a restore that has to decode it."""
LEAST_BYTES_PER_SECOND = 100_000_000
"""Of rows, coded or decoded: slower than that, a buffer of gigabytes is late for its own save."""
SIMILAR = 1.25
"""Of codings that leave as little as the best times this, the fastest is taken."""


@dataclass(frozen=True, slots=True)
class Coding:
    """How a column is written."""

    frames: str = ""
    """`LEADING`, `TRAILING`, or '' if its rows are not taken apart."""
    packing: str = ""
    """One of `PACKINGS`, or ''."""

    @property
    def text(self) -> str:
        """As files have it, such as ``leading+zstd``."""
        return "+".join(part for part in (self.frames, self.packing) if part) or "raw"


RAW = Coding()
CODINGS = {coding.text: coding for coding in (Coding(f, p) for f in ("", LEADING, TRAILING) for p in ("", *PACKINGS))}
"""All codings by their text."""


def picture_bytes(column: Column, frames: str) -> int:
    """
    Bytes of one frame: two dimensions of a transition, or all of it if it has fewer.

    Args:
        column: Of shape ``(n_envs, *shape)``.
        frames: Where they are stacked, `LEADING` or `TRAILING`.
    """
    transition = column.shape[1:]
    picture = transition[-3:-1] if frames == TRAILING else transition[-2:]
    return column.row_bytes // max(1, math.prod(column.shape)) * math.prod(picture)


def codings_for(column: Column, packings: Iterable[str]) -> list[Coding]:
    """
    The codings that can be tried on a column.

    Args:
        column: Of shape ``(n_envs, *shape)``.
        packings: Those of `PACKINGS` that can be used here.
    """
    frames = ["", LEADING, TRAILING] if len(column.shape) > 3 else ["", LEADING]
    return [Coding(split, packing) for split in frames for packing in ("", *packings)]


@dataclass(frozen=True, slots=True)
class Trial:
    """What a coding made of some rows of a column."""

    coding: Coding
    raw_bytes: int
    coded_bytes: int
    encode_seconds: float
    decode_seconds: float

    @property
    def pays(self) -> bool:
        """Whether it saves enough, fast enough."""
        slowest = max(self.encode_seconds, self.decode_seconds)
        return self.coded_bytes <= MOST_SHARE * self.raw_bytes and slowest * LEAST_BYTES_PER_SECOND <= self.raw_bytes


def choose_coding(trials: Sequence[Trial]) -> Coding:
    """Choose the fastest of the codings that save most; raw if none pays."""
    paying = [trial for trial in trials if trial.coding != RAW and trial.pays]
    if not paying:
        return RAW
    least = min(trial.coded_bytes for trial in paying)
    similar = [trial for trial in paying if trial.coded_bytes <= SIMILAR * least]
    return min(similar, key=lambda trial: trial.encode_seconds + trial.decode_seconds).coding
