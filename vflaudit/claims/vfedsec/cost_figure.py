"""What one forward pass costs a client, plain, masked and encrypted, on a logarithmic axis (6.2, 6.3, tables 1, 2)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vflaudit.claims.drawing import BLUE, GREEN, MUTED, ORANGE, Drawn, new_axes
from vflaudit.claims.vfedsec.encryption import BATCH, INSTALLED, NAIVE, PACKED
from vflaudit.protocols import he_costs
from vflaudit.protocols.vfedsec.batch_ids import seal_ids
from vflaudit.protocols.vfedsec.keys import KeyRing, KeySource

COLUMNS, HIDDEN = he_costs.WIDTHS["bank"][0][2], he_costs.WIDTHS["bank"][1]
Bar = tuple[str, float, str, bool]  # words, value, colour, whether extrapolated


def seconds() -> list[Bar]:
    """CPU of a passive party of Bank with 20 columns, per round."""
    values, weights = he_costs.example(BATCH, COLUMNS, HIDDEN)
    bars: list[Bar] = [
        ("product, no protection", he_costs.fastest(lambda: values @ weights, 200), BLUE, False),
        ("masks", he_costs.masking_seconds(BATCH, HIDDEN), GREEN, False),
        ("masks, ids, keys", he_costs.secure_layer_seconds(BATCH, HIDDEN)["passive"], GREEN, False),
    ]
    if INSTALLED:
        packed = he_costs.cpu_seconds(PACKED, BATCH, COLUMNS, HIDDEN, extrapolate=False, repeats=3).seconds
        bars.append(("CKKS, packed", packed, ORANGE, False))
        for words, scheme in (("CKKS, number by number", NAIVE), ("Paillier 2048", "paillier")):
            spent = he_costs.cpu_seconds(scheme, BATCH, COLUMNS, HIDDEN, extrapolate=True).seconds
            bars.append((words, spent, ORANGE, True))
    return bars


def sizes() -> list[Bar]:
    """Bytes of its result on the way to the server, and in the third bar of what it gets of ids and keys."""
    masked = float(he_costs.masked_bytes(BATCH, HIDDEN))
    bars: list[Bar] = [
        ("", BATCH * HIDDEN * 4.0, BLUE, False),
        ("", masked, GREEN, False),
        ("", masked + ids_and_keys(), GREEN, False),
    ]
    if INSTALLED:
        for scheme in (PACKED, NAIVE, "paillier"):
            sent, extrapolated = he_costs.traffic(scheme, BATCH, HIDDEN)
            bars.append(("", float(sent), ORANGE, extrapolated))
    return bars


def ids_and_keys(rekey_every: int = 5) -> float:
    """Bytes per round of all sealed ids, which every passive party gets, and of its share of public keys, both ways."""
    others = he_costs.CLIENTS[1:]
    ring = KeyRing("active", others, 0, KeySource(None))
    keys = sum(key.nbytes for key in ring.public_keys().values())
    holders = [[others[2 * cluster]] * BATCH for cluster in range(2)]
    sealed = seal_ids(np.arange(BATCH), holders, dict.fromkeys(others, bytes(32)), 0, KeySource(None))
    return sum(part.nbytes for part in sealed.values()) + 2 * keys / rekey_every


def overhead(folder: Path) -> Drawn:
    """Bars from the plain product to Paillier."""
    cpu, sent = seconds(), sizes()
    figure, (left, right) = new_axes(2, (6.6, 0.9 + 0.34 * len(cpu)))
    for axes, bars, unit in ((left, cpu, time_words), (right, sent, size_words)):
        for place, (_, value, colour, extrapolated) in enumerate(bars):
            axes.barh([place], [value], 0.55, color="white" if extrapolated else colour, edgecolor=colour,
                      hatch="////" if extrapolated else None)  # fmt: skip
            axes.annotate(unit(value), (value, place), xytext=(4, 0), textcoords="offset points", va="center",
                          fontsize=8)  # fmt: skip
        axes.set_xscale("log")
        values = [value for _, value, _, _ in bars]
        axes.set_xlim(min(values) / 4, max(values) * 60)
        axes.minorticks_off()
        axes.yaxis.grid(False)
    left.set_yticks(range(len(cpu)), [words for words, *_ in cpu])
    left.set_ylim(len(cpu) - 0.4, -0.6)
    left.set(title="CPU of one client per round", xlabel="seconds (log scale)")
    right.set(title="bytes of the same", xlabel="bytes (log scale)")
    for axes in (left, right):
        axes.tick_params(axis="x", colors=MUTED, labelsize=8)
    by_name = {words: value for words, value, *_ in cpu}
    caption = (
        f"One forward pass of a passive party with Bank's {COLUMNS} columns, {HIDDEN} outputs and {BATCH} rows, on one "
        "core of this machine; bytes are those of its result. The third bar has the sealed ids too, and a fifth of a "
        "setup phase. "
    )
    if INSTALLED:
        ratio = by_name["CKKS, packed"] / by_name["masks, ids, keys"]
        naive = by_name["CKKS, number by number"] / by_name["CKKS, packed"]
        caption += (
            f"Hatched: extrapolated from a product of ({BATCH}, 8) and (8, 8), as in the paper (6.3); bytes from eight "
            f"numbers. Packed CKKS takes {ratio:,.0f} times the CPU of all that vFedSec adds, and number by number "
            f"{naive:,.0f} times that."
        )
    else:
        caption += "Bars of homomorphic encryption are missing: the extra `he` is not installed."
    return Drawn("What protection costs", caption, figure)


def time_words(value: float) -> str:
    """Seconds in a readable unit."""
    if value >= 1:
        return f"{value:,.0f} s"
    return f"{value * 1e3:.2g} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"


def size_words(value: float) -> str:
    """Bytes in a readable unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{value / size:.2g} {unit}"
    return f"{value / 1e3:.0f} kB"
