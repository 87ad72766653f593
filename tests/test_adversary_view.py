"""Who is corrupted, what it knows, and that its view is exactly that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vflaudit as va
from vflaudit.core.adversary import ITEMS, Adversary, Known, parse_known
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.run import Run
from vflaudit.core.transcript import Message, Transcript
from vflaudit.core.view import Embedding
from vflaudit.testing.strategies import vertical_datasets

SENTENCES = [
    (Adversary({"server"}), "the server, knowing nothing beforehand"),
    (Adversary("client2"), "client2, knowing nothing beforehand"),
    (
        Adversary({"client2", "server"}, [va.KnownSamples(30)]),
        "the server and client2 together, knowing the rows of 30 people, not their ids",
    ),
    (
        Adversary(["client3", "server", "client1"], [va.KnownSamples(5, with_ids=True), va.FeatureMeans()]),
        "the server, client1 and client3 together, knowing the rows of 5 people and their ids; "
        "the mean of every column",
    ),
    (
        Adversary({"server"}, [va.DistributionSample(200), va.ClassPriors()]),
        "the server, knowing 200 other rows of the same population; the class frequencies",
    ),
    (
        Adversary({"server"}, [va.Moments(), va.LabeledSamples(40)]),
        "the server, knowing the first and second moments of every party's columns; the labels of 40 people",
    ),
    (
        Adversary({"server"}, [va.KnownSamples(30, noise=0.01)]),
        "the server, knowing the rows of 30 people with noise of 0.01 deviations, not their ids",
    ),
    (
        Adversary({"server"}, [va.KnownSamples(30, with_ids=True, k=5)]),
        "the server, knowing the rows of 30 people averaged in groups of 5 or more and their ids",
    ),
    (Adversary((), [va.ReleasedModel()]), "an outsider, knowing queries to the trained model"),
    (Adversary((), [va.ReleasedModel("white-box")]), "an outsider, knowing the trained model's parameters"),
]


@pytest.mark.parametrize(("adversary", "sentence"), SENTENCES)
def test_an_adversary_is_one_sentence(adversary: Adversary, sentence: str) -> None:
    assert str(adversary) == sentence


PARSED = [
    ("known-samples=30", va.KnownSamples(30)),
    ("known-samples=30,ids", va.KnownSamples(30, with_ids=True)),
    ("known-samples=30,ids,noise=0.01", va.KnownSamples(30, with_ids=True, noise=0.01)),
    ("known-samples=30,k=5,noise=1e-3", va.KnownSamples(30, noise=0.001, k=5)),
    ("means", va.FeatureMeans()),
    ("moments", va.Moments()),
    ("distribution=2000", va.DistributionSample(2000)),
    ("class-priors", va.ClassPriors()),
    ("labels=40", va.LabeledSamples(40)),
    ("model=white-box", va.ReleasedModel("white-box")),
    (" model=black-box ", va.ReleasedModel("black-box")),
]


@pytest.mark.parametrize(("text", "item"), PARSED)
def test_knowledge_is_parsed(text: str, item: Known) -> None:
    assert parse_known(text) == item


def test_every_kind_of_knowledge_can_be_asked_for() -> None:
    assert {type(item) for _, item in PARSED} == set(ITEMS)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("known-sample=30", "did you mean 'known-samples'"),
        ("", "expected one of"),
        ("known-samples", "known-samples=N"),
        ("known-samples=", "known-samples=N"),
        ("known-samples=0", "1 or more"),
        ("known-samples=-3", "whole number"),
        ("known-samples=3.5", "whole number"),
        ("known-samples=30,id", "not 'id'"),
        ("known-samples=30,ids=1", "not 'ids=1'"),
        ("known-samples=30,noise", "not 'noise'"),
        ("known-samples=30,noise=much", "'much' is not a number"),
        ("known-samples=30,noise=-1", "0 or more"),
        ("known-samples=30,noise=nan", "0 or more"),
        ("known-samples=30,k=0", "1 to the 30"),
        ("known-samples=30,k=31", "1 to the 30"),
        ("known-samples=30,k=2.5", "'2.5' is not a number"),
        ("known-samples=30,ids,ids", "given twice"),
        ("labels=4,ids", "without 'ids'"),
        ("distribution=many", "whole number"),
        ("means=3", "takes no value"),
        ("class-priors=", "takes no value"),
        ("model", "model=black-box or model=white-box"),
        ("model=grey-box", "model=black-box or model=white-box"),
    ],
)
def test_bad_knowledge_is_told(text: str, word: str) -> None:
    with pytest.raises(va.InputError) as caught:
        parse_known(text)
    assert word in str(caught.value) and "\n" not in str(caught.value)


def test_impossible_adversaries() -> None:
    with pytest.raises(va.InputError, match="at least one party"):
        Adversary(())
    with pytest.raises(va.InputError, match="'known-samples' is given twice"):
        Adversary({"server"}, [va.KnownSamples(3), va.KnownSamples(4)])


def test_knowing_more_rows_than_there_are(short_run: Run) -> None:
    train = len(short_run.data.aligned("train"))
    for item in (va.KnownSamples(train + 1), va.LabeledSamples(train + 1)):
        with pytest.raises(va.InputError, match=f"cannot know {train + 1} .*there are {train} training rows"):
            short_run.view(Adversary({"server"}, [item]))
    with pytest.raises(va.InputError, match="did you mean 'server'"):
        short_run.view(Adversary({"sever"}))


# --- what is granted ----------------------------------------------------------------------------------------


def test_more_knowledge_includes_less(short_run: Run) -> None:
    five, fifty = (Adversary({"server"}, [va.KnownSamples(n, with_ids=True)]) for n in (5, 50))
    assert set(five.known_rows(short_run)) < set(fifty.known_rows(short_run))
    small, large = (short_run.view(adversary).knowledge.samples for adversary in (five, fifty))
    assert small is not None and large is not None and small.handles is not None and large.handles is not None
    np.testing.assert_array_equal(small.handles, large.handles[:5])
    np.testing.assert_array_equal(small.features["client3"], large.features["client3"][:5])


def test_known_rows_are_true_rows_in_the_unit_of_the_protocol(short_run: Run) -> None:
    view = short_run.view(Adversary({"server", "client2"}, [va.KnownSamples(20, with_ids=True)]))
    samples = view.knowledge.samples
    assert samples is not None and samples.handles is not None and samples.labels is None
    assert set(samples.features) == {"client1", "client3", "client4"} == set(view.victims)
    for party, rows in samples.features.items():
        np.testing.assert_array_equal(rows, short_run.data.blocks[party].values[samples.handles])
    assert np.isin(samples.handles, short_run.data.aligned("train")).all()


def test_known_rows_may_be_noisy(short_run: Run) -> None:
    exact, noisy = (
        short_run.view(Adversary({"server"}, [va.KnownSamples(200, noise=noise)])).knowledge.samples
        for noise in (0.0, 0.1)
    )
    assert exact is not None and noisy is not None
    gap = noisy.features["client2"] - exact.features["client2"]
    train = short_run.data.blocks["client2"].values[short_run.data.aligned("train")]
    np.testing.assert_allclose(gap.std(axis=0), 0.1 * train.std(axis=0), rtol=0.25)
    assert abs(np.corrcoef(gap[:, 0], exact.features["client2"][:, 0])[0, 1]) < 0.25


def test_known_rows_may_be_averaged_in_groups(short_run: Run) -> None:
    adversary = Adversary({"server"}, [va.KnownSamples(30, with_ids=True, k=5)])
    samples = short_run.view(adversary).knowledge.samples
    assert samples is not None and samples.handles is not None
    _, groups, counts = np.unique(samples.features["client1"], axis=0, return_inverse=True, return_counts=True)
    assert counts.min() >= 5
    for party, values in samples.features.items():
        truth = short_run.data.blocks[party].values[samples.handles]
        for group in range(len(counts)):
            mine = groups.ravel() == group
            np.testing.assert_allclose(values[mine], truth[mine].mean(axis=0)[None].repeat(mine.sum(), 0), atol=1e-12)
    assert len(adversary.known_rows(short_run)) == 30  # none of them is scored


def test_without_ids_there_are_no_handles(short_run: Run) -> None:
    samples = short_run.view(Adversary({"server"}, [va.KnownSamples(20)])).knowledge.samples
    assert samples is not None and samples.handles is None and len(samples.features["client1"]) == 20


def test_known_rows_are_not_scored(short_run: Run) -> None:
    adversary = Adversary({"server"}, [va.KnownSamples(50)])
    rows, known = short_run.score_rows(adversary), adversary.known_rows(short_run)
    assert not set(rows) & set(known)
    assert sorted([*rows, *known]) == sorted(short_run.data.aligned("train"))


def test_aggregates_are_those_of_the_training_rows(short_run: Run) -> None:
    view = short_run.view(Adversary({"server"}, [va.Moments(), va.ClassPriors(), va.LabeledSamples(7)]))
    train, know = short_run.data.aligned("train"), view.knowledge
    values = short_run.data.blocks["client1"].values[train]
    np.testing.assert_allclose(know.means["client1"], values.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(know.second_moments["client1"], values.T @ values / len(values), atol=1e-12)
    assert know.class_priors is not None and know.labelled is not None
    np.testing.assert_allclose(know.class_priors, np.bincount(short_run.data.labels[train]) / len(train))
    np.testing.assert_array_equal(know.labelled[1], short_run.data.labels[know.labelled[0]])
    assert len(know.labelled[0]) == 7 and know.samples is None and know.distribution is None and know.model is None


def test_class_priors_need_classes() -> None:
    data = va.load_dataset("synthetic:rows=60,features=4,task=regression", parties=2)
    run = va.load_protocol("centralized", max_epochs=1, hidden=2).run(data)
    with pytest.raises(va.InputError, match="regression dataset"):
        run.view(Adversary({"server"}, [va.ClassPriors()]))


def test_a_released_model_predicts_and_shows_parameters_only_if_white_box(short_run: Run) -> None:
    features = {party: block.values for party, block in short_run.data.blocks.items()}
    for access in ("black-box", "white-box"):
        model = short_run.view(Adversary((), [va.ReleasedModel(access)])).knowledge.model  # type: ignore[arg-type]
        assert model is not None
        np.testing.assert_array_equal(model.predict(features), short_run.model.predict(features))  # type: ignore[attr-defined]
        assert bool(model.parameters) == (access == "white-box")  # type: ignore[attr-defined]


# --- what is seen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("corrupts", [{"server"}, {"client2"}, {"label_owner"}, {"client1", "client4"}])
def test_a_view_has_exactly_the_messages_of_its_parties(short_run: Run, corrupts: set[str]) -> None:
    view = short_run.view(Adversary(corrupts))
    expected = [m for m in short_run.transcript if m.sender in corrupts or m.receiver in corrupts]
    assert len(expected) == len(view.transcript) > 0
    for mine, other in zip(view.transcript, expected, strict=True):
        assert (mine.sender, mine.receiver, mine.kind, mine.step) == (
            other.sender,
            other.receiver,
            other.kind,
            other.step,
        )
        np.testing.assert_array_equal(mine.arrays["values"], other.arrays["values"])
    assert set(view.states) == corrupts
    with pytest.raises(va.InputError, match="cannot be added to"):
        view.transcript.append(expected[0])


def test_an_outsider_sees_no_message(short_run: Run) -> None:
    view = short_run.view(Adversary((), [va.ReleasedModel()]))
    assert len(view.transcript) == 0 and not view.states and len(view.victims) == 4


def test_the_view_without_the_protocol(short_run: Run) -> None:
    adversary = Adversary({"server", "client2"}, [va.KnownSamples(4)])
    without = short_run.view(adversary, messages=False)
    assert len(without.transcript) == 0
    np.testing.assert_array_equal(without.own_columns(), short_run.view(adversary).own_columns())


def test_states_are_copies(short_run: Run) -> None:
    state = short_run.view(Adversary({"client2"})).states["client2"]
    assert state.features is not None
    np.testing.assert_array_equal(state.features, short_run.data.blocks["client2"].values)
    assert not np.shares_memory(state.features, short_run.data.blocks["client2"].values)
    for array in (state.features, *state.parameters.values()):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_digests_tell_views_apart(short_run: Run) -> None:
    adversaries = [
        Adversary({"server"}),
        Adversary({"client1"}),
        Adversary({"server"}, [va.KnownSamples(3)]),
        Adversary({"server"}, [va.KnownSamples(4)]),
        Adversary({"server"}, [va.KnownSamples(3, with_ids=True)]),
        Adversary({"server"}, [va.LabeledSamples(3)]),
    ]
    digests = [short_run.view(adversary).digest() for adversary in adversaries]
    assert len(set(digests)) == len(digests)
    assert digests == [short_run.view(adversary).digest() for adversary in adversaries]
    challenge = va.Membership().challenge(short_run)
    assert short_run.view(adversaries[0], challenge=challenge).digest() != digests[0]


@given(data=vertical_datasets(), source=st.data())
def test_own_columns_mean_the_same_in_the_pool(data: VerticalDataset, source: st.DataObject) -> None:
    """If the pool were the people themselves, own_pool_columns would be own_columns."""
    run = va.load_protocol("centralized", max_epochs=1, hidden=1).run(data)
    prepared = run.data
    run = replace(run, data=replace(prepared, aux=replace(prepared, aux=None)))
    corrupts = source.draw(st.sets(st.sampled_from(run.spec.parties), min_size=1))
    view = run.view(Adversary(corrupts, [va.DistributionSample(len(prepared))]))
    pool = view.knowledge.distribution
    assert pool is not None
    own, other = view.own_columns(), view.own_pool_columns(pool)
    order = va.DistributionSample(len(prepared)).rows(run)
    assert own.shape == other.shape
    held = [party for party in view.states if party in prepared.blocks]
    width = sum(prepared.blocks[party].width + (not prepared.blocks[party].present.all()) for party in held) + (
        prepared.label_owner in corrupts
    ) * max(1, len(prepared.classes))
    assert own.shape[1] == width
    aligned = np.logical_and.reduce([prepared.blocks[party].present for party in held] or [np.ones(len(own), bool)])
    np.testing.assert_array_equal(other[aligned[order]], own[order][aligned[order]])


# --- the latest vectors -------------------------------------------------------------------------------------


def test_sent_by_takes_the_latest_vector_of_each_row(short_run: Run) -> None:
    view = short_run.view(Adversary({"server"}))
    sent = view.sent_by("client1")
    latest: dict[int, np.ndarray] = {}
    for message in view.transcript.select(sender="client1"):
        assert message.rows is not None
        latest |= {int(row): value for row, value in zip(message.rows, message.arrays["values"], strict=True)}
    assert sent.rows.tolist() == sorted(latest)
    np.testing.assert_array_equal(sent.values, np.stack([latest[row] for row in sorted(latest)]))
    np.testing.assert_array_equal(sent.at(np.array([7, 3])), np.stack([latest[7], latest[3]]))


def _view(messages: list[Message], run: Run) -> va.View:
    transcript = Transcript()
    for message in messages:
        transcript.append(message)
    return replace(run.view(Adversary({"server"})), transcript=transcript)


def test_sent_by_joins_kinds_and_drops_those_that_cover_less(short_run: Run) -> None:
    rows = np.array([4, 2, 9])
    message = lambda step, kind, values, rows: Message("client1", "server", step, kind, {"v": values}, rows)
    view = _view(
        [
            message(0, "a", np.array([[1.0], [2.0], [3.0]]), rows),
            message(1, "b", np.array([[10.0, 11.0], [20.0, 21.0], [30.0, 31.0]]), rows),
            message(2, "c", np.array([[5.0]]), rows[:1]),
            message(3, "a", np.array([[-1.0]]), rows[:1]),
        ],
        short_run,
    )
    sent = view.sent_by("client1")
    assert sent.rows.tolist() == [2, 4, 9]
    np.testing.assert_array_equal(sent.values, [[2, 20, 21], [-1, 10, 11], [3, 30, 31]])


def test_sent_by_needs_row_handles(short_run: Run) -> None:
    view = _view([Message("client1", "server", 0, "a", {"v": np.ones((3, 2))})], short_run)
    for party in ("client1", "client2"):
        with pytest.raises(va.InputError, match=f"no message from '{party}' that names its rows"):
            view.sent_by(party)


def test_an_embedding_knows_its_rows() -> None:
    sent = Embedding(np.array([5, 1, 3]), np.array([[50.0], [10.0], [30.0]]))
    np.testing.assert_array_equal(sent.at(np.array([1, 5, 5])), [[10], [50], [50]])
    for missing in (0, 2, 9):
        with pytest.raises(va.InputError, match="no message about"):
            sent.at(np.array([1, missing]))
