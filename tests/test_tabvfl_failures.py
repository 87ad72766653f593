"""Client failures (IV-E), drawn and real: who is offline, what the host does, and what a killed process leaves."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vflaudit as va
from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.run import Run
from vflaudit.protocols.hosted import HOST
from vflaudit.protocols.tabvfl.failures import Attendance, Cache, Silent
from vflaudit.protocols.tabvfl.guest import Guest
from vflaudit.protocols.tabvfl.processes import RemoteGuest
from vflaudit.protocols.tabvfl.protocol import TabVFL

SHORT: dict[str, Any] = {"pretrain_epochs": 2, "finetune_epochs": 2, "steps": 2, "patience": None}


@pytest.fixture(scope="module")
def cells() -> VerticalDataset:
    """120 people at two guests, as in the paper's experiment on failures: 84 to train on, two batches an epoch."""
    return va.load_dataset("breast-cancer", parties=2, rows=120, aux=0.0, shares=(0.7, 0.15, 0.15))


def senders(run: Run, epoch: int) -> list[set[str]]:
    """Guests that sent something about each batch of an epoch."""
    found: dict[int, set[str]] = {}
    for message in run.transcript.select(epoch=epoch, receiver=HOST):
        if message.kind in ("intermediate", "representation"):
            found.setdefault(message.step, set()).add(message.sender)
    return list(found.values())


# --- drawn ---------------------------------------------------------------------------------------------------


def test_guests_are_offline_as_often_as_asked_and_never_in_the_first_epoch() -> None:
    guests = ("a", "b", "c")
    attendance = Attendance(guests, 0.35, np.random.default_rng(0))
    attendance.begin(0)
    assert attendance.online == guests
    counts = dict.fromkeys(guests, 0)
    for epoch in range(1, 2001):
        attendance.begin(epoch)
        online = attendance.online
        attendance.begin(epoch)  # the next batch of the same epoch
        assert attendance.online == online
        for guest in online:
            counts[guest] += 1
    assert all(abs(count / 2000 - 0.65) < 0.04 for count in counts.values())
    assert attendance.missed == 6000 - sum(counts.values())


@pytest.mark.parametrize("remedy", ["cache", "zeros"])
def test_what_was_last_sent_about_a_row_stands_in(remedy: Any) -> None:
    cache = Cache(6, {"a": {"values": (2,), "mask": (3,)}}, remedy)
    cache.store("a", np.array([4, 1]), {"values": np.array([[1, 2], [3, 4]]), "mask": np.ones((2, 3))})
    cache.store("a", np.array([1]), {"values": np.array([[5, 6]]), "mask": np.zeros((1, 3))})
    found = cache.recall("a", np.array([1, 4, 0]))
    assert found["values"].shape == (3, 2) and found["mask"].shape == (3, 3)
    if remedy == "zeros":
        assert not found["values"].any() and not found["mask"].any()
    else:
        assert found["values"].tolist() == [[5, 6], [1, 2], [0, 0]] and found["mask"].sum(axis=1).tolist() == [0, 3, 0]


@pytest.mark.parametrize("variant", ["tabvfl", "le"])
def test_guests_that_are_always_offline_learn_in_the_first_epoch_only(cells: VerticalDataset, variant: str) -> None:
    gone = TabVFL(**{**SHORT, "pretrain_epochs": 4, "finetune_epochs": 0}, variant=variant, p_fail=1.0).run(cells)
    once = TabVFL(**{**SHORT, "pretrain_epochs": 1, "finetune_epochs": 0}, variant=variant).run(cells)
    assert senders(gone, 0) == [{"guest1", "guest2"}] * 2
    assert gone.transcript.epochs() == (0,)  # afterwards nobody says anything, and nobody is told anything
    for name, value in once.states["guest1"].parameters.items():
        np.testing.assert_array_equal(value, gone.states["guest1"].parameters[name])
    assert gone.utility["offline_epochs"] == 6


def test_an_offline_guest_misses_whole_epochs_and_the_host_goes_on_with_the_cache(cells: VerticalDataset) -> None:
    protocol = {**SHORT, "pretrain_epochs": 6, "finetune_epochs": 6, "p_fail": 0.5}
    run = TabVFL(**protocol).run(cells)
    present = [senders(run, epoch) for epoch in range(12)]
    for epoch, batches in enumerate(present):
        assert all(batch == batches[0] for batch in batches)
        if epoch in (0, 6):
            assert batches == [{"guest1", "guest2"}] * 2
    assert {len(batches[0]) if batches else 0 for batches in present} >= {1, 2}
    missed = sum(2 - (len(batches[0]) if batches else 0) for batches in present)
    assert run.utility["offline_epochs"] == missed
    for epoch, batches in enumerate(present):  # no gradient for whoever is away
        told = {message.receiver for message in run.transcript.select(epoch=epoch, sender=HOST)}
        assert told == (batches[0] if batches else set())


