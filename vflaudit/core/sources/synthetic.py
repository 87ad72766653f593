"""Synthetic people with known structure: correlation, skew, class balance and signal are dials."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Literal

import numpy as np

from vflaudit.core.dataset import Array, Column, Table, Task
from vflaudit.core.randomness import stream
from vflaudit.errors import InputError, unknown

INTERCEPT_STEPS = 60
# Numeric columns, and categorical ones with their number of categories: bank and adult as in vFedSec A.1; mimic-iii has
# the 15 columns of APC-VFL V-A, which names the first five only; the others are counts that such tables usually have.
SHAPES: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "bank": (
        ("balance", "age", "campaign", "pdays", "previous"),
        {
            "housing": 2, "loan": 2, "contact": 3, "day": 31, "month": 12, "poutcome": 4,
            "default": 2, "job": 12, "marital": 3, "education": 4,
        },
    ),
    "adult": (
        ("capital-gain", "capital-loss", "hours-per-week", "age"),
        {
            "workclass": 9, "occupation": 15, "race": 5, "marital-status": 7, "relationship": 6, "sex": 2,
            "native-country": 42, "education": 16,
        },
    ),
    "mimic-iii": (
        (
            "Age", "NumCallouts", "NumDiagnosis", "NumProcs", "NumCPTevents", "NumInput", "NumLabs", "NumMicroLabs",
            "NumNotes", "NumOutput", "NumRx", "NumProcEvents", "NumTransfers", "NumChartEvents", "TotalNumInteract",
        ),
        {},
    ),
}  # fmt: skip


def synthetic(
    *,
    rows: int = 1000,
    features: int = 16,
    classes: int = 2,
    correlation: float = 0.3,
    skew: float = 0.0,
    balance: float = 0.5,
    categorical: int = 0,
    categories: int = 4,
    signal: float = 1.0,
    task: Task = "classification",
    shape: Literal["bank", "adult", "mimic-iii"] | None = None,
    seed: int = 0,
) -> Table:
    """Synthetic people: correlation, skew, class balance, categories and signal as you set them.

    Every column comes from a Gaussian that shares one factor with all others. `features` numeric columns have
    mean 0, variance 1 and pairwise Pearson correlation `correlation`; with `skew` s > 0 they are shifted
    log-normal, exp(s z), whose skewness is (exp(s^2) + 2) sqrt(exp(s^2) - 1). Another `categorical` columns
    are Gaussians cut into `categories` equally likely values.

    The label is drawn from a softmax over linear scores of the Gaussians, each of variance `signal` squared,
    with intercepts fitted to the class shares: class k has a share proportional to ((1 - balance) /
    balance)^k, so that `balance` is the share of class 0 when there are two classes and 0.5 means equal
    shares for any number. In a regression the label is one such score plus standard normal noise.

    `shape` gives the columns the names and numbers of categories that vFedSec (A.1) or APC-VFL (V-A) use of that
    dataset, in place of `features`, `categorical` and `categories`; the values stay synthetic. MIMIC-III may not be
    passed on: `synthetic:shape=mimic-iii,rows=20000,classes=4,skew=1` stands in for its shape, and for nothing else.
    """
    _check("rows", rows, int, 1, 100_000_000)
    _check("features", features, int, 1, 100_000)
    _check("classes", classes, int, 2, 1000)
    _check("correlation", correlation, float, 0.0, 0.999)
    _check("skew", skew, float, 0.0, 2.0)
    _check("balance", balance, float, 0.001, 0.999)
    _check("categorical", categorical, int, 0, 100_000)
    _check("categories", categories, int, 2, 1000)
    _check("signal", signal, float, 0.0, 100.0)
    numeric, counts = ([f"x{k + 1}" for k in range(features)], {f"c{k + 1}": categories for k in range(categorical)})
    if shape is not None:
        if shape not in SHAPES:
            raise unknown("shape", shape, SHAPES)
        numeric, counts = list(SHAPES[shape][0]), dict(SHAPES[shape][1])
    if task not in ("classification", "regression"):
        raise unknown("task", task, ("classification", "regression"))

    shares = _shares(classes, balance)
    if task == "classification" and rows * shares.min() < 1:
        raise InputError(
            f"dataset 'synthetic': balance={balance:g} with {classes} classes leaves a class without any "
            f"of the {rows} rows: bring balance closer to 0.5 or ask for more rows"
        )

    shared = _latent_correlation(correlation, skew)
    latent = _equicorrelated(rows, len(numeric) + len(counts), shared, seed)
    values = latent.copy()
    values[:, : len(numeric)] = _skewed(latent[:, : len(numeric)], skew)
    for position, count in enumerate(counts.values(), start=len(numeric)):
        cuts = [NormalDist().inv_cdf(k / count) for k in range(1, count)]
        values[:, position] = np.searchsorted(cuts, latent[:, position])
    if task == "classification":
        labels = _class_labels(latent, shared, signal, shares, seed)
    else:
        noise = stream(seed, "synthetic", "noise").normal(size=rows)
        labels = signal * _scores(latent, shared, 1, seed)[:, 0] + noise
    names = tuple(str(k) for k in range(classes)) if task == "classification" else ()
    notes = f"correlation={correlation:g}, skew={skew:g}, balance={balance:g}, signal={signal:g}, seed={seed}"
    name = "synthetic" if shape is None else f"synthetic (shape of {shape})"
    return Table(name, _columns(numeric, counts), values, labels, task, names, notes=notes)


def _check(name: str, value: object, kind: Callable[..., object], low: float, high: float) -> None:
    accepted = (int, np.integer) if kind is int else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, accepted) or not low <= value <= high:
        word = "whole number" if kind is int else "number"
        raise InputError(f"dataset 'synthetic': {name}={value!r} is not a {word} from {low:g} to {high:g}")


def _columns(numeric: list[str], counts: dict[str, int]) -> tuple[Column, ...]:
    return (
        *(Column(name) for name in numeric),
        *(Column(name, "categorical", tuple(f"v{k + 1}" for k in range(count))) for name, count in counts.items()),
    )


def _latent_correlation(correlation: float, skew: float) -> float:
    """The Gaussian correlation that leaves `correlation` between the columns once they are log-normal."""
    if skew == 0.0:
        return correlation
    return float(np.log1p(correlation * np.expm1(skew**2)) / skew**2)


def _equicorrelated(rows: int, width: int, correlation: float, seed: int) -> Array:
    factor = stream(seed, "synthetic", "factor").normal(size=(rows, 1))
    own = stream(seed, "synthetic", "own").normal(size=(rows, width))
    return np.sqrt(correlation) * factor + np.sqrt(1.0 - correlation) * own


def _skewed(latent: Array, skew: float) -> Array:
    """exp(skew z), standardised with the log-normal's exact mean and variance."""
    if skew == 0.0:
        return latent
    square = skew**2
    return (np.exp(skew * latent) - np.exp(square / 2)) / np.sqrt(np.expm1(square) * np.exp(square))


def _scores(latent: Array, correlation: float, count: int, seed: int) -> Array:
    """Random linear scores of variance exactly 1 under the equicorrelated Gaussian."""
    weights = stream(seed, "synthetic", "weights").normal(size=(latent.shape[1], count))
    variance = correlation * weights.sum(0) ** 2 + (1.0 - correlation) * (weights**2).sum(0)
    return latent @ (weights / np.sqrt(variance))


def _shares(classes: int, balance: float) -> Array:
    # In logarithms: a ratio to the power of hundreds of classes would overflow.
    logs = np.arange(classes) * (np.log1p(-balance) - np.log(balance))
    shares = np.exp(logs - logs.max())
    return shares / shares.sum()


def _class_labels(latent: Array, correlation: float, signal: float, shares: Array, seed: int) -> Array:
    logits = signal * _scores(latent, correlation, len(shares), seed) + np.log(shares)
    for _ in range(INTERCEPT_STEPS):
        logits += np.log(shares) - np.log(np.maximum(_softmax(logits).mean(0), 1e-12))
    cumulative = _softmax(logits).cumsum(1)
    draw = stream(seed, "synthetic", "labels").random((len(latent), 1))
    return np.minimum((draw > cumulative).sum(1), len(shares) - 1)


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
