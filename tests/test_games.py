"""Games against scores worked out by hand or by scikit-learn, and the floor under all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import r2_score, roc_auc_score

import vflaudit as va
from attacks.random_guess import RandomGuess
from vflaudit.core.adversary import Adversary
from vflaudit.core.dataset import Block, Column, VerticalDataset
from vflaudit.core.games import GAMES, Game, Guess, RowGuess, Score
from vflaudit.core.run import Model, ProtocolSpec, Run
from vflaudit.core.transcript import Transcript
from vflaudit.core.wire import Wire

SERVER = Adversary({"server"})


def quiet_run(data: VerticalDataset, seed: int = 0) -> Run:
    """A run in which nobody says anything: cheap, and enough to score guesses."""
    parties = ("server", *data.parties, "label_owner")
    spec = ProtocolSpec(
        "silence",
        {},
        parties,
        {party: block.columns for party, block in data.blocks.items()},
        data.task,
        data.classes,
        data.label_owner,
        len(data),
        data.standardised,
    )
    states = va.load_protocol("centralized", max_epochs=1, hidden=1).run(data).states
    wire = Wire(parties, Transcript())
    return Run(spec, data, wire.transcript, states, Model(lambda features: np.zeros(1)), wire.costs, {}, seed)


def data_of(spec: str = "synthetic:rows=200,features=6", **more: Any) -> VerticalDataset:
    return va.load_protocol("centralized").prepare(va.load_dataset(spec, parties=2, **more))


@pytest.fixture(scope="module")
def run() -> Run:
    return quiet_run(data_of())


def row_guess(run: Run, values: np.ndarray, adversary: Adversary = SERVER, rows: np.ndarray | None = None) -> Guess:
    rows = np.arange(len(run.data)) if rows is None else rows
    return Guess("test", adversary, features={"client1": RowGuess(rows, values)})


def reconstruct(run: Run, values: np.ndarray, adversary: Adversary = SERVER, **more: Any) -> Score:
    return va.Reconstruction(party="client1").score(run, row_guess(run, values, adversary, **more))


# --- reconstruction -----------------------------------------------------------------------------------------


def test_a_perfect_guess(run: Run) -> None:
    score = reconstruct(run, run.data.blocks["client1"].values)
    assert score.score == 1 and score.baseline == 0 and score.advantage == 1
    assert score.interval == (1, 1) and score.rows == len(run.data.aligned("train"))
    metrics = score.metrics
    assert metrics["relative_error"] == 0 and metrics["cells_recovered"] == 1
    assert metrics["abs_correlation"] == pytest.approx(1) and set(metrics["r2_by_column"].values()) == {1.0}


def test_a_mean_guess(run: Run) -> None:
    train = run.data.aligned("train")
    truth = run.data.blocks["client1"].values
    score = reconstruct(run, np.tile(truth[train].mean(axis=0), (len(truth), 1)))
    assert score.score == pytest.approx(0, abs=1e-12) and score.advantage == pytest.approx(0, abs=1e-12)
    assert score.metrics["abs_correlation"] == 0 and score.metrics["baseline_source"] == "mean"


def test_r2_is_that_of_scikit_learn(run: Run) -> None:
    truth, train = run.data.blocks["client1"].values, run.data.aligned("train")
    values = truth + np.random.default_rng(0).normal(size=truth.shape) * [0.1, 0.5, 1.5]
    score = reconstruct(run, values)
    assert score.score == pytest.approx(r2_score(truth[train], values[train]))
    by_column = r2_score(truth[train], values[train], multioutput="raw_values")
    np.testing.assert_allclose(list(score.metrics["r2_by_column"].values()), by_column)
    error = np.linalg.norm(truth[train] - values[train]) / np.linalg.norm(truth[train])
    assert score.metrics["relative_error"] == pytest.approx(error)
    close = np.abs(values[train] - truth[train]) <= 0.05 * truth[train].std(axis=0)
    assert score.metrics["cells_recovered"] == pytest.approx(close.mean())
    low, high = score.interval
    assert low < score.advantage < high and high - low < 1


def test_known_rows_are_excluded(run: Run) -> None:
    """Guessing known rows right and all others at their mean is worth nothing."""
    adversary = Adversary({"server"}, [va.KnownSamples(40)])
    truth, known = run.data.blocks["client1"].values, adversary.known_rows(run)
    rows = run.score_rows(adversary)
    values = np.tile(truth[rows].mean(axis=0), (len(truth), 1))
    values[known] = truth[known]
    score = reconstruct(run, values, adversary)
    assert score.score == pytest.approx(0, abs=1e-12) and score.rows == len(rows) == len(run.data.aligned("train")) - 40
    values[known] = 1e6  # nor does being wrong about them cost anything
    assert reconstruct(run, values, adversary).score == pytest.approx(0, abs=1e-12)


def test_rows_without_a_guess_count_as_the_mean(run: Run) -> None:
    truth, train = run.data.blocks["client1"].values, run.data.aligned("train")
    half = train[: len(train) // 2]
    filled = np.tile(truth[train].mean(axis=0), (len(truth), 1))
    filled[half] = truth[half]
    score = reconstruct(run, truth[half[::-1]], rows=half[::-1])
    assert score.score == pytest.approx(r2_score(truth[train], filled[train])) and 0.2 < score.score < 0.8
    nothing = reconstruct(run, truth[:0], rows=np.arange(0))
    assert nothing.score == pytest.approx(0, abs=1e-12)


def test_rows_that_are_not_scored_do_not_matter(run: Run) -> None:
    truth = np.array(run.data.blocks["client1"].values)
    truth[run.data.split["test"]] = -99
    assert reconstruct(run, truth).score == 1


def test_bad_reconstruction_guesses(run: Run) -> None:
    truth = run.data.blocks["client1"].values
    with pytest.raises(va.InputError, match="2\\) values for 3 columns"):
        reconstruct(run, truth[:, :2])
    with pytest.raises(va.InputError, match="values for 3 columns"):
        reconstruct(run, truth[:, 0])
    with pytest.raises(va.InputError, match="names 3 rows but gives"):
        reconstruct(run, truth, rows=np.arange(3))
    bad = np.array(truth)
    bad[0, 0] = np.nan
    with pytest.raises(va.InputError, match="not a finite number"):
        reconstruct(run, bad)
    with pytest.raises(va.InputError, match="'client1' is corrupted"):
        reconstruct(run, truth, Adversary({"client1"}))
    with pytest.raises(va.InputError, match="made no guess about 'client1'"):
        va.Reconstruction(party="client1").score(run, Guess("test", SERVER))
    with pytest.raises(va.InputError, match="did you mean 'client1'"):
        va.Reconstruction(party="clinet1").score(run, row_guess(run, truth))
    almost = Adversary({"server"}, [va.KnownSamples(len(run.data.aligned("train")) - 2)])
    with pytest.raises(va.InputError, match="nothing to score: 2 unknown rows"):
        reconstruct(run, truth, almost)


def with_block(run: Run, columns: tuple[Column, ...], values: np.ndarray) -> Run:
    block = Block(columns, values, np.ones(len(values)))
    data = replace(run.data, blocks={**run.data.blocks, "client1": block}, aux=None, standardised=False)
    spec = replace(run.spec, columns={**run.spec.columns, "client1": columns}, standardised=False)
    return replace(run, data=data, spec=spec)


def test_categories_by_hand_and_rows_without_one(run: Run) -> None:
    columns = (Column("x"), *(Column(f"c={k}", "indicator", group="c") for k in "abc"))
    rng, count = np.random.default_rng(0), len(run.data)
    codes = rng.choice(3, size=count, p=[0.6, 0.3, 0.1])
    values = np.hstack([rng.normal(size=(count, 1)), np.eye(3)[codes]])
    train = run.data.aligned("train")
    values[train[:10], 1:] = 0  # ten people of whom the category is not known
    made = with_block(run, columns, values)
    guess = np.array(values)
    guess[train[20:30], 1:] = np.eye(3)[(codes[train[20:30]] + 1) % 3]  # ten people wrong
    guess[train[:10], 1:] = np.eye(3)[0]  # not counted
    told = len(train) - 10
    score = reconstruct(made, guess)
    assert score.metrics["category_accuracy"] == pytest.approx((told - 10) / told)
    assert score.metrics["category_accuracy_by_column"] == {"c": score.metrics["category_accuracy"]}
    assert score.metrics["category_accuracy_baseline"] == pytest.approx((codes[train[10:]] == 0).mean())
    nobody = np.array(values)
    nobody[:, 1:] = 0
    assert "category_accuracy" not in reconstruct(with_block(run, columns, nobody), guess).metrics


def test_constant_columns_are_left_out(run: Run) -> None:
    values = np.random.default_rng(0).normal(size=(len(run.data), 2))
    values[:, 1] = 5.0
    made = with_block(run, (Column("a"), Column("b")), values)
    guess = np.array(values)
    guess[:, 1] = -100
    score = reconstruct(made, guess)
    assert score.score == 1 and set(score.metrics["r2_by_column"]) == {"a"}
    values[:, 0] = 2.0
    with pytest.raises(va.InputError, match="0 varying columns"):
        reconstruct(with_block(run, (Column("a"), Column("b")), values), guess)


# --- the baseline -------------------------------------------------------------------------------------------


def linked_run() -> Run:
    """client1 is a linear map of client2, plus a little noise."""
    data = data_of("synthetic:rows=400,features=8")
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(4, 4))

    def linked(source: VerticalDataset) -> dict[str, Block]:
        other = source.blocks["client2"].values
        mine = other @ weights + 0.1 * rng.normal(size=other.shape)
        return {"client1": replace(source.blocks["client1"], values=mine), "client2": source.blocks["client2"]}

    assert data.aux is not None
    data = replace(data, blocks=linked(data), aux=replace(data.aux, blocks=linked(data.aux)), standardised=False)
    return replace(quiet_run(data), data=data)


def test_the_baseline_uses_own_columns() -> None:
    run = linked_run()
    nothing = np.zeros((len(run.data), 4))
    together = {"server", "client2"}
    for item in (va.KnownSamples(60, with_ids=True), va.DistributionSample(100)):
        alone = reconstruct(run, nothing, Adversary({"server"}, [item]))
        collusion = reconstruct(run, nothing, Adversary(together, [item]))
        assert collusion.baseline > 0.99 and "ridge" in collusion.metrics["baseline_source"]
        assert alone.baseline < 0.05
        assert collusion.advantage == pytest.approx(collusion.score - collusion.baseline)
    unlinked = reconstruct(run, nothing, Adversary(together, [va.KnownSamples(60)]))
    assert unlinked.baseline < 0.05  # rows without ids cannot be joined with own columns


@pytest.mark.parametrize("seed", range(6))
def test_the_baseline_is_never_negative_and_the_best(seed: int) -> None:
    run = quiet_run(data_of("synthetic:rows=120,features=6,correlation=0", seed=seed), seed)
    adversary = Adversary(
        {"server", "client2"}, [va.KnownSamples(4, with_ids=True), va.DistributionSample(5), va.FeatureMeans()]
    )
    score = reconstruct(run, np.zeros((len(run.data), 3)), adversary)
    assert score.baseline >= 0
    richer = reconstruct(run, np.zeros((len(run.data), 3)), Adversary({"server", "client2"}, adversary.knows[:1]))
    assert score.baseline >= richer.baseline


def test_an_attack_that_is_the_baseline_has_no_advantage() -> None:
    from vflaudit.core.games.reconstruction import best_baseline

    run = linked_run()
    adversary = Adversary({"client2"}, [va.DistributionSample(100)])
    rows = run.score_rows(adversary)
    values, _ = best_baseline(run, adversary, "client1", rows, run.data.blocks["client1"].values[rows])
    assert values is not None
    score = reconstruct(run, values, adversary, rows=rows)
    assert score.advantage == pytest.approx(0, abs=1e-12) and score.interval[0] <= 0 <= score.interval[1]


# --- labels -------------------------------------------------------------------------------------------------


def infer(run: Run, values: np.ndarray, adversary: Adversary = SERVER, rows: np.ndarray | None = None) -> Score:
    rows = np.arange(len(run.data)) if rows is None else rows
    return va.LabelInference().score(run, Guess("test", adversary, labels=RowGuess(rows, values)))


def test_binary_labels_are_scored_as_scikit_learn_does(run: Run) -> None:
    train, labels = run.data.aligned("train"), run.data.labels
    scores = labels + np.random.default_rng(0).normal(size=len(labels))
    expected = roc_auc_score(labels[train], scores[train])
    both = infer(run, np.stack([-scores, scores], axis=1))
    assert infer(run, scores).score == pytest.approx(expected) == both.score
    assert both.baseline == 0.5 and both.metrics["baseline_source"] == "class prior"
    accuracy = ((scores[train] > 0) == labels[train]).mean()
    assert both.metrics["accuracy"] == pytest.approx(accuracy)
    low, high = both.metrics["accuracy_interval"]
    assert 0 <= low < accuracy < high <= 1
    assert both.interval[0] < both.advantage < both.interval[1]


def test_perfect_reversed_and_empty_label_guesses(run: Run) -> None:
    labels = run.data.labels.astype(float)
    assert infer(run, labels).score == 1 and infer(run, -labels).score == 0
    low, high = infer(run, labels).interval
    assert 0.4 < low < 0.5 <= high  # not of zero width, although no row disagrees
    nothing = infer(run, labels[:0], rows=np.arange(0))
    assert nothing.score == 0.5 and nothing.metrics["accuracy"] == pytest.approx(0.5)


def test_the_interval_follows_the_rarest_class() -> None:
    common = quiet_run(data_of("synthetic:rows=400,features=4"))
    rare = quiet_run(data_of("synthetic:rows=400,features=4,balance=0.95"))
    widths = [np.ptp(infer(run, run.data.labels.astype(float)).interval) for run in (common, rare)]
    fewest = np.bincount(rare.data.labels[rare.data.aligned("train")]).min()
    assert widths[1] > 3 * widths[0] and widths[1] == pytest.approx(2 * (1 - 0.025 ** (1 / fewest)))


def test_three_classes_are_scored_by_macro_auc() -> None:
    run = quiet_run(data_of("synthetic:rows=300,features=6,classes=3"))
    train, labels = run.data.aligned("train"), run.data.labels
    scores = np.eye(3)[labels] + np.random.default_rng(0).normal(size=(len(labels), 3))
    score = infer(run, scores)
    each = [roc_auc_score(labels[train] == k, scores[train, k]) for k in range(3)]
    assert score.score == pytest.approx(np.mean(each))
    assert score.metrics["accuracy"] == pytest.approx((scores[train].argmax(axis=1) == labels[train]).mean())
    assert infer(run, np.eye(3)[labels]).score == 1
    with pytest.raises(va.InputError, match="expected 3"):
        infer(run, scores[:, 0])


def test_known_labels_are_excluded(run: Run) -> None:
    item = va.LabeledSamples(50)
    known = item.rows(run)
    values = np.zeros(len(run.data))
    values[known] = run.data.labels[known] - 0.5
    score = infer(run, values, Adversary({"server"}, [item]))
    assert score.score == 0.5 and score.rows == len(run.data.aligned("train")) - 50
    assert infer(run, values).score > 0.6


def test_the_label_baseline_learns_from_own_columns(run: Run) -> None:
    values = np.zeros(len(run.data))
    for item, source in ((va.LabeledSamples(60), "known labels"), (va.DistributionSample(60), "distribution sample")):
        score = infer(run, values, Adversary({"client1", "client2"}, [item]))
        assert score.baseline > 0.6 and source in score.metrics["baseline_source"] and score.advantage < 0
        assert infer(run, values, Adversary({"server"}, [item])).baseline == 0.5


def test_bad_label_guesses(run: Run) -> None:
    with pytest.raises(va.InputError, match="expected 2"):
        infer(run, np.zeros((len(run.data), 3)))
    with pytest.raises(va.InputError, match="no guess about labels"):
        va.LabelInference().score(run, Guess("test", SERVER))
    with pytest.raises(va.InputError, match="'label_owner' holds the labels"):
        infer(run, np.zeros(len(run.data)), Adversary({"label_owner"}))
    regression = quiet_run(data_of("synthetic:rows=100,features=4,task=regression"))
    with pytest.raises(va.InputError, match="regression dataset"):
        infer(regression, np.zeros(len(regression.data)))


# --- membership ---------------------------------------------------------------------------------------------


def member(run: Run, scores: np.ndarray, adversary: Adversary = SERVER, game: Game | None = None) -> Score:
    return (game or va.Membership()).score(run, Guess("test", adversary, membership=scores))


def test_membership_candidates_are_half_members(run: Run) -> None:
    game = va.Membership()
    challenge, secret = game.challenge(run), game.secret(run)
    assert len(challenge) == len(secret) == 2 * secret.sum()
    assert challenge.labels is not None and run.data.aux is not None
    for party, block in run.data.blocks.items():
        held = {tuple(row) for row in block.values[run.data.aligned("train")].tolist()}
        pool = {tuple(row) for row in run.data.aux.blocks[party].values.tolist()}
        for row, inside in zip(challenge.features[party].tolist(), secret, strict=True):
            assert tuple(row) in (held if inside else pool)
    assert len(va.Membership(candidates=20).challenge(run)) == 20


def test_the_challenge_has_no_answer(run: Run) -> None:
    """A world in which members and strangers changed places hands out the same bytes and another answer.

    Members drawn from training rows and strangers drawn from the pool are exchanged one for one; the order in which
    they are shown is the game's, so the sorted candidates are the same, and each place is a member in one world only.
    """
    game = va.Membership()
    members, strangers, order = game._draw(run)
    aux = run.data.aux
    assert aux is not None

    def exchanged(
        mine: VerticalDataset, rows: np.ndarray, other: VerticalDataset, where: np.ndarray
    ) -> VerticalDataset:
        labels = np.array(mine.labels)
        labels[rows] = other.labels[where]
        blocks = {}
        for party, block in mine.blocks.items():
            values = np.array(block.values)
            values[rows] = other.blocks[party].values[where]
            blocks[party] = replace(block, values=values)
        return replace(mine, blocks=blocks, labels=labels)

    swapped = replace(exchanged(run.data, members, aux, strangers), aux=exchanged(aux, strangers, run.data, members))
    here, there = game.challenge(run), game.challenge(replace(run, data=swapped))
    half = len(members)
    place = np.argsort(order)  # where each candidate is shown
    mirror = np.concatenate([place[half:], place[:half]])  # where its counterpart is shown
    for party in run.data.parties:
        np.testing.assert_array_equal(here.features[party][place], there.features[party][mirror])
    secret = game.secret(run)
    assert (secret[place] != secret[mirror]).all()
    # and the order itself says nothing: the places of members are those of a fair shuffle
    halves = secret[: len(secret) // 2].sum(), len(secret) // 2
    assert binomtest(int(halves[0]), int(halves[1]), 0.5).pvalue > 1e-3
    assert set(here.__dataclass_fields__) == {"features", "labels"}


def test_places_of_members_are_shuffled_by_the_seed(run: Run) -> None:
    game = va.Membership()
    mean = np.mean([game.secret(replace(run, seed=seed)) for seed in range(200)], axis=0)
    assert abs(mean - 0.5).max() < 0.2 and abs(mean.mean() - 0.5) < 1e-9


def test_membership_scores(run: Run) -> None:
    secret = va.Membership().secret(run)
    perfect, reverse = member(run, secret.astype(float)), member(run, -secret.astype(float))
    assert perfect.score == 1 and perfect.baseline == 0.5 and reverse.score == 0
    assert 0.3 < perfect.interval[0] < perfect.interval[1] == 0.5
    noisy = secret + np.random.default_rng(0).normal(size=len(secret))
    score = member(run, noisy)
    assert score.score == pytest.approx(roc_auc_score(secret, noisy))
    assert score.interval[0] < score.advantage < score.interval[1]
    assert member(run, np.zeros(len(secret))).score == 0.5  # ties are half, whatever the order
    assert 0.6 < score.metrics["balanced_accuracy"] < 0.85


def test_rates_that_cannot_be_resolved_are_none(run: Run) -> None:
    secret = va.Membership().secret(run)
    assert len(secret) < 200
    for metrics in (member(run, secret.astype(float)).metrics,):
        assert metrics["tpr_at_0.1%_fpr"] is None and metrics["tpr_at_0.1%_fpr_interval"] is None
    large = quiet_run(data_of("synthetic:rows=3000,features=4", aux=0.5))
    metrics = member(large, va.Membership().secret(large).astype(float)).metrics
    assert metrics["tpr_at_1%_fpr"] == 1 and metrics["tpr_at_1%_fpr_interval"][0] > 0.9


def test_candidates_known_beforehand_are_not_scored(run: Run) -> None:
    game = va.Membership()
    secret = game.secret(run)
    adversary = Adversary({"server"}, [va.KnownSamples(40), va.DistributionSample(30)])
    view = run.view(adversary, challenge=game.challenge(run))
    samples, pool, challenge = view.knowledge.samples, view.knowledge.distribution, view.challenge
    assert samples is not None and pool is not None and challenge is not None
    have = lambda rows: {tuple(row) for row in rows["client1"].tolist()}
    candidates = [tuple(row) for row in challenge.features["client1"].tolist()]
    inside, outside = have(samples.features), have(pool.features)
    scores = np.array([1.0 if row in inside else -1.0 if row in outside else 0.0 for row in candidates])
    assert (scores != 0).sum() > 20 and roc_auc_score(secret, scores) > 0.6
    score = member(run, scores, adversary)
    assert score.score == 0.5 and score.rows == (scores == 0).sum()
    assert run.data.aux is not None
    everybody = Adversary({"server"}, [va.DistributionSample(len(run.data.aux))])
    with pytest.raises(va.InputError, match="no secret"):
        member(run, scores, everybody)


def test_bad_membership_guesses(run: Run) -> None:
    for scores in (None, np.zeros(3)):
        with pytest.raises(va.InputError, match="one membership score for each"):
            member(run, scores)  # type: ignore[arg-type]
    with pytest.raises(va.InputError, match="aux > 0"):
        va.Membership().challenge(replace(run, data=replace(run.data, aux=None)))


# --- re-identification --------------------------------------------------------------------------------------


def find(run: Run, matches: Any, adversary: Adversary = SERVER, candidates: int = 50) -> Score:
    game = va.Reidentification(party="client1", candidates=candidates)
    return game.score(run, Guess("test", adversary, matches=matches))


def test_reidentification_hits(run: Run) -> None:
    game = va.Reidentification(party="client1")
    secret, train = game.secret(run), run.data.aligned("train")
    assert len(np.unique(secret)) == 50 and np.isin(secret, train).all()
    challenge = game.challenge(run)
    assert set(challenge.features) == {"client1"} and challenge.labels is None
    np.testing.assert_array_equal(challenge.features["client1"], run.data.blocks["client1"].values[secret])
    perfect = find(run, secret)
    assert perfect.score == 1 and perfect.baseline == pytest.approx(1 / len(train))
    assert 0.9 < perfect.interval[0] < perfect.interval[1] <= 1
    guess = np.array(secret)
    guess[:20] = np.roll(guess[:20], 1)
    assert find(run, guess).score == pytest.approx(0.6)


def test_naming_a_duplicate_counts(run: Run) -> None:
    secret, train = va.Reidentification(party="client1").secret(run), run.data.aligned("train")
    twin = np.setdiff1d(train, secret)[0]
    values = np.array(run.data.blocks["client1"].values)
    values[twin] = values[secret[0]]
    twins = with_block(run, run.data.blocks["client1"].columns, values)
    guess = np.array(secret)
    guess[0] = twin
    assert find(twins, guess).score == 1 and find(run, guess).score == pytest.approx(0.98)
    assert find(twins, secret).baseline == pytest.approx((49 + 2) / 50 / len(train))  # and is easier to guess


def test_people_whose_ids_are_known_are_not_scored(run: Run) -> None:
    adversary = Adversary({"server"}, [va.KnownSamples(70, with_ids=True)])
    secret, known = va.Reidentification(party="client1").secret(run), adversary.known_rows(run)
    guess = np.where(np.isin(secret, known), secret, (secret + 1) % len(run.data))
    score = find(run, guess, adversary)
    assert score.score == 0 and score.rows == (~np.isin(secret, known)).sum() < 50
    assert find(run, guess, Adversary({"server"}, [va.KnownSamples(70)])).rows == 50


def test_bad_matches(run: Run) -> None:
    for matches in (None, np.arange(3)):
        with pytest.raises(va.InputError, match="name one row for each of 50"):
            find(run, matches)
    for matches in (np.full(50, -1), np.full(50, len(run.data)), np.full(50, 0.5)):
        with pytest.raises(va.InputError, match="none of the"):
            find(run, matches)
    with pytest.raises(va.InputError, match="'client1' is corrupted"):
        find(run, np.zeros(50, dtype=int), Adversary({"client1"}))
    with pytest.raises(va.InputError, match="candidates=9999"):
        find(run, np.zeros(50, dtype=int), candidates=9999)


# --- distinguishing -----------------------------------------------------------------------------------------


def test_distinguishing() -> None:
    game, rng = va.Distinguishing(), np.random.default_rng(0)
    judge = lambda a, b: game.score_trials(a, b, attack="test", adversary=SERVER, seed=0)
    perfect = judge(np.ones(500), np.zeros(500))
    assert 3 < perfect.score == perfect.metrics["epsilon_lower"] <= perfect.metrics["auditor_ceiling"] + 1e-9
    assert perfect.baseline == 0 and perfect.interval[0] == perfect.score and 0 < perfect.rows <= 1000
    null = judge(rng.normal(size=500), rng.normal(size=500))
    assert null.score == 0
    shifted = judge(rng.normal(1, 1, size=2000), rng.normal(size=2000))
    assert 0 < shifted.score < 4
    with pytest.raises(va.InputError, match="many runs"):
        game.score(None, None)  # type: ignore[arg-type]


# --- what all games share -----------------------------------------------------------------------------------


def test_a_score_is_one_line(run: Run) -> None:
    text = str(reconstruct(run, run.data.blocks["client1"].values))
    assert text == (
        "test: reconstruction of client1: r2 1.000, baseline 0.000, advantage +1.000 [+1.000, +1.000]  "
        "(the server, knowing nothing beforehand)"
    )
    assert set(GAMES) == {"reconstruction", "label-inference", "membership", "reidentification", "distinguishing"}


FLOOR: Mapping[str, tuple[Callable[[], Game], str]] = {
    "reconstruction": (lambda: va.Reconstruction(party="client1"), "above"),
    "label-inference": (va.LabelInference, "both"),
    "membership": (va.Membership, "both"),
    "reidentification": (lambda: va.Reidentification(party="client1"), "above"),
}


@pytest.mark.parametrize("name", FLOOR)
def test_guessing_at_random_wins_no_more_often_than_by_chance(name: str) -> None:
    """Over 40 worlds, the 95% interval of the advantage excludes no advantage as seldom as promised.

    A random guess of columns is worse than the mean, and one of rows may name a row outside training, so there only
    wins count, which 2.5% are allowed; AUCs err on both sides.
    """
    make, side = FLOOR[name]
    worlds, wrong = 40, 0
    for seed in range(worlds):
        run = quiet_run(data_of("synthetic:rows=150,features=4", seed=seed), seed)
        game = make()
        guess = RandomGuess().run(run.view(SERVER, challenge=game.challenge(run)), seed=seed)
        low, high = game.score(run, guess).interval
        wrong += low > 0 or (side == "both" and high < 0)
    allowed = 0.05 if side == "both" else 0.025
    assert binomtest(wrong, worlds, allowed, alternative="greater").pvalue > 1e-3
    assert RandomGuess.games == tuple(FLOOR)


def test_random_columns_lose(run: Run) -> None:
    scores = [
        va.Reconstruction(party="client1").score(run, RandomGuess().run(run.view(SERVER), seed=seed))
        for seed in range(10)
    ]
    assert all(score.interval[1] < 0 for score in scores)  # twice the variance: an R2 near -1
    assert np.mean([score.score for score in scores]) == pytest.approx(-1, abs=0.2)


def test_membership_baseline_of_a_party_that_recognises_its_own_rows(run: Run) -> None:
    game = va.Membership()
    adversary = va.Adversary({"client1"})
    truth = game.secret(run)
    perfect = va.Guess(attack="a", adversary=adversary, membership=truth.astype(float))
    score = game.score(run, perfect)
    assert score.baseline > 0.99, "it holds the members' columns"
    assert score.interval[0] <= 0 <= score.interval[1], "so a perfect attack gains nothing"
    assert game.score(run, replace(perfect, adversary=va.Adversary({"server"}))).baseline == 0.5
