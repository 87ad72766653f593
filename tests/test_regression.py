"""The learners behind attacks and baselines: leave-one-out by formula equals leave-one-out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vflaudit.core import regression
from vflaudit.core.regression import SCALES, Fit, constant, fits, kernel_ridge, linear_ridge, mlp

STRENGTHS = np.logspace(-9, 4, 27)


def kernel(option: tuple[str, float], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Linear, or a Gaussian of the mean squared difference over columns."""
    if option[0] == "linear":
        return a @ b.T
    return np.exp(-option[1] * ((a[:, None] - b[None]) ** 2).mean(axis=2))


def refit(option: tuple[str, float], x: np.ndarray, y: np.ndarray, new: np.ndarray, strength: float) -> np.ndarray:
    """Kernel ridge with a free constant, solved as one linear system: (K + s I) w + c 1 = y, 1'w = 0."""
    count = len(x)
    system = np.zeros((count + 1, count + 1))
    system[:count, :count] = kernel(option, x, x) + strength * np.eye(count)
    system[:count, count] = system[count, :count] = 1
    solved = np.linalg.solve(system, np.vstack([y, np.zeros((1, y.shape[1]))]))
    return kernel(option, new, x) @ solved[:count] + solved[count]


def by_hand(
    kind: str, x: np.ndarray, y: np.ndarray, new: np.ndarray, strengths: np.ndarray = STRENGTHS, mean: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """(squared left-out errors, predictions) of the best strength and width per target, each left out one by one."""
    options = [("linear", 0.0)] if kind == "linear" else [("rbf", width) for width in (0.01, 0.1, 0.3, 1.0)]
    errors = np.array([(y[row] - np.delete(y, row, axis=0).mean(axis=0)) ** 2 for row in range(len(y))])
    if not mean:
        errors[:] = np.inf
    best, guesses = errors.mean(axis=0), np.tile(y.mean(axis=0), (len(new), 1))  # the mean, unless something beats it
    for option in options:
        gram = kernel(option, x, x)
        centring = np.eye(len(x)) - 1 / len(x)
        top = np.linalg.eigvalsh(centring @ gram @ centring)[-1]
        for strength in strengths * top:
            left_out = np.empty_like(y)
            for row in range(len(x)):
                rest = np.arange(len(x)) != row
                left_out[row] = refit(option, x[rest], y[rest], x[[row]], strength)[0] - y[row]
            loss = (left_out**2).mean(axis=0)
            better = loss < best * (1 - 1e-9)
            best[better] = loss[better]
            errors[:, better] = left_out[:, better] ** 2
            guesses[:, better] = refit(option, x, y, new, strength)[:, better]
    return errors, guesses


def problem(count: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, width)) * rng.uniform(0.5, 3, width) + rng.normal(size=width)
    weights = rng.normal(size=(width, 3))
    y = x @ weights + rng.normal(size=(count, 3)) * [0.1, 1.0, 10.0]
    return x, y, rng.normal(size=(8, width))


