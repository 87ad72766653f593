"""vflaudit: a privacy attack-and-audit lab for vertical federated learning.

    import vflaudit as va
    import attacks

    data = va.load_dataset("breast-cancer", parties=4)
    run = va.load_protocol("splitnn").run(data, seed=0)
    adversary = va.Adversary(corrupts={"server"}, knows=[va.KnownSamples(50, with_ids=True)])
    guess = attacks.RepresentationInversion().run(run.view(adversary), seed=0)
    print(va.Reconstruction(party="client1").score(run, guess))

Names are imported on first use, so that `import vflaudit` is cheap.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "InputError": "vflaudit.errors",
    "VerticalDataset": "vflaudit.core.dataset",
    "Table": "vflaudit.core.dataset",
    "Column": "vflaudit.core.dataset",
    "load_dataset": "vflaudit.core.loading",
    "Transcript": "vflaudit.core.transcript",
    "Message": "vflaudit.core.transcript",
    "Recording": "vflaudit.core.transcript",
    "Network": "vflaudit.core.costs",
    "Run": "vflaudit.core.run",
    "View": "vflaudit.core.view",
    **dict.fromkeys(
        (
            "Adversary",
            "KnownSamples",
            "DistributionSample",
            "FeatureMeans",
            "Moments",
            "ClassPriors",
            "LabeledSamples",
            "ReleasedModel",
        ),
        "vflaudit.core.adversary",
    ),
    **dict.fromkeys(
        (
            "Reconstruction",
            "LabelInference",
            "Membership",
            "Reidentification",
            "Distinguishing",
            "Guess",
            "Score",
        ),
        "vflaudit.core.games",
    ),
}


def load_protocol(name: str, **parameters: Any) -> Any:
    """A protocol by its name, with parameters: `load_protocol("splitnn", batch_size=32)`."""
    from vflaudit import registry
    from vflaudit.core.config import configure

    return configure(registry.load("protocols", name), parameters, f"protocol {name!r}")


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'vflaudit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_HOME, "load_protocol", "__version__"]
