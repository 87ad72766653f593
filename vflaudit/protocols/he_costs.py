"""What one client spends on one forward pass, encrypted or masked (vFedSec 6.2, 6.3, tables 1 and 2, figure 2).

The paper times a product of (batch, 8) and (8, 8) in Python loops. Larger ones follow by the number of scalar products;
results of that kind say `extrapolated`. The packed scheme is fast enough to be measured whole.

What the paper's numbers fit. CPU: table 1 has 0.23 ms for each scalar product of SEAL at every active party, as one
ciphertext per number takes. Bytes: table 2 has 96 for each number, as a ciphertext of degree 8192 with three primes
takes when it holds 4096 numbers. So the CPU is that of a naive product and the bytes are those of a packed one. Naive
results are thousands of times longer, and packed ones take about a thousandth of the CPU (benchmarks/homomorphic.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream
from vflaudit.protocols.homomorphic import Encrypted, SchemeName, generate
from vflaudit.protocols.vfedsec.batch_ids import open_ids, seal_ids
from vflaudit.protocols.vfedsec.fixed_point import FixedPoint
from vflaudit.protocols.vfedsec.keys import KeyRing, KeySource
from vflaudit.protocols.vfedsec.masks import add_masks, keystream

SLICE = 8  # figure 2: (batch, 8) times (8, 8)
CLIENTS = ("active", "passive1", "passive2", "passive3", "passive4")  # A.1
WIDTHS = {  # A.1: the columns of the active party and of the two clusters, and the outputs of the Secure Layer
    "bank": ((57, 3, 20), 64),
    "adult": ((27, 63, 16), 64),
    "taobao": ((197, 11, 6), 128),
}


@dataclass(frozen=True)
class Measured:
    """CPU seconds of one client's forward pass, and the largest error of the result where it was computed whole."""

    seconds: float
    extrapolated: bool
    error: float | None = None


def cpu_seconds(
    scheme: SchemeName,
    batch: int,
    width: int,
    hidden: int,
    *,
    extrapolate: bool,
    encrypts: Literal["weights", "product"] = "weights",
    refresh: bool = False,
    degree: int = 4096,
    key_bits: int = 2048,
    repeats: int = 1,
) -> Measured:
    """Encrypt W and multiply the batch with it, or encrypt the product at once. Keys, decryption and sending are extra.

    The paper counts these two steps only (6.2). `refresh` adds what hides the rows of the batch from the server.
    """
    if extrapolate:
        per_weight, per_product = _slice(scheme, batch, degree, key_bits)
        return Measured(per_weight * width * hidden + per_product * batch * width * hidden, extrapolated=True)
    values, weights = example(batch, width, hidden)
    pair = generate(scheme, key_bits=key_bits, degree=degree)
    key = pair.public

    results: list[Encrypted] = []

    def forward() -> None:
        if encrypts == "product":
            results.append(key.encrypt(values @ weights))
            return
        product = key.multiply(values, key.encrypt_weights(weights))
        results.append(key.refresh(product) if refresh else product)

    spent = fastest(forward, repeats)
    error = float(np.abs(pair.decrypt(results[-1]) - values @ weights).max())
    return Measured(spent, extrapolated=False, error=error)


def slice_seconds(scheme: SchemeName, batch: int, *, degree: int = 4096, key_bits: int = 2048) -> float:
    """Figure 2: the whole time of (batch, 8) times (8, 8), measured."""
    per_weight, per_product = _slice(scheme, batch, degree, key_bits)
    return per_weight * SLICE**2 + per_product * batch * SLICE**2


@lru_cache(maxsize=64)
def _slice(scheme: SchemeName, batch: int, degree: int, key_bits: int) -> tuple[float, float]:
    """Seconds per encrypted weight and per scalar product. Row by row, because all ciphertexts would fill the memory.

    Packed results are made whole: a packed row on its own would waste most of a ciphertext.
    """
    values, weights = example(batch, SLICE, SLICE)
    key = generate(scheme, key_bits=key_bits, degree=degree).public
    start = time.process_time()
    encrypted = key.encrypt_weights(weights)
    middle = time.process_time()
    for part in [values] if scheme == "ckks-packed" else np.split(values, batch):
        key.multiply(part, encrypted)
    end = time.process_time()
    return (middle - start) / SLICE**2, (end - middle) / (batch * SLICE**2)