@pytest.mark.parametrize("scaling", SCALES)
@pytest.mark.parametrize("kind", ["linear", "rbf"])
@pytest.mark.parametrize(("count", "width"), [(12, 3), (25, 6), (8, 15)])
def test_leave_one_out_equals_refits(kind: str, scaling: str, count: int, width: int) -> None:
    x, y, new = problem(count, width, seed=count)
    fit = kernel_ridge(x, y, kind, scaling)
    scale = SCALES[scaling](x)
    errors, guesses = by_hand(kind, scale(x), y, scale(new))
    np.testing.assert_allclose(fit.errors, errors, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(fit.predict(new), guesses, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("strength", [1e-9, 1e-7, 1e-4, 1.0])
@pytest.mark.parametrize("kind", ["linear", "rbf"])
@pytest.mark.parametrize(("count", "width"), [(12, 3), (8, 15), (30, 64)])
def test_leave_one_out_at_one_strength(
    monkeypatch: pytest.MonkeyPatch, kind: str, strength: float, count: int, width: int
) -> None:
    """Also at the smallest strengths, where errors could be understated unnoticed because others are chosen."""
    x, y, _ = problem(count, width, seed=1)
    monkeypatch.setattr(regression.np, "logspace", lambda *a: np.array([strength]))
    monkeypatch.setattr(regression, "constant", lambda y: Fit("mean", lambda new: new, np.full_like(y, np.inf)))
    fit = kernel_ridge(x, y, kind)
    errors, _ = by_hand(kind, SCALES[""](x)(x), y, x, np.array([strength]), mean=False)
    np.testing.assert_allclose(fit.errors, errors, rtol=1e-4, atol=1e-6)


@given(count=st.integers(8, 40), width=st.integers(1, 6), seed=st.integers(0, 99))
def test_a_noiseless_linear_map_is_recovered(count: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, new = rng.normal(size=(count + width, width)), rng.normal(size=(10, width))
    weights, start = rng.normal(size=(width, 4)), rng.normal(size=4)
    y = x @ weights + start
    for scaling in SCALES:
        fit = kernel_ridge(x, y, "linear", scaling)
        np.testing.assert_allclose(fit.predict(new), new @ weights + start, atol=1e-4)
        assert fit.mse < 1e-6


def test_primal_and_dual_agree() -> None:
    x, y, new = problem(300, 5, seed=2)
    primal, dual = linear_ridge(x, y), kernel_ridge(x, y, "linear", ", columns scaled")
    np.testing.assert_allclose(primal.predict(new), dual.predict(new), rtol=0.05, atol=0.3)
    np.testing.assert_allclose(primal.errors.mean(axis=0), dual.errors.mean(axis=0), rtol=0.02)


@pytest.mark.parametrize("kind", ["linear", "rbf"])
@pytest.mark.parametrize("scaling", SCALES)
def test_constant_columns_and_targets(kind: str, scaling: str) -> None:
    x, y, new = problem(15, 3, seed=3)
    wide = np.hstack([x, np.full((15, 2), 7.0)])
    y[:, 1] = 4.0
    plain, padded = kernel_ridge(x, y, kind, scaling), kernel_ridge(wide, y, kind, scaling)
    guess = padded.predict(np.hstack([new, np.full((8, 2), 7.0)]))
    assert np.isfinite(guess).all() and np.isfinite(padded.errors).all()
    np.testing.assert_allclose(guess[:, 1], 4.0, atol=1e-9)
    if kind == "linear":
        np.testing.assert_allclose(guess, plain.predict(new), rtol=1e-3, atol=1e-3)
    useless = kernel_ridge(np.full((15, 2), 7.0), y, kind, scaling)  # nothing but constants: the mean
    np.testing.assert_allclose(useless.predict(np.full((4, 2), 7.0)), np.tile(y.mean(axis=0), (4, 1)), atol=1e-9)


@pytest.mark.parametrize("kind", ["linear", "rbf"])
@pytest.mark.parametrize("scaling", SCALES)
def test_three_examples(kind: str, scaling: str) -> None:
    x, y, new = problem(3, 4, seed=4)
    fit = kernel_ridge(x, y, kind, scaling)
    assert fit.errors.shape == y.shape and np.isfinite(fit.errors).all()
    assert np.abs(fit.predict(new)).max() < 100 * np.abs(y).max()


@pytest.mark.parametrize("kind", ["linear", "rbf"])
@pytest.mark.parametrize("scaling", SCALES)
@pytest.mark.parametrize("seed", range(5))
def test_a_unit_that_was_active_once_does_not_blow_up(kind: str, scaling: str, seed: int) -> None:
    """A ReLU unit that a single example moved a little, and that new rows move a lot."""
    x, y, new = problem(20, 4, seed=seed)
    lonely = np.zeros((20, 1))
    lonely[3] = 1e-3
    busy = np.full((8, 1), 2.0)
    without = kernel_ridge(x, y, kind, scaling).predict(new)
    having = kernel_ridge(np.hstack([x, lonely]), y, kind, scaling).predict(np.hstack([new, busy]))
    assert np.abs(having - without).max() < 3 * y.std(axis=0).max()


def test_the_mean_with_and_without_knowing_it() -> None:
    y = np.array([[0.0], [3.0], [6.0]])
    fit = constant(y)
    np.testing.assert_allclose(fit.predict(np.zeros((2, 5))), [[3], [3]])
    np.testing.assert_allclose(fit.errors, [[4.5**2], [0], [4.5**2]])  # left out: 0 from (3 + 6) / 2
    told = constant(y, np.array([1.0]))
    np.testing.assert_allclose(told.errors, [[1], [4], [25]])
    assert constant(y[:1]).errors.shape == (1, 1)


def test_the_perceptron_learns_what_a_line_cannot() -> None:
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(200, 2)), rng.normal(size=(200, 2))
    curve = lambda z: np.stack([np.abs(z[:, 0]), z[:, 0] * z[:, 1]], axis=1)
    fit = mlp(x, curve(x), seed=0)
    error = ((fit.predict(new) - curve(new)) ** 2).mean()
    assert error < 0.3 * curve(new).var(axis=0).mean()
    assert 0.2 < fit.mse / error < 5  # and says so
    again = mlp(x, curve(x), seed=0)
    np.testing.assert_array_equal(fit.predict(new), again.predict(new))
    single = mlp(x, curve(x)[:, :1], seed=0)
    assert single.predict(new).shape == (200, 1)


def test_which_learners_make_sense() -> None:
    x, y, _ = problem(30, 3, seed=5)
    assert fits(x[:, :0], y, 0) == [] and fits(x[:2], y[:2], 0) == []
    assert [fit.name for fit in fits(x[:10], y[:10], 0)] == [
        "ridge",
        "ridge, columns scaled",
        "kernel ridge",
        "kernel ridge, columns scaled",
    ]
    assert fits(x, y, 0)[-1].name == "mlp"
    assert {fit.name.split(",")[0] for fit in fits(x, y, 0, learners=("ridge",))} == {"ridge"}
