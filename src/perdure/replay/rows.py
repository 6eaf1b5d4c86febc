"""Rows as people give them: checked against the columns, all of them, before any is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.core.ring import Column, check_column
from perdure.errors import InvalidInputError
from perdure.replay.mapping import MappedMemory


def column_of(name: str, array: NDArray[Any]) -> Column:
    """
    Describe an array whose first dimension counts rows.

    Raises:
        InvalidInputError: Its type cannot be stored, or it has foreign byte order.
    """
    return check_column(Column(name, _type_name(array.dtype), array.shape[1:]))


def _type_name(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.isnative else f"{dtype.name} in foreign byte order"


def empty_columns(rows: int, n_envs: int, columns: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """
    Allocate zeroed arrays ``(rows, n_envs, *shape)``; the system gives memory when it is first written.

    A ring may be larger than the machine's memory: restored rows that nobody changed need none of their own.

    Args:
        rows: Of the ring.
        n_envs: Transitions in a row.
        columns: Type and shape by name, or an example.
    """
    if not columns:
        raise InvalidInputError(
            "cannot make a replay buffer without columns", kind="replay.no-columns", field="columns"
        )
    arrays = {}
    for name, given in columns.items():
        dtype, shape = _type_and_shape(given)
        column = check_column(Column(name, _type_name(dtype), (n_envs, *shape)))
        arrays[name] = MappedMemory(rows * column.row_bytes).array(dtype, (rows, *column.shape))
    return arrays


def _type_and_shape(given: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    match given:
        case (dtype, (*shape,)) if not isinstance(given, np.ndarray) and not isinstance(dtype, (int, float)):
            return np.dtype(dtype), tuple(int(length) for length in shape)
        case _:
            example = np.asarray(given)
            return example.dtype, example.shape


def fit_rows(
    columns: Mapping[str, NDArray[Any]], given: Mapping[str, Any], count: int | None
) -> dict[str, NDArray[Any]]:
    """
    Bring given values to the shapes and types of the columns, ``(count, n_envs, *shape)``.

    Args:
        columns: The ring's arrays.
        given: By name.
        count: How many rows; None for one row without a dimension of its own.

    Raises:
        InvalidInputError: Kind ``replay.row-differs``.
    """
    if given.keys() != columns.keys():
        missing, unknown = sorted(columns.keys() - given.keys()), sorted(given.keys() - columns.keys())
        raise _differs(f"missing {missing}, unknown {unknown}", (*missing, *unknown)[0])
    return {name: _fit(name, array, given[name], count) for name, array in columns.items()}


def _fit(name: str, array: NDArray[Any], given: Any, count: int | None) -> NDArray[Any]:
    lead = () if count is None else (count,)
    allowed = [(*lead, *array.shape[1:])]
    if array.shape[1] == 1:
        allowed.append((*lead, *array.shape[2:]))
    try:
        # Python's own numbers take the column's type; arrays have one, which must go into it.
        values = np.asarray(given) if hasattr(given, "dtype") else np.asarray(given, array.dtype)
        is_fitting = np.can_cast(values.dtype, array.dtype, "same_kind")
    except (TypeError, ValueError, OverflowError) as error:
        raise _differs(f"{name!r} cannot be made {array.dtype}: {error}", name) from error
    if not is_fitting:
        raise _differs(f"{name!r} is {values.dtype} and its column {array.dtype}", name)
    if values.shape not in allowed:
        raise _differs(f"{name!r} has shape {values.shape} and must have {' or '.join(map(str, allowed))}", name)
    return values.reshape(1 if count is None else count, *array.shape[1:])


def _differs(what: str, name: str) -> InvalidInputError:
    return InvalidInputError(
        f"cannot add to the replay buffer: {what}",
        kind="replay.row-differs",
        hint="give every column, with the type and shape that the buffer was made with",
        field=name,
    )