def traffic(
    scheme: SchemeName, batch: int, hidden: int, *, degree: int = 4096, key_bits: int = 2048
) -> tuple[int, bool]:
    """Bytes of one client's result on its way to the server, and whether they are extrapolated from eight numbers."""
    key = generate(scheme, key_bits=key_bits, degree=degree).public
    rows, columns = (batch, hidden) if scheme == "ckks-packed" else (1, SLICE)
    values, weights = example(rows, SLICE, columns)
    sent = sum(len(part) for part in key.dump(key.multiply(values, key.encrypt_weights(weights))))
    share = batch * hidden / (rows * columns)
    return round(sent * share), scheme != "ckks-packed"


def example(batch: int, width: int, hidden: int) -> tuple[Array, Array]:
    """Standardised columns without a zero, and weights as PyTorch initialises them."""
    rng = stream(0, "he-costs", batch, width, hidden)
    return rng.standard_normal((batch, width)), rng.uniform(-1, 1, (width, hidden)) / np.sqrt(width)


def masking_seconds(
    batch: int, hidden: int, *, bits: Literal[32, 64] = 32, loops: bool = False, repeats: int = 20
) -> float:
    """The same forward pass under masks with four others: fixed point, four streams, sums in Z_R (section 3)."""
    product = example(batch, hidden, hidden)[0]
    return fastest(lambda: masked(product, bits=bits, loops=loops), repeats)


def masked(product: Array, *, bits: Literal[32, 64] = 32, loops: bool = False) -> Array:
    """The active party's masked product under fixed keys (any key costs the same).

    `loops` adds number by number in Python, as figure 2 does ("not optimized by any Python modules").
    """
    point = FixedPoint(bits, 16, len(CLIENTS))
    keys = {party: bytes([place]) * 32 for place, party in enumerate(CLIENTS)}
    if not loops:
        encoded = point.encode(product)
        add_masks(encoded, CLIENTS[0], keys, CLIENTS, 0, "forward")
        return encoded
    streams = []
    for party in CLIENTS[1:]:
        numbers = np.empty(product.size, dtype=point.dtype)
        keystream(keys[party], numbers, 0, "forward")
        streams.append(numbers.tolist())
    sums = []
    for place, value in enumerate(product.ravel().tolist()):
        total = round(value * 2**point.fraction)
        for mask in streams:
            total += mask[place]
        sums.append(total % 2**bits)
    return np.array(sums, dtype=point.dtype).reshape(product.shape)


def secure_layer_seconds(batch: int, hidden: int, *, rekey_every: int = 5, repeats: int = 5) -> dict[str, float]:
    """All that security costs the active and a passive party per round: masks, sample ids, and a share of the setup."""
    masks, source = masking_seconds(batch, hidden), KeySource(None)
    public: dict[str, dict[str, Array]] = {}

    def setup(party: str, generation: int) -> KeyRing:
        ring = KeyRing(party, [other for other in CLIENTS if other != party], generation, source)
        public[party] = ring.public_keys()
        return ring

    rings = {party: setup(party, 0) for party in CLIENTS}
    received = {party: {other: public[other][party] for other in CLIENTS if other != party} for party in CLIENTS}
    for party, ring in rings.items():
        ring.agree(received[party])
    keying = fastest(lambda: setup("active", 1).agree(received["active"]), repeats) / rekey_every
    holders = [[CLIENTS[1 + 2 * cluster + place % 2] for place in range(batch)] for cluster in range(2)]
    ids, keys = np.arange(batch), {party: rings["active"].id_key(party) for party in CLIENTS[1:]}
    sealing = fastest(lambda: seal_ids(ids, holders, keys, 0, source), repeats)
    sealed, mine = seal_ids(ids, holders, keys, 0, source), keys["passive1"]
    opening = fastest(lambda: open_ids(sealed, "passive1", 0, mine, 0), repeats)
    return {"active": masks + keying + sealing, "passive": masks + keying + opening}


def masked_bytes(batch: int, hidden: int, *, bits: Literal[32, 64] = 32) -> int:
    """Bytes of one client's masked result."""
    return batch * hidden * bits // 8


def fastest(work: Callable[[], object], repeats: int) -> float:
    """CPU seconds of the fastest of so many calls: others on the machine only ever slow it down."""
    spent = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return min(spent)
