"""What the Secure Layer costs: masks against their two hardware limits, against the plain product, against encryption.

    python benchmarks/secure_layer.py [--out FILE.json] [--no-he]

All numbers are CPU time of one thread, best of several repetitions, and what a ratio compares is measured in one run:
masks and their limits, and masks and the plain product, in turn; encryption afterwards.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from vflaudit.errors import InputError
from vflaudit.protocols import homomorphic
from vflaudit.protocols.vfedsec.batch_ids import open_ids, seal_ids
from vflaudit.protocols.vfedsec.fixed_point import FixedPoint
from vflaudit.protocols.vfedsec.keys import KeySource
from vflaudit.protocols.vfedsec.masks import add_masks

HIDDEN = 64  # width of the Secure Layer (A.1, Banking and Adult)
WIDTH = 20  # inputs of a passive party (A.1, Banking, passive parties 3 and 4)
SOURCE = KeySource(None)
console = Console(width=110)


def cpu_seconds(*functions: Callable[[], Any], repetitions: int = 7, least: float = 0.01) -> list[float]:
    """CPU seconds per call of each function: measured in turn, the best repetition of at least `least` seconds."""
    loops = []
    for function in functions:
        function()  # touches all memory before anything is measured
        start = time.process_time()
        function()
        loops.append(1 + int(least / max(time.process_time() - start, 1e-7)))
    best = [float("inf")] * len(functions)
    for _ in range(repetitions):
        for place, function in enumerate(functions):
            start = time.process_time()
            for _ in range(loops[place]):
                function()
            best[place] = min(best[place], (time.process_time() - start) / loops[place])
    return best


def group_of(parties: int) -> tuple[list[str], dict[str, bytes]]:
    """The names of a masking group, and the first one's keys."""
    group = [f"client{i}" for i in range(parties)]
    return group, {name: SOURCE.take(32) for name in group[1:]}


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on the terminal."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row))
    console.print(table)


def keystream_alone(cipher: Any, zeros: bytes, target: Any) -> None:
    """The raw rate: one call for the whole array."""
    cipher.encryptor().update_into(zeros, target)


