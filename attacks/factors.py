"""What a federated decomposition tells the active party: everybody else's table, up to a rotation."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from attacks.base import FeatureAttack, Requirement
from attacks.isometry import SOMEBODY, IsometricAlignment
from attacks.known_samples import solve
from vflaudit.core.baseline import no_message_fits
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.view import Embedding, View
from vflaudit.errors import InputError
from vflaudit.protocols.apcvfl.parties import ACTIVE
from vflaudit.protocols.vfedtrans.fedsvd import orthogonal

FACTORS = Requirement(
    "the active party's messages of FedSVD or VFedPCA (protocol vfedtrans, --corrupts active)",
    lambda view: ACTIVE in view.states and any(m.kind in ("factors", "merged") for m in view.transcript),
)
ROUNDING = 1e-9  # eigenvalues below this share of the largest are none


class FactorReconstruction(FeatureAttack):
    """Turn the factors that VFedTrans gives the active party back into the passive party's columns.

    FedSVD hands over U and the singular values of the joint table X = [X_a X_p]. Then X X' = U S^2 U', and the active
    party subtracts X_a X_a' from it: what is left is X_p X_p', so X_p itself up to a rotation of its columns, exactly.
    As many known people as columns undo a rotation; so does, less well, the population (`isometric-alignment`).
    Without singular values, or from VFedPCA's averaged vectors, the columns are about linear in what arrives, and known
    people undo that. Several passive parties are one joint table to this attack.
    """

    name: ClassVar[str] = "factor-reconstruction"
    requires: ClassVar[tuple[Requirement, ...]] = (FACTORS, SOMEBODY)

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        sent, exact = joint_table(view)
        samples = view.knowledge.samples
        if samples is None or samples.handles is None:
            return self._from_population(view, sent, exact, seed)
        usable = np.isin(samples.handles, sent.rows)
        pairs, features, errors = sent.at(samples.handles[usable]), {}, {}
        for party in self.victims(view):
            targets = samples.features[party][usable]
            found, errors[party] = solve(pairs, targets)
            prior = min(no_message_fits(view, party, seed), key=lambda fit: fit.mse)
            size = max(float(targets.var(axis=0).sum()), 1e-300)
            if found is None or errors[party] ** 2 > prior.errors.mean(axis=0).sum() / size:
                values = np.array(prior.predict(view.own_columns()[sent.rows]))  # too few people to tell more
            else:
                values = sent.values @ found
            features[party] = RowGuess(sent.rows, values)
        verified = bool(errors) and max(errors.values()) < 1e-3
        return {"features": features, "verified": verified, "notes": {"left_out_relative_error": errors}}

    def _from_population(self, view: View, sent: Embedding, exact: bool, seed: int) -> dict[str, Any]:
        """A rotation found from other people; only where the table is known up to one, and is one party's."""
        if not exact or len(view.victims) > 1:
            raise InputError(
                f"attack {self.name!r} without known samples needs FedSVD's singular values and one honest party; "
                f"honest here: {', '.join(view.victims)}"
            )
        values, trust = IsometricAlignment().guess(view, view.victims[0], sent.values, sent.rows, seed)
        return {"features": {view.victims[0]: RowGuess(sent.rows, values)}, "notes": {"trust": trust}}


def joint_table(view: View) -> tuple[Embedding, bool]:
    """All that arrived, one row per shared row; true if it is the victims' table up to a rotation."""
    merged = [message for message in view.transcript.select(kind="merged") if message.receiver == ACTIVE]
    if merged:
        assert merged[0].rows is not None
        last = merged[view.spec.parameters["periods"] - 1 :: view.spec.parameters["periods"]]
        return Embedding(merged[0].rows, np.stack([m.arrays["values"] for m in last], axis=1)), False
    secrets = view.states[ACTIVE].secrets
    rows, factors = secrets["aligned rows"], next(iter(view.transcript.select(kind="factors"))).arrays
    key = int.from_bytes(secrets["row_seed"].tobytes(), "little")
    turn = orthogonal(len(rows), view.spec.parameters["mask_block"], np.random.default_rng(key))
    left = turn.T @ factors["left"]
    if "values" not in factors:
        return Embedding(rows, left * np.sqrt(len(rows))), False
    gram = (left * factors["values"] ** 2) @ left.T
    for party, state in view.states.items():
        if state.features is not None and party in view.spec.columns:
            gram -= state.features[rows] @ state.features[rows].T
    return Embedding(rows, table_of_gram(gram, sum(len(view.spec.columns[party]) for party in view.victims))), True


def table_of_gram(gram: Array, width: int) -> Array:
    """A table with these products between rows, of at most so many columns."""
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1][:width], vectors[:, ::-1][:, :width]
    keep = values > ROUNDING * max(values[0], 1e-300)
    return vectors[:, keep] * np.sqrt(values[keep])
