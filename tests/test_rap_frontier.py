"""The plane of remedies is measured, not told."""

from __future__ import annotations

from pathlib import Path

import pytest

from vflaudit.claims.drawing import draw_all
from vflaudit.claims.rap import frontier
from vflaudit.claims.rap.frontier import Point, words


def point(name: str, accuracy: float, advantage: float) -> Point:
    return Point(name, (accuracy,) * 2, (advantage - 0.01, advantage + 0.01), "known-sample-reconstruction")


def test_a_remedy_survives_only_if_it_hides_and_keeps_accuracy() -> None:
    points = [
        point("plain", 0.95, 1.0),
        point("good", 0.94, 0.02),
        point("dear", 0.7, 0.02),
        point("leaky", 0.94, 0.3),
        point("both", 0.7, 0.3),
    ]
    assert [p.verdict(0.95) for p in points] == ["leaks", "survives", "costs too much", "leaks", "leaks"]
    assert Point("some", (0.94,) * 2, (0.0, 0.4), "leverage-matching").verdict(0.95) == "unsettled"
    text = words(points)
    assert "keeps accuracy: good (+0.02)." in text and "costs accuracy: dear (accuracy 0.70)." in text
    assert "keeps accuracy: none." in words(points[:1])


def test_the_plane_is_drawn_from_a_fresh_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = ("as published", "secure shuffle", "local noise, epsilon 5")
    monkeypatch.setattr(frontier, "SEEDS", 1)
    monkeypatch.setattr(frontier, "REMEDIES", {name: frontier.REMEDIES[name] for name in some})
    points = frontier.measured()
    assert [p.name for p in points] == [*some, frontier.GROUPED]
    plain, shuffled, noisy, grouped = points
    assert plain.advantage[0] > 0.99 and shuffled.advantage[0] > 0.99 and shuffled.attack == "leverage-matching"
    assert noisy.advantage[0] < 0.1 and noisy.accuracy[0] < plain.accuracy[0] - 0.1
    assert 0.2 < grouped.advantage[0] < 0.99
    monkeypatch.setattr(frontier, "measured", lambda: points)
    (entry,) = draw_all(tmp_path, {"remedies": frontier.remedies})
    content = (tmp_path / entry["file"]).read_bytes()
    assert b"<svg" in content
    (again,) = draw_all(tmp_path, {"remedies": frontier.remedies})
    assert (tmp_path / again["file"]).read_bytes() == content
