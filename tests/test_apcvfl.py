"""APC-VFL: one message per passive party, eq. 9, independence at inference, encoder evaluation, the paper's splits."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vflaudit as va
from vflaudit.core.published import APC_VFL_PARTIAL, apc_vfl_classical
from vflaudit.core.randomness import stream
from vflaudit.errors import InputError
from vflaudit.protocols.apcvfl.autoencoders import (
    Autoencoder,
    Teacher,
    Training,
    distillation_loss,
    make_autoencoder,
    train,
)
from vflaudit.protocols.apcvfl.classifier import fit_classifier
from vflaudit.protocols.apcvfl.evaluation import evaluate_encoder
from vflaudit.protocols.apcvfl.protocol import APCVFL
from vflaudit.testing import assert_deterministic, assert_isolated, assert_secrets_do_not_matter
from vflaudit.testing.strategies import vertical_datasets

SMALL = {
    "epochs": 3,
    "active_layers": (6, 8),
    "passive_layers": (8, 12),
    "joint_layers": (10, 10),
    "distilled_layers": (10, 10),
    "folds": 3,
    "randomness": "seed",
}


def small(**settings):
    return APCVFL(**{**SMALL, **settings})


@pytest.fixture(scope="module")
def partial():
    return va.load_dataset("breast-cancer", parties=4, overlap=0.8, rows=300)


@pytest.fixture(scope="module")
def run(partial):
    return small().run(partial, seed=0)


def test_every_passive_party_sends_one_representation_of_the_shared_rows(run):
    sent = list(run.transcript.select(kind="representation"))
    assert [(m.sender, m.receiver) for m in sent] == [(f"passive{k}", "active") for k in (1, 2, 3)]
    assert len({m.step for m in sent}) == 1  # one round
    shared = run.data.aligned("train")
    assert 0 < len(shared) < len(run.data.split["train"])
    for message in sent:
        np.testing.assert_array_equal(message.rows, shared)
        assert message.arrays["values"].shape == (len(shared), 12)
    assert {m.kind for m in run.transcript if not m.kind.startswith("psi_")} == {"representation"}
    assert run.utility["aligned_rows"] == len(shared)


def test_what_is_sent_is_the_encoding_of_the_sender_alone(run):
    for message in run.transcript.select(kind="representation"):
        block, state = run.data.blocks[message.sender], run.states[message.sender]
        g1 = Autoencoder(block.width, (8, 12))
        g1.load_state_dict({name[3:]: torch.from_numpy(value) for name, value in state.parameters.items()})
        np.testing.assert_allclose(message.arrays["values"], g1.encode(block.values[message.rows]), atol=1e-6)


def test_isolation_and_determinism(run, partial):
    adversary = va.Adversary({"active", "passive2"}, [va.KnownSamples(20), va.DistributionSample(10)])
    assert_isolated(run, adversary)
    assert_secrets_do_not_matter(run, adversary)
    assert_deterministic(small(epochs=1), partial)


@given(data=vertical_datasets(tasks=("classification",), min_columns=2))
@settings(max_examples=10, deadline=None)
def test_any_split_of_any_table(data):
    if len(data.parties) == 1:
        with pytest.raises(InputError, match="needs a passive party"):
            small().run(data)
        return
    try:
        found = small(epochs=1).run(data)
    except InputError as error:  # a tiny table may leave one class at the active party
        assert "one class" in str(error)
        return
    assert len(list(found.transcript.select(kind="representation"))) == len(data.parties) - 1
    assert_isolated(found, va.Adversary({"active"}))


def test_active_party_classifies_new_rows_alone(partial, run):
    """Other values of the passive parties for rows outside the federation change nothing, and no message follows."""
    new = np.setdiff1d(np.arange(len(partial)), partial.split["train"])
    blocks = {}
    for party, block in partial.blocks.items():
        values = np.array(block.values)
        if party != "client1":
            values[new] = 7.0
        blocks[party] = replace(block, values=values)
    other = small().run(replace(partial, blocks=blocks), seed=0)
    assert other.transcript.digest() == run.transcript.digest()
    assert other.utility == run.utility
    own = run.data.blocks["active"].values
    np.testing.assert_array_equal(run.model.predict({"active": own}), other.model.predict({"active": own}))
    last = list(run.transcript)[-1]
    assert (last.kind, last.receiver) == ("representation", "active")


def test_rows_that_only_the_active_party_holds_are_trained_on(partial, run):
    """Eq. 9 has a branch for them: without them, g3 is another one."""
    block = partial.blocks["client1"]
    alone = np.setdiff1d(partial.split["train"][block.present[partial.split["train"]]], partial.aligned("train"))
    fewer = replace(block, present=block.present & ~np.isin(np.arange(len(partial)), alone))
    other = small().run(replace(partial, blocks={**partial.blocks, "client1": fewer}), seed=0)
    assert other.utility["aligned_rows"] == run.utility["aligned_rows"]
    assert len(alone) > 5
    assert not np.allclose(other.states["active"].parameters["g3.encoder.0.weight"],
                           run.states["active"].parameters["g3.encoder.0.weight"])  # fmt: skip


def test_local_encoders_learn_from_rows_that_are_not_shared_unless_told_otherwise(partial):
    """IV-B, 'local data': with other values in rows that a passive party does not share, it sends something else."""
    block = partial.blocks["client2"]
    alone = np.setdiff1d(partial.split["train"][block.present[partial.split["train"]]], partial.aligned("train"))
    values = np.array(block.values)
    values[alone] = values[np.roll(alone, 1)]  # other people's rows: the scale of the columns stays
    values[alone, 0] = values[alone[::-1], 0]
    other = replace(partial, blocks={**partial.blocks, "client2": replace(block, values=values)})
    for local_rows, same in (("all", False), ("aligned", True)):
        first, second = (small(local_rows=local_rows).run(data) for data in (partial, other))
        sent = [next(r.transcript.select(sender="passive1", kind="representation")) for r in (first, second)]
        assert np.allclose(sent[0].arrays["values"], sent[1].arrays["values"], atol=1e-5) == same


def test_distilled_encoder_nears_the_joint_representation_of_the_same_rows(partial):
    """With a large lambda, g3 of an aligned row is nearer to that row's z_A than to another row's."""
    run = small(distillation_weight=10.0, epochs=40).run(partial, seed=0)
    state, rows = run.states["active"], run.data.aligned("train")

    def part(name, width, layers):
        model = Autoencoder(width, layers)
        found = {key[3:]: torch.from_numpy(v) for key, v in state.parameters.items() if key.startswith(name)}
        model.load_state_dict(found)
        return model

    own = run.data.blocks["active"].values[rows]
    messages = [m.arrays["values"] for m in run.transcript.select(kind="representation")]
    joined = np.hstack([part("g1", own.shape[1], (6, 8)).encode(own), *messages])
    joint = part("g2", joined.shape[1], (10, 10)).encode(joined)
    distilled = part("g3", own.shape[1], (10, 10)).encode(own)
    right = np.mean((distilled - joint) ** 2)
    wrong = np.mean((distilled - np.roll(joint, 1, axis=0)) ** 2)
    assert right < 0.4 * wrong  # 0.24 here; 0.57 with the rows of the teacher in another order


def test_no_distillation_is_the_ablation(partial):
    """Lambda = 0 leaves nothing of the others in g3, and the ablation sends nothing at all."""
    without, ablation = small(distillation_weight=0.0).run(partial), small(variant="ablation").run(partial)
    for name, value in ablation.states["active"].parameters.items():
        np.testing.assert_array_equal(value, without.states["active"].parameters[name])
    assert len(ablation.transcript) == 0 and len(small(variant="local").run(partial).transcript) == 0
    assert ablation.utility["accuracy"] == without.utility["accuracy"]


def test_accuracy_over_folds_is_reported_unless_it_is_left_out(partial):
    """Fig. 6: cross-validation on the rows of the active party, the same for local columns by hand."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score

    run = small(variant="local", folds=5).run(partial)
    own = run.data.split["train"][run.data.blocks["active"].present[run.data.split["train"]]]
    by_hand = cross_val_score(LogisticRegression(), run.data.blocks["active"].values[own], run.data.labels[own], cv=5)
    assert run.utility["fold_accuracy"] == pytest.approx(by_hand.mean(), abs=0.03)  # other folds, the same rows
    assert "fold_accuracy" not in small(variant="local", folds=None).run(partial).utility


