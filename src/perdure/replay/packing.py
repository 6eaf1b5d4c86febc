"""General compressors, each used if it is installed: LZ4 (https://lz4.org) and Zstandard (RFC 8878)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from perdure.errors import MissingDependencyError

Bytes = NDArray[np.uint8]

_ZSTD_LEVEL = 3
"""On frames as fast as level 1, and smaller."""


@dataclass(frozen=True, slots=True)
class _Packer:
    """One compressor."""

    pack: Callable[[memoryview], bytes]
    unpack: Callable[[memoryview], bytes]
    stated_bytes: Callable[[memoryview], int]
    """The length that packed bytes say they have unpacked; what is in memory follows this, so it is looked at first."""
    failure: type[Exception]
    """Raised for what is no packing."""


def _lz4() -> _Packer:
    from lz4 import block

    return _Packer(
        pack=lambda content: block.compress(content, store_size=True),
        unpack=block.decompress,
        stated_bytes=lambda packed: int.from_bytes(packed[:4], "little"),
        failure=block.LZ4BlockError,
    )


def _zstd() -> _Packer:
    import zstandard

    return _Packer(
        pack=lambda content: zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(content),
        unpack=lambda packed: zstandard.ZstdDecompressor().decompress(packed),
        stated_bytes=zstandard.frame_content_size,
        failure=zstandard.ZstdError,
    )


_PACKERS = {"lz4": ("lz4", _lz4), "zstd": ("zstandard", _zstd)}
"""By packing: the package, and what makes the packer of it."""


def installed_packings() -> tuple[str, ...]:
    """The packings that can be used here."""
    return tuple(packing for packing, (package, _) in _PACKERS.items() if find_spec(package))


def pack(packing: str, content: Bytes) -> Bytes:
    """
    Compress bytes.

    Args:
        packing: One of `perdure.core.coding.PACKINGS`, or '' to have the bytes back as they are.
        content: Contiguous, shorter than 2 GiB.

    Raises:
        MissingDependencyError: The compressor is not installed.
    """
    return np.frombuffer(_packer(packing).pack(content.data), np.uint8) if packing else content


def unpack(packing: str, packed: Bytes, size_bytes: int) -> Bytes:
    """
    Undo `pack`.

    Args:
        packing: As it was given to `pack`.
        packed: What `pack` has given, contiguous.
        size_bytes: The length that must come out; no more memory is taken.

    Raises:
        ValueError: The bytes are no packing of so many.
        MissingDependencyError: The compressor is not installed.
    """
    content = packed
    if packing:
        packer = _packer(packing)
        try:
            if packer.stated_bytes(packed.data) == size_bytes:
                content = np.frombuffer(packer.unpack(packed.data), np.uint8)
        except packer.failure as error:
            raise ValueError(f"it is no {packing}: {error}") from error
    if len(content) != size_bytes:
        raise ValueError(f"{size_bytes:,} bytes should come out of {len(packed):,}, packed with {packing or 'nothing'}")
    return content


def _packer(packing: str) -> _Packer:
    package, make = _PACKERS[packing]
    try:
        return make()
    except ImportError as error:
        raise MissingDependencyError(
            f"cannot read or write replay segments packed with {packing}: {package} is not installed",
            kind="dependency.missing",
            hint="pip install 'perdure[codec]'",
            package=package,
            extra="codec",
        ) from error