def test_cached_results_come_with_their_own_masks(cells: VerticalDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the host feeds to its encoder for an offline guest is exactly what that guest sent before."""
    from vflaudit.protocols.tabvfl.blocks import ConcatHead

    fed: list[tuple[Array, Array]] = []
    steps = ConcatHead.steps

    def spy(self: ConcatHead, parts: Any, masks: Any) -> Any:
        fed.append((parts[0].detach().numpy().copy(), masks[0].numpy().copy()))
        return steps(self, parts, masks)

    monkeypatch.setattr(ConcatHead, "steps", spy)
    settings = {**SHORT, "pretrain_epochs": 2, "finetune_epochs": 0, "p_fail": 1.0}
    for remedy in ("cache", "zeros"):
        fed.clear()
        run = TabVFL(**settings, on_failure=remedy).run(cells)
        online = list(run.transcript.select(sender="guest1", kind="intermediate"))
        assert len(online) == 2 and len(fed) == 4
        for message, first, second in zip(online, fed[:2], fed[2:], strict=True):
            np.testing.assert_array_equal(message.arrays["values"], first[0])
            for name, value, stood_in in zip(("values", "mask"), first, second, strict=True):
                wanted = message.arrays[name] if remedy == "cache" else np.zeros_like(value)
                np.testing.assert_array_equal(stood_in, wanted)


# --- real ----------------------------------------------------------------------------------------------------


def at_call(number: int, party: str, action: Callable[[Any], None]) -> Callable[..., Any]:
    """`represent` of a guest, with an action before the given call of the given guest."""
    calls = {"": 0}

    def wrap(represent: Callable[..., Any]) -> Callable[..., Any]:
        def represented(self: Any, rows: Array, **how: Any) -> Any:
            if self.party == party:
                calls[""] += 1
                if calls[""] >= number:
                    action(self)
            return represent(self, rows, **how)

        return represented

    return wrap


def test_processes_say_the_same_and_a_killed_one_neither_stops_nor_corrupts_training(
    cells: VerticalDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(guest: RemoteGuest) -> None:
        guest.process.kill()
        guest.process.wait()

    def fall_silent(guest: Guest) -> None:
        raise Silent

    with monkeypatch.context() as patch:  # in this process: guest2 answers three times, then never again
        patch.setattr(Guest, "represent", at_call(4, "guest2", fall_silent)(Guest.represent))
        patch.setattr(Guest, "parameters", _silent_if(Guest.parameters))
        expected = TabVFL(**SHORT).run(cells)
    with monkeypatch.context() as patch:  # in processes: it is killed at the same place, in the middle of an epoch
        patch.setattr(RemoteGuest, "represent", at_call(4, "guest2", kill)(RemoteGuest.represent))
        start = time.monotonic()
        run = TabVFL(**SHORT, processes=True).run(cells)
        assert time.monotonic() - start < 100
    assert senders(run, 1) == [{"guest1", "guest2"}, {"guest1"}]
    assert senders(run, 2) == senders(run, 3) == [{"guest1"}] * 2
    assert run.transcript.digest() == expected.transcript.digest()
    for party in (HOST, "guest1"):
        for name, value in expected.states[party].parameters.items():
            np.testing.assert_array_equal(value, run.states[party].parameters[name])
    assert not run.states["guest2"].parameters and run.states["guest1"].parameters
    found = run.model.predict({party: block.values for party, block in run.data.blocks.items()})
    assert found.shape == (120, 2) and np.isfinite(found).all()


def _silent_if(parameters: Callable[[Guest], Any]) -> Callable[[Guest], Any]:
    def asked(self: Guest) -> Any:
        if self.party == "guest2":
            raise Silent
        return parameters(self)

    return asked


def test_a_guest_that_hangs_is_left_out_and_its_late_answer_is_not_taken_for_another_batch(
    cells: VerticalDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = {"": 0}
    represent = RemoteGuest.represent

    def hang(self: RemoteGuest, rows: Array, **how: Any) -> dict[str, Array]:
        calls[""] += self.party == "guest2"
        if self.party == "guest2" and calls[""] == 2:
            os.kill(self.process.pid, signal.SIGSTOP)
        if self.party == "guest2" and calls[""] == 3:  # the first batch of the next epoch
            os.kill(self.process.pid, signal.SIGCONT)
            assert self.connection.poll(30)  # its late answer is here
        return represent(self, rows, **how)

    monkeypatch.setattr(RemoteGuest, "represent", hang)
    run = TabVFL(**{**SHORT, "finetune_epochs": 0}, processes=True, timeout=4.0, batch_size=42).run(cells)
    assert senders(run, 0) == [{"guest1", "guest2"}, {"guest1"}]
    assert senders(run, 1) == [{"guest1", "guest2"}] * 2
    assert run.utility["offline_epochs"] == 1 and run.states["guest2"].parameters
    for message in run.transcript.select(kind="intermediate"):  # every answer is about the batch that it is for
        columns = run.data.block(message.sender).values[message.rows] * (1 - message.arrays["mask"])
        inputs, values = np.hstack([columns, np.ones((42, 1))]), message.arrays["values"].astype(float)
        rest = values - inputs @ np.linalg.lstsq(inputs, values, rcond=None)[0]
        assert np.linalg.norm(rest) < 1e-5 * np.linalg.norm(values)
