"""What the Secure Layer costs against homomorphic encryption, in one run: the paper's way, and with packed CKKS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vflaudit as va
from vflaudit.protocols.he_costs import (
    WIDTHS,
    cpu_seconds,
    masked_bytes,
    masking_seconds,
    secure_layer_seconds,
    slice_seconds,
    traffic,
)
from vflaudit.protocols.he_matmul import HEMatmul
from vflaudit.protocols.vfedsec.protocol import VFedSec

BATCH = 256  # A.1


def figure_2() -> list[dict[str, Any]]:
    """(batch, 8) times (8, 8): encrypted against masked, both in loops as in the paper, and both done well."""
    rows = []
    for batch in (16, 64, 256):
        loops, arrays = masking_seconds(batch, 8, loops=True), masking_seconds(batch, 8)
        spent = {scheme: slice_seconds(scheme, batch) for scheme in ("paillier", "ckks-naive", "ckks-packed")}
        ratios = {f"{scheme} / masks in loops": value / loops for scheme, value in spent.items()}
        ratios |= {f"{scheme} / masks in arrays": value / arrays for scheme, value in spent.items()}
        rows.append({"batch": batch, "seconds": {**spent, "loops": loops, "arrays": arrays}, "ratios": ratios})
    return rows


def forward_pass() -> list[dict[str, Any]]:
    """The paper's widths, batch 256, per client: CPU of HE as a multiple of the masks, and of all that vFedSec adds."""
    rows = []
    for name, (widths, hidden) in WIDTHS.items():
        masks, layer = masking_seconds(BATCH, hidden), secure_layer_seconds(BATCH, hidden)
        for party, width in zip(("active", "cluster 1", "cluster 2"), widths, strict=True):
            whole = {"extrapolate": False, "repeats": 3}
            measured = {
                "paillier, extrapolated": cpu_seconds("paillier", BATCH, width, hidden, extrapolate=True),
                "ckks-naive, extrapolated": cpu_seconds("ckks-naive", BATCH, width, hidden, extrapolate=True),
                "ckks-packed": cpu_seconds("ckks-packed", BATCH, width, hidden, **whole),
                "ckks-packed, refreshed": cpu_seconds("ckks-packed", BATCH, width, hidden, refresh=True, **whole),
                "ckks-packed 8192": cpu_seconds("ckks-packed", BATCH, width, hidden, degree=8192, **whole),
                "ckks-packed, product": cpu_seconds("ckks-packed", BATCH, width, hidden, encrypts="product", **whole),
            }
            overhead = layer["active" if party == "active" else "passive"]
            rows.append(
                {
                    "dataset": name,
                    "party": party,
                    "width": width,
                    "masks_seconds": masks,
                    "layer_seconds": overhead,
                    "seconds": {scheme: cost.seconds for scheme, cost in measured.items()},
                    "error": {scheme: cost.error for scheme, cost in measured.items() if cost.error is not None},
                    "over_masks": {scheme: cost.seconds / masks for scheme, cost in measured.items()},
                    "over_layer": {scheme: cost.seconds / overhead for scheme, cost in measured.items()},
                }
            )
    return rows


def result_bytes() -> list[dict[str, Any]]:
    """Bytes of one client's result, as a multiple of the masked one (four bytes a number)."""
    rows = []
    for hidden in (64, 128):
        masked = masked_bytes(BATCH, hidden)
        sent = {scheme: traffic(scheme, BATCH, hidden)[0] for scheme in ("paillier", "ckks-naive", "ckks-packed")}
        sent["ckks-packed 8192"] = traffic("ckks-packed", BATCH, hidden, degree=8192)[0]
        rows.append(
            {"hidden": hidden, "masked": masked, "bytes": sent, "ratios": {k: v / masked for k, v in sent.items()}}
        )
    return rows


def five_rounds() -> list[dict[str, Any]]:
    """Setup and five training rounds on people of the shape of Bank and Adult: every party's whole CPU and traffic.

    Ratios of CPU are the median, the least and the largest of five seeds.
    """
    ways: dict[str, VFedSec] = {
        "clear": VFedSec(epochs=1, security="clear"),
        "masks": VFedSec(epochs=1),
        "packed": HEMatmul(epochs=1),
        "packed product": HEMatmul(epochs=1, encrypts="product"),
    }
    rows = []
    for shape in ("bank", "adult"):
        people = f"synthetic:shape={shape},rows={5 * BATCH}"
        data = va.load_dataset(people, partition="vfedsec", aux=0.0, shares=(1.0, 0.0, 0.0))
        costs = {way: [protocol.run(data, seed=seed).costs for seed in range(5)] for way, protocol in ways.items()}
        for party in ("active", "passive1", "passive3", "server"):
            spent = {way: np.array([run.cpu[party] for run in runs]) for way, runs in costs.items()}
            moved = {way: runs[0].sent[party].bytes + runs[0].received[party].bytes for way, runs in costs.items()}
            row: dict[str, Any] = {"shape": shape, "party": party, "bytes": moved}
            row["cpu"] = {way: float(np.median(values)) for way, values in spent.items()}
            for way in ("packed", "packed product"):
                ratios = spent[way] / spent["masks"]
                row[f"{way} / masks"] = {
                    "cpu": [float(pick(ratios)) for pick in (np.median, np.min, np.max)],
                    "bytes": moved[way] / moved["masks"],
                }
            rows.append(row)
    return rows


def extrapolation() -> dict[str, float]:
    """How far the paper's way of scaling up is off: a product measured whole over the same one extrapolated."""
    size = (8, 24, 16)
    return {
        scheme: cpu_seconds(scheme, *size, extrapolate=False).seconds
        / cpu_seconds(scheme, *size, extrapolate=True).seconds
        for scheme in ("paillier", "ckks-naive")
    }


def main() -> None:
    """Print everything and write it to benchmarks/results/homomorphic.json."""
    torch.set_num_threads(1)
    parts = (figure_2, forward_pass, result_bytes, five_rounds, extrapolation)
    results = {part.__name__: part() for part in parts}
    text = json.dumps(results, indent=2) + "\n"
    print(text)
    path = Path(__file__).parent / "results" / "homomorphic.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    main()
