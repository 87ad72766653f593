"""The group of the Diffie-Hellman intersection: Curve25519 by x-coordinates, and a hash of ids onto it.

X25519 (RFC 7748) is scalar multiplication of x-coordinates: it commutes, X(a, X(b, u)) = X(b, X(a, u)), which is all
that the intersection needs, and `cryptography` has it in optimised code (24 microseconds where this was written; P-256,
which must solve for y each time, takes 52, and a 2048-bit group of Python integers at least two milliseconds).

Ids must become points whose discrete logarithm nobody knows. X25519 would take any 32 bytes, but half of them are on
the curve's twist, and a multiple stays on the side where its point was: one bit of every hash would show through the
blinding. So ids go through Elligator 2 (Bernstein, Hamburg, Krasnova, Lange 2013; RFC 9380, section 6.7.1), which ends
on the curve always. Secret scalars are multiples of the cofactor 8 (clamping), so products are in the group of prime
order, and blinded points look random as far as the decisional Diffie-Hellman problem is hard there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from vflaudit.errors import InputError

PRIME = 2**255 - 19
CURVE = 486662  # v^2 = u^3 + CURVE u^2 + u
BYTES = 32
_DOMAIN = b"vflaudit psi, curve25519, elligator 2: "


def id_bytes(name: str) -> bytes:
    """An id as bytes: exact code points, without any normalisation; lone surrogates are ids as well."""
    return name.encode("utf-8", "surrogatepass")


def on_curve(u: int) -> bool:
    """Whether u is the x-coordinate of a point of the curve, and not of its twist."""
    return pow((u * u + CURVE * u + 1) * u, (PRIME - 1) // 2, PRIME) <= 1


def hash_points(ids: Sequence[str]) -> list[bytes]:
    """Elligator 2 of the SHA-512 of every id, as 32 bytes."""
    numbers = [int.from_bytes(hashlib.sha512(_DOMAIN + id_bytes(name)).digest()) % PRIME for name in ids]
    points = []
    for inverse in _inverses([1 + 2 * r * r for r in numbers]):  # never zero: -1/2 is not a square
        u = -CURVE * inverse % PRIME
        points.append(u if on_curve(u) else -u - CURVE)
    return [(u % PRIME).to_bytes(BYTES, "little") for u in points]


def _inverses(numbers: Sequence[int]) -> list[int]:
    """All inverses modulo the prime for the price of one (Montgomery)."""
    products = [1]
    for number in numbers:
        products.append(products[-1] * number % PRIME)
    rest, found = pow(products[-1], -1, PRIME), []
    for place in range(len(numbers) - 1, -1, -1):
        found.append(rest * products[place] % PRIME)
        rest = rest * numbers[place] % PRIME
    return found[::-1]


class Blinding:
    """One party's secret scalar."""

    def __init__(self, secret: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(secret)

    def __call__(self, points: Sequence[bytes]) -> list[bytes]:
        """Every point times the scalar, in the same order."""
        try:
            return [self._key.exchange(X25519PublicKey.from_public_bytes(point)) for point in points]
        except ValueError:  # all multiples of such a point are zero: no honest party sends it
            raise InputError("psi: a point of low order was sent instead of a blinded id") from None
