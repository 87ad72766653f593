"""The five games. A game owns the secret, the baseline and the scorer."""

from vflaudit.core.games.base import Game, Guess, RowGuess, Score
from vflaudit.core.games.distinguishing import Distinguishing
from vflaudit.core.games.labels import LabelInference
from vflaudit.core.games.membership import Membership
from vflaudit.core.games.reconstruction import Reconstruction
from vflaudit.core.games.reidentification import Reidentification

GAMES: dict[str, type[Game]] = {
    game.name: game for game in (Reconstruction, LabelInference, Membership, Reidentification, Distinguishing)
}

__all__ = [
    "GAMES",
    "Distinguishing",
    "Game",
    "Guess",
    "LabelInference",
    "Membership",
    "Reconstruction",
    "Reidentification",
    "RowGuess",
    "Score",
]
