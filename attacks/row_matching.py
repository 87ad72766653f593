"""Membership from messages: a candidate whose row is among those that the server solved was trained on."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from attacks.base import Attack, Requirement
from attacks.membership_base import CANDIDATES
from attacks.secure_forward import SecureLayerForward
from attacks.secure_rounds import AT_SERVER, SOLVABLE
from vflaudit.core.view import View


class RowMatching(Attack):
    """Score candidates by how near they are to a row that vFedSec's server solved from its messages.

    `secure-layer-forward` gives rows of every party, the columns of a cluster as often as it has parties. The server
    does not know whose rows they are: it need not.
    """

    name: ClassVar[str] = "row-matching"
    games: ClassVar[tuple[str, ...]] = ("membership",)
    requires: ClassVar[tuple[Requirement, ...]] = (AT_SERVER, SOLVABLE, CANDIDATES)

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        from scipy.spatial import cKDTree

        assert view.challenge is not None
        solved = SecureLayerForward().run(view, seed=seed)
        parties = {view.spec.columns[party]: party for party in solved.features}.values()
        seen = np.hstack([solved.features[party].values for party in parties])
        asked = np.hstack([view.challenge.features[party] for party in parties])
        return {"membership": -np.asarray(cKDTree(seen).query(asked)[0]), "notes": {"rows_solved": len(seen)}}
