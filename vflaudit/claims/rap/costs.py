"""What RAP and SplitNN cost, for RAP's claims: rounds, bytes, and time under a stated network.

RAP measures wall-clock time of training over gRPC between machines on '10GBps Ethernet' (4.1). It states neither
latency nor what gRPC costs per message, nor epochs, nor the chosen batch size (0.1% to 1% of the rows). So time is
estimated here: CPU seconds measured on this machine (one thread, the slowest party of each round), bytes over the
bandwidth, and one latency per round. Serving is left out: there are no validation or test rows. A few epochs are
measured and scaled to 100: SplitNN's rounds, bytes and CPU grow with epochs, RAP's CPU does, its one round does not.
Data is of the size of the paper's WO, for which it reports 630 times.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from vflaudit import load_protocol
from vflaudit.claims.rap.numbers import rap_run
from vflaudit.core.costs import Costs, Network
from vflaudit.core.loading import load_dataset
from vflaudit.core.run import Run
from vflaudit.core.transcript import Recording

WO = "synthetic:rows=50000,features=20,task=regression"  # its size; the paper's WO is not public in this form
MEASURED_EPOCHS, EPOCHS = 2, 100
BATCHES = {"1%": 500, "0.1%": 50}  # of 50,000 training rows


def training_bytes(run: Run) -> int:
    """Bytes until the model is trained: serving messages have no epoch, and RAP's only round is the first."""
    return sum(message.nbytes for message in run.transcript if message.epoch is not None or message.step == 0)


def volume_ratio(seed: int) -> float:
    """Bytes of SplitNN's training over RAP's, same data."""
    return training_bytes(rap_run("breast-cancer", seed, "splitnn")) / training_bytes(rap_run("breast-cancer", seed))


def rounds_of_training(seed: int) -> float:
    """Rounds before RAP's model is trained."""
    run = rap_run("breast-cancer", seed)
    first_served = min(message.step for message in run.transcript if message.kind == "predictions")
    return float(first_served - 1)


@cache
def training_costs(protocol: str, batch: str, seed: int) -> Costs:
    """Costs of training alone over all epochs, on data of WO's size."""
    data = load_dataset(WO, parties=4, aux=0.0, shares=(1.0, 0.0, 0.0), seed=seed)
    target = load_protocol(protocol, max_epochs=MEASURED_EPOCHS, batch_size=BATCHES[batch])
    costs = target.run(data, seed=seed, recording=Recording.none()).costs
    times = EPOCHS // MEASURED_EPOCHS
    if protocol == "rap":  # its round is over before the first epoch; projecting is counted with the CPU of training
        return replace(costs, critical_cpu=times * costs.critical_cpu)
    return replace(
        costs,
        rounds=times * costs.rounds,
        critical_bytes=times * costs.critical_bytes,
        critical_cpu=times * costs.critical_cpu,
    )


def speed_up(seed: int, network: Network = Network.LAN, batch: str = "1%") -> float:
    """Estimated seconds of SplitNN's training over RAP's."""
    split, rap = (training_costs(name, batch, seed) for name in ("splitnn", "rap"))
    return network.seconds(split) / network.seconds(rap)


def speed_up_wan(seed: int, batch: str = "1%") -> float:
    """The same over a WAN."""
    return speed_up(seed, Network.WAN, batch)


def speed_up_lan_small_batches(seed: int) -> float:
    """On the LAN with batches of 0.1%."""
    return speed_up(seed, Network.LAN, "0.1%")


def wan_over_lan(seed: int) -> float:
    """How much larger the speed-up is over a WAN than on the LAN."""
    return speed_up_wan(seed) / speed_up(seed)


def latency_for(ratio: float, seed: int, batch: str = "1%") -> float:
    """Seconds per round, whatever causes them, at which SplitNN takes `ratio` times as long as RAP at 10 Gb/s."""
    bare = Network("no latency", 0.0, Network.LAN.bandwidth_bits_per_s)
    split, rap = (training_costs(name, batch, seed) for name in ("splitnn", "rap"))
    return (ratio * bare.seconds(rap) - bare.seconds(split)) / (split.rounds - ratio * rap.rounds)