def throughput() -> list[dict[str, Any]]:
    """One pair's mask generated and added, next to the keystream alone and the addition alone of the same array."""
    results = []
    group, keys = group_of(2)
    for dtype in (np.uint32, np.uint64):
        for size in (2**power for power in range(16, 27, 2)):
            values = np.ones(size // np.dtype(dtype).itemsize, dtype=dtype)
            other, zeros = np.full_like(values, 3), bytes(size)
            target = other.view(np.uint8).data
            cipher = Cipher(algorithms.AES(keys[group[1]]), modes.CTR(bytes(16)))
            stream, addition, masked = cpu_seconds(
                partial(keystream_alone, cipher, zeros, target),
                partial(np.add, values, other, out=values),
                partial(add_masks, values, group[0], keys, group, 0, "forward"),
            )
            results.append(
                {
                    "type": np.dtype(dtype).name,
                    "kilobytes": size // 1024,
                    "keystream_gb_per_s": size / stream / 1e9,
                    "numpy_add_gb_per_s": size / addition / 1e9,
                    "masking_gb_per_s": size / masked / 1e9,
                    "share_of_slower_limit": max(stream, addition) / masked,
                }
            )
    show(
        "Mask generation and addition (one pair), GB/s",
        ("type", "KB", "AES-CTR", "numpy add", "masking", "share of the slower limit"),
        [tuple(row.values()) for row in results],
    )
    return results


def rounds() -> list[dict[str, Any]]:
    """One client's masks of a forward pass, next to the product W H that they hide."""
    results = []
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((WIDTH, HIDDEN))
    for parties in (2, 4, 8, 16, 32, 64):
        group, keys = group_of(parties)
        for batch in (32, 128, 256, 1024, 4096):
            inputs, values = rng.standard_normal((batch, WIDTH)), np.ones((batch, HIDDEN), dtype=np.uint64)
            product, masked = cpu_seconds(
                partial(np.matmul, inputs, weights),
                partial(add_masks, values, group[0], keys, group, 0, "forward"),
                repetitions=5,
                least=0.005,
            )
            results.append(
                {
                    "parties": parties,
                    "batch": batch,
                    "product_us": 1e6 * product,
                    "masking_us": 1e6 * masked,
                    "ratio": masked / product,
                    "masking_ns_per_value_and_pair": 1e9 * masked / (batch * HIDDEN * (parties - 1)),
                }
            )
    show(
        f"One client's masks of a forward pass (batch x {HIDDEN}, 64 bits) against its plain product, CPU",
        ("parties", "batch", "product, us", "masking, us", "masking / product", "ns per value and pair"),
        [tuple(row.values()) for row in results],
    )
    return results


def encryption(batch: int = 256) -> list[dict[str, Any]]:
    """A passive party's overhead of one forward pass (6.2): masks and ids, against encrypting W and one product.

    Five clients as in A.1: the active party and two clusters of two. As in the paper, decryption is left out.
    Element-wise schemes are timed on an 8x8 slice (X 8x8, W 8x8) and extrapolated by their numbers of encryptions and
    of multiplications; well packed CKKS is measured at full size. The paper's masks are plain Python loops (6.3), these
    are vectorised; encryption of ids is a loop in both.
    """
    rng = np.random.default_rng(0)
    group, keys = group_of(5)
    passive, fixed = group[1:], FixedPoint(64, 24, 5)
    product, inputs = rng.standard_normal((batch, HIDDEN)), rng.standard_normal((batch, WIDTH))
    id_keys = {party: SOURCE.take(32) for party in passive}
    holders = [[passive[2 * cluster + k % 2] for k in range(batch)] for cluster in range(2)]
    sealed = seal_ids(np.arange(batch), holders, id_keys, 0, SOURCE)

    def masks() -> None:
        add_masks(fixed.encode(product), group[0], keys, group, 0, "forward")

    masking, ids = cpu_seconds(masks, partial(open_ids, sealed, passive[0], 0, id_keys[passive[0]], 0))
    results: list[dict[str, Any]] = [
        {"what": "encode + masks", "how": "measured", "cpu_ms": 1e3 * masking},
        {"what": "encode + masks + ids", "how": "measured", "cpu_ms": 1e3 * (masking + ids)},
    ]
    for scheme in homomorphic.SCHEMES:
        try:
            results.append({"what": scheme, **encrypted_product(scheme, inputs)})
        except InputError as error:
            console.print(f"{scheme} is left out: {error}", markup=False)
    for row in results:
        row["ratio_to_masks"] = row["cpu_ms"] / results[0]["cpu_ms"]
        row["ratio_to_masks_and_ids"] = row["cpu_ms"] / results[1]["cpu_ms"]
    show(
        f"A passive party's overhead of one forward pass: 5 clients, batch {batch}, {WIDTH} inputs, {HIDDEN} outputs",
        ("what", "how", "CPU, ms", "times the masks", "times masks and ids"),
        [
            [row[name] for name in ("what", "how", "cpu_ms", "ratio_to_masks", "ratio_to_masks_and_ids")]
            for row in results
        ],
    )
    return results


def encrypted_product(scheme: str, inputs: np.ndarray) -> dict[str, Any]:
    """CPU time to encrypt W and to multiply the inputs with it: of all of it, or extrapolated from a slice."""
    key = homomorphic.generate(scheme).public
    weights = np.random.default_rng(1).standard_normal((WIDTH, HIDDEN)) / 8
    encryptions, multiplications, how = 1.0, 1.0, "measured"
    if scheme != "ckks-packed":
        encryptions, multiplications = weights.size / 64, inputs.size * HIDDEN / 512
        inputs, weights, how = inputs[:8, :8], weights[:8, :8], "extrapolated from an 8x8 slice"
    content = key.encrypt_weights(weights)
    encrypting, multiplying = cpu_seconds(
        partial(key.encrypt_weights, weights), partial(key.multiply, inputs, content), repetitions=3, least=0
    )
    timed = {"encrypting_ms": 1e3 * encryptions * encrypting, "multiplying_ms": 1e3 * multiplications * multiplying}
    return {"how": how, "cpu_ms": sum(timed.values()), **timed}


def main() -> None:
    """Print the tables and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parent / "results" / "secure_layer.json"
    parser.add_argument("--out", type=Path, default=default, help="where the numbers go, as JSON")
    parser.add_argument("--no-he", action="store_true", help="leave out the comparison with homomorphic encryption")
    arguments = parser.parse_args()
    with threadpool_limits(1):
        results: dict[str, Any] = {"throughput": throughput(), "rounds": rounds()}
        if not arguments.no_he:
            results["encryption"] = encryption()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
