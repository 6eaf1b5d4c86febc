"""Values in a form that is equal only for the same types and bits."""

from collections import deque

import numpy as np


def canonical(value):
    """A nested value with the types of all its parts; every not-a-number is one and the same."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return "objects", value.shape, [canonical(item) for item in value.ravel()]
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, float):
        return float, repr(value)
    if isinstance(value, dict):
        return dict, [(canonical(key), canonical(item)) for key, item in value.items()]
    if isinstance(value, list | tuple | deque):
        return type(value), getattr(value, "maxlen", None), [canonical(item) for item in value]
    return type(value), value
