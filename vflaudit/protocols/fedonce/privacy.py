"""FedOnce-L1's noise (4.1): calibrated to a budget over all parties, and written down as what it is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vflaudit.accounting.events import Event, Fitted, NonPrivate, SampledGaussian
from vflaudit.accounting.parties import Division, calibrate
from vflaudit.protocols.fedonce.descent import Privacy, Training
from vflaudit.protocols.hosted import HOST

if TYPE_CHECKING:
    from vflaudit.protocols.fedonce.protocol import FedOnce, Plan

HIDDEN = "targets that were dealt anew within earlier batches"


def privacies(protocol: FedOnce, plan: Plan, guests: tuple[str, ...], people: int) -> dict[str, Privacy]:
    """Each party's noise. By moments (l1, theorem 4) all have the same sigma; `priv-baseline` divides the budget.

    Calibrated as the paper claims it: Poisson batches and sensitivity Omega, by the moments accountant's conversion.
    Whether that is true is another matter; `events` says what was really done. An infinite budget means no noise, as in
    the last line of Table 6.
    """
    stages = {HOST: plan.setting.host} | dict.fromkeys(guests, plan.setting.guest)
    if protocol.sigma is not None or math.isinf(plan.epsilon):
        sigmas = dict.fromkeys(stages, protocol.sigma or 0.0)
    else:
        sampled = Privacy(0.0, sampling=protocol.sampling)
        asked = [
            SampledGaussian(
                min(1.0, stage.batch / people),
                1.0,
                Training(stage.epochs, stage.batch, 1.0, privacy=sampled).steps(people),
            )
            for stage in stages.values()
        ]
        division: Division = "simple" if protocol.variant == "priv-baseline" else "moments"
        found = calibrate(asked, plan.epsilon, plan.delta, accountant=protocol.accountant, division=division)
        sigmas = dict(zip(stages, found, strict=True))
    return {
        party: Privacy(sigma, plan.setting.clip, protocol.clipping, protocol.sampling)
        for party, sigma in sigmas.items()
    }


def events(
    protocol: FedOnce, training: Training, people: int, largest_batch: int, *, guest: bool, standardised: bool
) -> list[Event]:
    """What one party did with its people's data, for the ledger (add or remove one person, n public).

    Sensitivities, in clips: a sample's own clipped gradient counts 1. A clipped batch gradient moves by up to 2,
    whatever changed it. Hungarian targets are dealt among the samples of a batch, so that one sample can turn every
    other one's clipped gradient around: 2 per sample of the batch. They also stay dealt: state that later steps read.
    """
    found: list[Event] = [Fitted("standardisation")] if standardised else []
    privacy = training.privacy
    if privacy is None or privacy.sigma == 0:
        return [*found, NonPrivate("gradient descent without noise")]
    dealt = guest and protocol.assignment == "hungarian"
    sensitivity = 2.0 if privacy.clipping == "batch" else 2.0 * largest_batch if dealt else 1.0
    rate, steps = min(1.0, training.batch / people), training.steps(people)
    noise = SampledGaussian(
        rate, privacy.sigma, steps, privacy.sampling, "add-remove", sensitivity, HIDDEN if dealt else None
    )
    return [*found, noise]
