"""Numbers behind vFedSec's claims that are no attack's score: exactness, uniformity, opened ids, growth, costs."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from vflaudit import Adversary, load_protocol
from vflaudit.core.loading import load_dataset
from vflaudit.core.randomness import stream
from vflaudit.core.run import Run
from vflaudit.core.sources.local import find_file
from vflaudit.core.transcript import Recording

ROWS = 3000
MANY = 20_000  # where a difference of half a point is to be seen
BATCH = 256  # A.1


def real(name: str) -> bool:
    """Whether the dataset's file is under $VFLAUDIT_DATA. Claims download nothing."""
    return find_file(name, {"bank": ("bank-full.csv",), "adult": ("adult.data",)}[name]) is not None


def paper_data(name: str, rows: int = ROWS) -> str:
    """Bank or Adult, or synthetic people with the same columns where the files are not on this computer."""
    if not real(name):
        return f"synthetic:shape={name},rows={rows}"
    return f"bank:day=category,rows={rows}" if name == "bank" else f"adult:rows={rows}"


def measured_on(*data: str) -> str:
    """What is really used, in words."""
    words = []
    for item in sorted(set(data)):
        name = next((name for name in ("bank", "adult") if name in item), None)
        rows = item.partition("rows=")[2].partition(",")[0]
        if item.startswith("synthetic"):
            words.append(f"synthetic columns like {name}'s" if name else item)
        else:
            words.append(
                f"{name} ({rows} real rows, the paper's split)" if name else f"{item} (real, not in the paper)"
            )
    return "; ".join([*words, "two passive parties per cluster"])


@cache
def trained(seed: int, data: str = "breast-cancer", **parameters: Any) -> Run:
    """One run on breast-cancer with three parties, or on the paper's split."""
    split: dict[str, Any] = {"parties": 3} if data == "breast-cancer" else {"partition": "vfedsec"}
    made = load_dataset(data, seed=seed, **split)
    return load_protocol("vfedsec", **parameters).run(made, seed=seed)


def largest_change(seed: int) -> float:
    """The largest difference of any weight between training with masks and the same training without them."""
    masked, bare = (trained(seed, security=how) for how in ("masked", "quantised"))
    return max(float(np.abs(masked.model.parameters[n] - v).max()) for n, v in bare.model.parameters.items())


def uniformity_auc(seed: int) -> float:
    """AUC above one half of a classifier that tells two inputs with the same sum by all masked values together."""
    from attacks.uniformity import masked_samples, tell_apart
    from vflaudit.protocols.vfedsec.keys import KeySource

    rng, parties = stream(seed, "claims", "uniformity"), ("active", "passive1", "passive2")
    first = {party: rng.normal(size=4) for party in parties}
    shift = np.array([0.5, -0.25, 1.0, 2.0])  # multiples of the resolution: the sums are equal to the last bit
    second = {**first, "active": first["active"] + shift, "passive1": first["passive1"] - shift}
    source = KeySource(None)
    samples = [masked_samples(inputs, 400, source, number) for number, inputs in enumerate((first, second))]
    return tell_apart(samples[0], samples[1], seed).auc - 0.5


def rejected_messages(seed: int) -> float:
    """Share of clients whose masked messages fail a test of uniformity at the 1% level (two tests, corrected)."""
    from attacks.uniformity import message_tests

    found = message_tests(trained(seed).view(Adversary({"server"})))
    return float(np.mean([min(tests.values()) < 0.01 / 2 for tests in found.values()]))


def opened_by_others(seed: int) -> float:
    """Share of sealed ids that a passive party opens although it does not hold the row (4.2)."""
    run = trained(seed)
    assert run.order is not None
    wrong = total = 0
    for party in ("passive1", "passive2", "passive3", "passive4"):
        schedule = run.states[party].secrets["schedule"]
        others = (run.order >= 0) & ~run.data.block(party).present[run.order]
        wrong, total = wrong + int((schedule[others] >= 0).sum()), total + int(others.sum())
    return wrong / total


def opened_by_aggregator(seed: int, **parameters: Any) -> float:
    """Share of ids whose plain bytes, in either order, occur in the batch that the server relays."""
    run = trained(seed, **parameters)
    assert run.order is not None
    sent = run.view(Adversary({"server"})).transcript.select(sender="active", kind="batch")
    content = [message.arrays["ids"].tobytes() for message in sent]
    found = total = 0
    for text, batch in zip(content, np.split(run.order, len(content)), strict=True):
        ids = [int(row) for row in batch[batch >= 0]]
        found += sum(row.to_bytes(8, "big") in text or row.to_bytes(8, "little") in text for row in ids)
        total += len(ids)
    return found / total


def growth(seed: int, over: str) -> float:
    """The exponent b of CPU ~ size^b that fits a client's masking, over 8 to 64 clients or 512 to 4096 rows."""
    from vflaudit.protocols.he_costs import fastest
    from vflaudit.protocols.vfedsec.masks import add_masks

    sizes = (8, 16, 32, 64) if over == "clients" else (512, 1024, 2048, 4096)
    spent = []
    for size in sizes:
        clients, batch = (size, 1024) if over == "clients" else (8, size)
        names = [str(place) for place in range(clients)]
        keys = {name: bytes([place]) * 32 for place, name in enumerate(names[1:], start=1)}
        values = np.zeros((batch, 64), dtype=np.uint32)
        spent.append(fastest(lambda v=values, k=keys, n=names: add_masks(v, "0", k, n, 0, "forward"), 7))  # type: ignore[misc]
    return float(np.polyfit(np.log(sizes), np.log(spent), 1)[0])


def growth_clients(seed: int) -> float:
    """Over the number of clients."""
    return growth(seed, "clients")


def growth_batch(seed: int) -> float:
    """Over the batch."""
    return growth(seed, "batch")


@cache
def costs(seed: int, security: str) -> tuple[dict[str, float], dict[str, float]]:
    """CPU seconds and bytes (sent and received) by party, for a setup phase and five training rounds (6.2)."""
    data = load_dataset(
        paper_data("bank"), partition="vfedsec", aux=0.0, shares=(1.0, 0.0, 0.0), rows=5 * BATCH, seed=seed
    )
    target = load_protocol("vfedsec", security=security, epochs=1)
    found = min(
        (target.run(data, seed=seed, recording=Recording.none()).costs for _ in range(3)),
        key=lambda c: sum(c.cpu.values()),
    )
    parties = ("active", "passive1", "passive3")
    traffic = {party: float(found.sent[party].bytes + found.received[party].bytes) for party in parties}
    return {party: found.cpu[party] for party in parties}, traffic


def cpu_overhead(seed: int, party: str) -> float:
    """Share of a party's CPU time that security costs."""
    masked, clear = (costs(seed, how)[0][party] for how in ("masked", "clear"))
    return 1 - clear / masked


def cpu_overhead_active(seed: int) -> float:
    """Of the active party."""
    return cpu_overhead(seed, "active")


def cpu_overhead_passive(seed: int) -> float:
    """Of a passive party with 20 columns."""
    return cpu_overhead(seed, "passive3")


def byte_overhead(seed: int) -> float:
    """Share of a passive party's traffic that security costs."""
    masked, clear = (costs(seed, how)[1]["passive3"] for how in ("masked", "clear"))
    return 1 - clear / masked
