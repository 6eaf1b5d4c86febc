"""Trials: which coding pays for a column is measured on some of its rows, not guessed from its type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from perdure.core.coding import Coding, Trial, choose_coding, codings_for
from perdure.core.ring import Column
from perdure.files.reading import allocate
from perdure.replay.coding import CodedFile, Columns, encode_rows
from perdure.replay.packing import pack

SAMPLE_BYTES = 2 * 1024 * 1024
"""Of each column: a few hundred frames, and some tens of milliseconds for all codings together."""
LEAST_ROWS = 4
"""Of fewer rows nothing can be told about how much they repeat."""


def choose_codings(
    columns: Sequence[Column], arrays: Columns, packings: Sequence[str], clock_seconds: Callable[[], float]
) -> dict[str, Coding]:
    """
    Try every coding on the first rows of every column, and choose.

    Columns of one type and shape are tried together: a next observation costs little where the observations are.

    Args:
        columns: Which.
        arrays: Their rows, ``(rows, *shape)``.
        packings: What can be used here.
        clock_seconds: Seconds of work of this thread.
    """
    for packing in packings:
        pack(packing, np.empty(0, np.uint8))  # what is imported at the first use is no part of a trial
    families: dict[tuple[str, tuple[int, ...]], list[Column]] = {}
    for column in columns:
        families.setdefault((column.dtype, column.shape), []).append(column)
    chosen = {}
    for family in families.values():
        count = max(LEAST_ROWS, SAMPLE_BYTES // family[0].row_bytes)
        sample = {column.name: arrays[column.name][:count] for column in family}
        trials = [_try(family, sample, coding, clock_seconds) for coding in codings_for(family[0], packings)]
        chosen.update(dict.fromkeys(sample, choose_coding(trials)))
    return chosen


def _try(family: Sequence[Column], rows: Columns, coding: Coding, clock_seconds: Callable[[], float]) -> Trial:
    """Encode and decode rows by one coding, as a save and a restore would."""
    count = len(rows[family[0].name])
    began = clock_seconds()
    coded = encode_rows(family, rows, dict.fromkeys(rows, coding))
    image = allocate(coded.total_bytes)
    coded.write_into(image)
    encoded = clock_seconds()
    file = CodedFile(image, count, "a trial")
    for column in family:
        file.read(column, (0, count), np.empty_like(rows[column.name]))
    return Trial(
        coding=coding,
        raw_bytes=sum(array.nbytes for array in rows.values()),
        coded_bytes=coded.total_bytes,
        encode_seconds=encoded - began,
        decode_seconds=clock_seconds() - encoded,
    )
