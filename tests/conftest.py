"""Runs that several tests look at, done once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings

import vflaudit as va
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.run import Run

torch.set_num_threads(1)
settings.register_profile(
    "vflaudit", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("vflaudit")


@pytest.fixture(scope="session")
def cancer() -> VerticalDataset:
    """Breast cancer, four clients."""
    return va.load_dataset("breast-cancer", parties=4)


@pytest.fixture(scope="session")
def splitnn_run(cancer: VerticalDataset) -> Run:
    """SplitNN on it, as the paper trains it."""
    return va.load_protocol("splitnn").run(cancer, seed=0)


@pytest.fixture(scope="session")
def short_run(cancer: VerticalDataset) -> Run:
    """SplitNN on it, two epochs."""
    return va.load_protocol("splitnn", max_epochs=2).run(cancer, seed=0)


@pytest.fixture(scope="session")
def centralized_run(cancer: VerticalDataset) -> Run:
    """Centralized training on it: everything leaks."""
    return va.load_protocol("centralized", max_epochs=2).run(cancer, seed=0)


@pytest.fixture(scope="session")
def ideal_run(cancer: VerticalDataset) -> Run:
    """An ideal protocol on it: nothing leaks."""
    return va.load_protocol("ideal", max_epochs=2).run(cancer, seed=0)
