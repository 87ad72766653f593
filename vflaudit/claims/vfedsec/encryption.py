"""vFedSec against homomorphic encryption: CPU of one client's forward pass and bytes of its result (6.2, 6.3).

Left out of the evidence, and named so, where the extra `he` is not installed. Numbers are ratios of two measurements of
the same process. The paper's way is to time a product of (batch, 8) and (8, 8) and to go by the number of products.
"""

from __future__ import annotations

import importlib.util

from vflaudit.protocols import he_costs

BATCH = 256
NAIVE: he_costs.SchemeName = "ckks-naive"
PACKED: he_costs.SchemeName = "ckks-packed"
INSTALLED = importlib.util.find_spec("tenseal") is not None and importlib.util.find_spec("phe") is not None


def _layer(place: int) -> float:
    """Seconds that security costs one party per round: masks, ids, a share of the setup."""
    return he_costs.secure_layer_seconds(BATCH, 64)["active" if place == 0 else "passive"]


def cpu_ratio(scheme: he_costs.SchemeName, data: str, place: int) -> float:
    """CPU of the encrypted product over all that masks and ids cost the same party (the paper's overhead columns)."""
    widths, hidden = he_costs.WIDTHS[data]
    extrapolate = scheme != PACKED
    spent = he_costs.cpu_seconds(scheme, BATCH, widths[place], hidden, extrapolate=extrapolate, repeats=3).seconds
    return spent / _layer(place)


def paper_way_active(seed: int) -> float:
    """SEAL, one ciphertext per number, Bank's active party (57 columns), extrapolated from 8x8."""
    return cpu_ratio(NAIVE, "bank", 0)


def paper_way_passive(seed: int) -> float:
    """The same for Bank's passive party with 20 columns."""
    return cpu_ratio(NAIVE, "bank", 2)


def paillier_passive(seed: int) -> float:
    """Paillier with 2048 bits for the same party, extrapolated from 8x8."""
    return cpu_ratio("paillier", "bank", 2)


def packed_active(seed: int) -> float:
    """SEAL, packed, Bank's active party, measured whole."""
    return cpu_ratio(PACKED, "bank", 0)


def packed_passive(seed: int) -> float:
    """SEAL, packed, Bank's passive party with 20 columns, measured whole."""
    return cpu_ratio(PACKED, "bank", 2)


def byte_ratio(scheme: he_costs.SchemeName) -> float:
    """Bytes of the encrypted result over bytes of the masked one."""
    return he_costs.traffic(scheme, BATCH, 64)[0] / he_costs.masked_bytes(BATCH, 64)


def bytes_paillier(seed: int) -> float:
    """Paillier, extrapolated from eight numbers."""
    return byte_ratio("paillier")


def bytes_packed(seed: int) -> float:
    """SEAL, packed (N = 4096), measured whole."""
    return byte_ratio(PACKED)