def test_distillation_reaches_a_teacher_that_own_columns_determine():
    """With a large lambda, g3 comes as near to its teacher as the columns allow: here, all the way."""
    values = stream(0, "values").standard_normal((200, 4))
    joint = torch.from_numpy(make_autoencoder(4, (8, 6), "selu", 1, "teacher").encode(values))
    apart = {}
    for weight in (0.0, 100.0):
        model = make_autoencoder(4, (16, 6), "selu", 0, "student")
        teacher = Teacher(joint, torch.ones(200), weight)
        train(model, values, Training(150, 32, 0.005), stream(0, "batches"), teacher=teacher)
        apart[weight] = float(((torch.from_numpy(model.encode(values)) - joint) ** 2).mean() / joint.var())
    assert apart[100.0] < 0.01 < 0.3 < apart[0.0]


@pytest.mark.parametrize("error", ["mse", "mae"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_eq_9_by_hand_and_its_gradient(error, reduction):
    rng = np.random.default_rng(0)
    model = make_autoencoder(3, (5, 4), "selu", 0, "model").double()
    values = torch.from_numpy(rng.standard_normal((6, 3)))
    joint, known = torch.from_numpy(rng.standard_normal((6, 4))), torch.tensor([1.0, 0, 1, 0, 0, 1]).double()
    teacher = Teacher(joint, known, 0.3, error, reduction)
    rows = torch.tensor([0, 1, 2, 4])
    with torch.no_grad():
        latent, rebuilt = (part.numpy() for part in model(values))
    total = 0.0
    for row in rows.tolist():
        fold = np.sum if reduction == "sum" else np.mean
        total += fold((values[row].numpy() - rebuilt[row]) ** 2)
        if known[row]:
            difference = joint[row].numpy() - latent[row]
            total += 0.3 * fold(difference**2 if error == "mse" else np.abs(difference))
    loss = distillation_loss(model, values, rows, teacher)
    assert float(loss.detach()) == pytest.approx(total / 4, rel=1e-12)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    directions = [torch.from_numpy(rng.standard_normal(tuple(p.shape))) for p in model.parameters()]
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    found, step = [], 1e-6
    for sign in (1, -1):
        with torch.no_grad():
            for p, d in zip(model.parameters(), directions, strict=True):
                p += sign * step * d
            found.append(float(distillation_loss(model, values, rows, teacher)))
            for p, d in zip(model.parameters(), directions, strict=True):
                p -= sign * step * d
    assert slope == pytest.approx((found[0] - found[1]) / (2 * step), rel=1e-5)


def test_autoencoders_are_those_of_table_one():
    run = APCVFL(epochs=1, randomness="seed").run(va.load_dataset("breast-cancer", partition="apc-vfl", rows=120))
    shapes = {name: value.shape for name, value in run.states["active"].parameters.items() if "weight" in name}
    assert [shapes[f"g1.encoder.{k}.weight"] for k in (0, 2)] == [(64, 5), (128, 64)]
    assert [shapes[f"g2.encoder.{k}.weight"] for k in (0, 2)] == [(256, 384), (256, 256)]
    assert [shapes[f"g3.encoder.{k}.weight"] for k in (0, 2)] == [(256, 5), (256, 256)]
    assert [shapes[f"g3.decoder.{k}.weight"] for k in (0, 2)] == [(256, 256), (5, 256)]
    passive = run.states["passive1"].parameters
    assert [passive[f"g1.encoder.{k}.weight"].shape for k in (0, 2)] == [(128, 25), (256, 128)]
    assert [passive[f"g1.decoder.{k}.weight"].shape for k in (0, 2)] == [(128, 256), (25, 128)]
    model = Autoencoder(3, (5, 4))
    assert isinstance(model.encoder[-1], torch.nn.SELU) and isinstance(model.decoder[-1], torch.nn.Linear)
    assert isinstance(Autoencoder(3, (5, 4), "linear").encoder[-1], torch.nn.Linear)


def test_collaborative_variant_needs_everybody_for_new_rows(partial):
    run = small(variant="collaborative").run(partial)
    sent = list(run.transcript.select(sender="passive1", kind="representation"))
    assert len(sent) == 3 and len({m.step for m in sent}) == 3  # training, test, validation
    np.testing.assert_array_equal(sent[0].rows, run.data.aligned("train"))
    np.testing.assert_array_equal(sent[1].rows, np.sort(run.data.aligned("test")))
    rows = run.data.aligned("test")
    guess = run.model.predict({party: block.values[rows] for party, block in run.data.blocks.items()})
    assert (guess.argmax(axis=1) == run.data.labels[rows]).mean() == pytest.approx(run.utility["accuracy"])
    assert_isolated(run, va.Adversary({"active"}))


def test_classifier_layer_is_scikit_learns():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    for classes in ([0, 1], [0, 2, 3]):
        values, labels = rng.standard_normal((60, 4)), rng.choice(classes, 60)
        layer = fit_classifier(values, labels, 4)
        fitted = LogisticRegression(max_iter=1000).fit(values, labels)
        scores = torch.softmax(layer(torch.from_numpy(values).float()), dim=1).detach().numpy()
        np.testing.assert_allclose(scores[:, classes], fitted.predict_proba(values), atol=1e-5)
        assert np.delete(scores, classes, axis=1).max(initial=0) < 1e-6
    with pytest.raises(InputError, match="one class"):
        fit_classifier(values, np.zeros(60, dtype=int), 2)


def test_encoder_evaluation_tells_good_from_bad_representations():
    """Alg. 1 and eq. 8 on columns where the label needs all of them: a narrow latent space loses it."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((240, 6))
    labels = (values[:, 5] > 0).astype(int)
    training = Training(epochs=20, learning_rate=0.003)
    wide = evaluate_encoder(values, labels, (16, 24), training=training, folds=5, every=10)
    narrow = evaluate_encoder(values, labels, (3, 1), training=training, folds=5, every=10)
    assert wide.overcomplete and not narrow.overcomplete
    assert wide.epochs.tolist() == [10, 20] and wide.folds.shape == (2, 5) and len(wide.losses) == 2
    assert wide.losses[-1] < narrow.losses[-1]
    assert wide.equivalent(0.05) and not narrow.equivalent(0.05)
    assert wide.reference == narrow.reference > 0.95
    with pytest.raises(InputError, match="two classes"):
        evaluate_encoder(values, np.zeros(240, dtype=int), (3, 1))


def test_the_papers_partition_of_breast_cancer():
    """V-A c: five columns at the active party, three of them go over in the order that is printed."""
    left = {
        5: ["worst compactness", "concave points error", "smoothness error", "mean texture", "worst fractal dimension"],
        4: ["concave points error", "smoothness error", "mean texture", "worst fractal dimension"],
        3: ["smoothness error", "mean texture", "worst fractal dimension"],
        2: ["mean texture", "worst fractal dimension"],
    }
    for count, names in left.items():
        data = va.load_dataset("breast-cancer", partition=f"apc-vfl:{count}")
        assert [column.name for column in data.blocks["client1"].columns] == names
        assert data.blocks["client2"].width == 30 - count
        assert not set(names) & {column.name for column in data.blocks["client2"].columns}
    assert va.load_dataset("breast-cancer", partition="apc-vfl").blocks["client1"].width == 5


def test_the_papers_rows_of_breast_cancer():
    data = va.load_dataset("breast-cancer", partition="apc-vfl", **APC_VFL_PARTIAL["breast-cancer"])
    assert [len(data.split[part]) for part in ("train", "validation", "test")] == [500, 0, 62]
    assert data.blocks["client1"].present.all() and len(data.aligned("train")) == 100
    assert data.blocks["client2"].present[data.split["test"]].all()
    for count in (250, 200, 150, 100):
        data = va.load_dataset("breast-cancer", partition="apc-vfl", **apc_vfl_classical(count))
        assert (len(data.aligned("train")), len(data.aligned("test"))) == (count - 50, 50)
    mimic = va.load_dataset("synthetic:shape=mimic-iii,rows=20000,classes=4", **APC_VFL_PARTIAL["mimic-iii"])
    assert (len(mimic.split["train"]), len(mimic.aligned("train")), len(mimic.split["test"])) == (19_500, 2500, 500)


@given(aligned=st.integers(1, 84), parties=st.integers(2, 4), seed=st.integers(0, 50))
@settings(max_examples=10, deadline=None)
def test_aligned_rows_as_asked_for(aligned, parties, seed):
    data = va.load_dataset("wine", parties=parties, aligned=aligned, rows=120, aux=0.0, seed=seed)
    assert len(data.aligned("train")) == aligned and data.blocks["client1"].present.all()


def test_bad_numbers_of_aligned_rows_are_told():
    with pytest.raises(InputError, match="aligned=0"):
        va.load_dataset("wine", aligned=0)
    with pytest.raises(InputError, match="not both"):
        va.load_dataset("wine", aligned=5, overlap=0.5)


def test_stand_in_for_mimic_has_its_shape_and_split():
    data = va.load_dataset("synthetic:shape=mimic-iii,rows=300,classes=4,skew=1", partition="apc-vfl:3")
    assert [column.name for column in data.blocks["client1"].columns] == ["Age", "NumCallouts", "NumDiagnosis"]
    assert data.blocks["client2"].width == 12 and len(data.classes) == 4
    assert "synthetic" in data.name
    assert small(epochs=1).run(data).utility["f1_weighted"] > 0


def test_bad_settings_are_told_in_one_sentence():
    for wrong, message in (
        ({"distilled_layers": "256x128"}, "as wide as g2"),
        ({"passive_layers": "0"}, "one unit or more"),
        ({"variant": "distiled"}, "input should be"),
    ):
        with pytest.raises(InputError, match=message):
            va.core.config.configure(APCVFL, wrong, "protocol 'apc-vfl'")
    with pytest.raises(InputError, match="is a regression"):
        small().run(va.load_dataset("diabetes", parties=2))
    with pytest.raises(InputError, match="party to be the active one"):
        small(active="client9").run(va.load_dataset("wine", parties=2))
    nothing = va.load_dataset("wine", parties=2)
    gone = replace(nothing.blocks["client2"], present=np.zeros(len(nothing), dtype=bool))
    with pytest.raises(InputError, match="fewer than two training rows"):
        small().run(replace(nothing, blocks={**nothing.blocks, "client2": gone}))
