"""Pairwise masks that cancel in the sum (vFedSec section 3, equations 3 and 4; Bonawitz et al. 2017).

PRG is AES-256 in counter mode under the pair's mask key. The 16-byte counter block is

    purpose (1 byte) | round (7 bytes) | block (8 bytes)

so streams of different rounds or purposes never share a block. Two arrays masked under one key in the same round and
for the same purpose would share the whole stream: mask everything of one purpose in one call, and count rounds on
without starting over while a key lives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from vflaudit.core.dataset import Array
from vflaudit.errors import InputError

Purpose = Literal["forward", "gradient", "serving"]

_CODES: dict[Purpose, int] = {"forward": 1, "gradient": 2, "serving": 3}
_TYPES = (np.dtype(np.uint32), np.dtype(np.uint64))
_CHUNK = 128 * 1024  # bytes: zeros, keystream and values of a chunk stay in the nearer caches
_ZEROS = bytes(_CHUNK)  # encrypting zeros gives the keystream itself


def domain(round: int, purpose: Purpose) -> bytes:
    """Eight bytes that tell rounds and purposes apart: the upper half of every counter block."""
    if purpose not in _CODES:
        raise InputError(f"vfedsec: no purpose {purpose!r}: expected one of {', '.join(_CODES)}")
    if not 0 <= round < 2**56:
        raise InputError(f"vfedsec: round {round} is not possible: expected 0 to 2^56 - 1")
    return bytes([_CODES[purpose]]) + round.to_bytes(7, "big")


def keystream(key: bytes, out: Array, round: int, purpose: Purpose) -> None:
    """Fill `out` with PRG(key): uniform numbers of Z_R."""
    flat, stream, step = _flat(out), _stream(key, round, purpose), _CHUNK // out.itemsize
    for start in range(0, flat.size, step):
        _fill(stream, flat[start : start + step])


def add_masks(
    values: Array, owner: str, keys: Mapping[str, bytes], group: Sequence[str], round: int, purpose: Purpose
) -> None:
    """Add n_owner to the values, in place and modulo R (equation 3): PRG of later members, minus PRG of earlier ones.

    `group` is everybody who masks, in the same order for all; `keys` has the owner's mask key for every other member.
    """
    place = _members(group).get(owner)
    if place is None:
        raise InputError(f"vfedsec: {owner!r} masks for a group that it is not in: {list(group)}")
    missing = [other for other in group if other != owner and other not in keys]
    if missing:
        raise InputError(f"vfedsec: {owner} has no mask key for {', '.join(missing)}")
    flat, step = _flat(values), _CHUNK // values.itemsize
    streams = [
        (np.add if position > place else np.subtract, _stream(keys[other], round, purpose))
        for position, other in enumerate(group)
        if position != place
    ]
    buffer = np.empty(min(step, flat.size), dtype=values.dtype)
    for start in range(0, flat.size, step):
        chunk = flat[start : start + step]
        mask = buffer[: chunk.size]
        for combine, stream in streams:
            _fill(stream, mask)
            combine(chunk, mask, out=chunk)  # arrays of unsigned integers wrap around silently


def unmask(masked: Mapping[str, Array], group: Sequence[str]) -> Array:
    """The server's sum of everybody's masked values in Z_R, in which all masks cancel (equation 4)."""
    if set(masked) != set(_members(group)):
        raise InputError(f"vfedsec: masked values came from {sorted(masked)}: expected {sorted(group)}, each once")
    first = masked[group[0]]
    for sender, values in masked.items():
        if values.shape != first.shape or values.dtype != first.dtype or values.dtype not in _TYPES:
            raise InputError(
                f"vfedsec: masked values of {sender} are {values.dtype}{list(values.shape)}, "
                f"those of {group[0]} {first.dtype}{list(first.shape)}: expected equal shapes of uint32 or uint64"
            )
    total = np.zeros_like(first, order="C")
    for values in masked.values():
        np.add(total, values, out=total)
    return total


def _members(group: Sequence[str]) -> dict[str, int]:
    places = {name: position for position, name in enumerate(group)}
    if len(places) != len(group) or not group:
        raise InputError(f"vfedsec: {list(group)} cannot mask together: expected names, each once")
    return places


def _flat(array: Array) -> Array:
    """The same memory as one row; anything that would be a copy is refused, because masks would go nowhere."""
    if array.dtype not in _TYPES or not array.flags.c_contiguous or not array.flags.writeable:
        raise InputError(f"vfedsec: expected a contiguous writable array of uint32 or uint64, not of {array.dtype}")
    return array.reshape(-1)


def _stream(key: bytes, round: int, purpose: Purpose) -> Any:
    if len(key) != 32:
        raise InputError(f"vfedsec: a mask key has {len(key)} bytes: expected 32")
    return Cipher(algorithms.AES(key), modes.CTR(domain(round, purpose) + bytes(8))).encryptor()


def _fill(stream: Any, out: Array) -> None:
    """The next out.nbytes of the stream."""
    stream.update_into(memoryview(_ZEROS)[: out.nbytes], out.view(np.uint8).data)
