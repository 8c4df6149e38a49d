"""What is done to images as arrays: images x height x width [x channels]."""

from __future__ import annotations

import numpy as np

from artesian.errors import MissingExtra


def shape_of(x: np.ndarray) -> tuple[int, int, int]:
    """Of one image: channels, height, width."""
    height, width, *channels = x.shape[1:]
    return int(channels[0]) if channels else 1, int(height), int(width)


def flattened(x: np.ndarray) -> np.ndarray:
    """Images as rows of numbers, channels first."""
    return (np.moveaxis(x, 3, 1) if x.ndim == 4 else x).reshape(len(x), -1)


def resized(x: np.ndarray, side: int) -> np.ndarray:
    """Images of side x side, bilinear between pixel centres; bytes are rounded to bytes again."""
    if x.shape[1:3] == (side, side):
        return x
    result = np.empty((len(x), side, side, *x.shape[3:]), x.dtype)
    down, over = (_between(size, side) for size in x.shape[1:3])
    for part in range(0, len(x), 5000):  # in pieces, so that the floats between take little room
        piece = _blend(_blend(x[part : part + 5000].astype(np.float32), 1, *down), 2, *over)
        result[part : part + 5000] = np.rint(piece) if x.dtype == np.uint8 else piece
    return result


def _between(size: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """For each new pixel the old one before it, and how far it is from there to the next."""
    centre = np.clip((np.arange(side) + 0.5) * size / side - 0.5, 0, size - 1)
    before = np.minimum(np.floor(centre).astype(int), max(size - 2, 0))
    return before, (centre - before).astype(np.float32)


def _blend(x: np.ndarray, axis: int, before: np.ndarray, far: np.ndarray) -> np.ndarray:
    after = np.minimum(before + 1, x.shape[axis] - 1)
    weight = far.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    blended: np.ndarray = x.take(before, axis) * (1 - weight) + x.take(after, axis) * weight
    return blended


def with_channels(x: np.ndarray, channels: int) -> np.ndarray:
    """Images in 1 or 3 channels: grey is repeated, colours become their mean."""
    has = x.shape[3] if x.ndim == 4 else 1
    if has == channels:
        return x
    if channels == 3:
        return np.repeat(x.reshape(*x.shape[:3], 1), 3, axis=3)
    return np.rint(x.mean(axis=3)).astype(x.dtype) if x.dtype == np.uint8 else x.mean(axis=3, dtype=np.float32)


def rotate(images: np.ndarray, degrees: float) -> np.ndarray:
    """Images turned counter-clockwise: exactly for multiples of 90, bilinearly otherwise, filled with 0.

    Bytes are rounded to bytes again.
    """
    if degrees % 90 == 0:
        return np.ascontiguousarray(np.rot90(images, int(degrees // 90), axes=(1, 2)))
    try:
        from scipy import ndimage
    except ModuleNotFoundError:
        raise MissingExtra("scipy", "sim") from None
    if images.dtype != np.uint8:
        turned: np.ndarray = ndimage.rotate(images, degrees, axes=(2, 1), reshape=False, order=1)
        return turned.astype(images.dtype)
    result = np.empty_like(images)
    for part in range(0, len(images), 5000):  # in pieces, so that the floats between take little room
        piece = images[part : part + 5000].astype(np.float32)
        result[part : part + 5000] = np.rint(ndimage.rotate(piece, degrees, axes=(2, 1), reshape=False, order=1))
    return result
