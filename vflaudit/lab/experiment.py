"""One experiment: a protocol on data, an adversary, an attack, a game. Plain values in, one JSON object out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vflaudit import registry
from vflaudit.core.adversary import Adversary, parse_known
from vflaudit.core.config import configure
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.games import GAMES, Game
from vflaudit.core.loading import load_dataset, parse_data
from vflaudit.core.transcript import Recording
from vflaudit.errors import InputError, unknown

if TYPE_CHECKING:
    from attacks.base import Attack
    from defenses.base import Defense
    from vflaudit.protocols.base import Protocol


class Experiment(BaseModel):
    """What to do, in the words of the command line. Everything that decides the result is here."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    protocol: str
    attack: str
    data: str = "breast-cancer"
    game: str | None = Field(None, description="none: the attack's own game")
    party: str | None = Field(None, description="whom to attack; none: the first honest party with columns")
    corrupts: tuple[str, ...] | None = Field(None, description="none: the protocol's default")
    knows: tuple[str, ...] = ()
    defenses: tuple[str, ...] = ()
    set: dict[str, Any] = Field(default_factory=dict, description="protocol and attack parameters")
    parties: int | None = None
    partition: str = "round-robin"
    split: str | None = None
    label: str | None = None
    task: Literal["classification", "regression"] | None = None
    id_column: str | None = None
    aux: float = 0.3
    overlap: float = 1.0
    aligned: int | None = Field(None, description="so many training rows that every party holds; none: as overlap says")
    shares: tuple[float, float, float] = Field((0.7, 0.1, 0.2), description="train, validation and test rows")
    alpha: float = 0.5
    rows: int | None = None
    record: str = "all"
    seed: int = Field(0, ge=0)
    control: Literal["positive", "negative"] | None = Field(None, description="a control, not a finding")

    def load_data(self) -> VerticalDataset:
        """The dataset; split, partition and knowledge vary with the seed."""
        return load_dataset(
            self.data,
            parties=self.parties,
            partition=self.partition,
            split=self.split,
            label=self.label,
            task=self.task,
            id_column=self.id_column,
            aux=self.aux,
            overlap=self.overlap,
            aligned=self.aligned,
            shares=self.shares,
            alpha=self.alpha,
            rows=self.rows,
            seed=self.seed,
        )

    def run_part(self) -> dict[str, Any]:
        """What decides the protocol's run, apart from the attack: experiments that share it share the run."""
        left_out = {"attack", "game", "party", "corrupts", "knows", "control"}
        return self.model_dump(mode="json", exclude=left_out)


@dataclass(frozen=True)
class Setup:
    """An experiment with its names looked up and its parameters checked."""

    protocol: Protocol
    attack: Attack
    game: type[Game]
    defenses: tuple[Defense, ...]
    recording: Recording

    def adversary(self, experiment: Experiment) -> Adversary:
        """Who attacks."""
        corrupts = experiment.corrupts if experiment.corrupts is not None else self.protocol.default_corrupts()
        return Adversary(corrupts, [parse_known(item) for item in experiment.knows])


def prepare(experiment: Experiment) -> Setup:
    """Look everything up; whatever is wrong is told before anything runs."""
    protocol_class = registry.load("protocols", experiment.protocol)
    attack_class = registry.load("attacks", experiment.attack)
    for_protocol, for_attack = split_settings(experiment, protocol_class, attack_class)
    attack = configure(attack_class, for_attack, f"attack {experiment.attack!r}")
    game = experiment.game or attack.games[0]
    if game not in GAMES:
        raise unknown("game", game, GAMES)
    if game not in attack.games:
        raise InputError(f"attack {attack.name!r} does not play {game!r}: it plays {', '.join(attack.games)}")
    setup = Setup(
        protocol=configure(protocol_class, for_protocol, f"protocol {experiment.protocol!r}"),
        attack=attack,
        game=GAMES[game],
        defenses=tuple(parse_defense(text) for text in experiment.defenses),
        recording=Recording.parse(experiment.record),
    )
    setup.adversary(experiment)
    return setup


def split_settings(experiment: Experiment, protocol: Any, attack: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Each setting goes to whoever has a parameter of that name; `protocol.x` and `attack.x` say it outright."""
    plain = {key: value for key, value in experiment.set.items() if "." not in key}
    fields = {"protocol": protocol.known_parameters(plain), "attack": set(attack.model_fields) - {"party"}}
    parts: dict[str, dict[str, Any]] = {"protocol": {}, "attack": {}}
    for key, value in experiment.set.items():
        side, dot, name = key.partition(".")
        if dot:
            if side not in parts:
                raise InputError(f"--set {key!r}: expected protocol.NAME or attack.NAME")
            parts[side][name] = value
            continue
        owners = [owner for owner in parts if key in fields[owner]]
        if not owners:
            what = f"parameter of protocol {experiment.protocol!r} or attack {experiment.attack!r}"
            raise unknown(what, key, fields["protocol"] | fields["attack"])
        if len(owners) > 1:
            raise InputError(f"--set {key!r}: both have it, say protocol.{key} or attack.{key}")
        parts[owners[0]][key] = value
    if experiment.party is not None and "party" in attack.model_fields:
        parts["attack"]["party"] = experiment.party
    return parts["protocol"], parts["attack"]


def parse_defense(text: str) -> Defense:
    """`gaussian-noise:sigma=0.5` -> the defense."""
    name, options = parse_data(text)
    return configure(registry.load("defenses", name), options, f"defense {name!r}")


def make_game(setup: Setup, experiment: Experiment, victims: Sequence[str]) -> Game:
    """The game, about the party that is attacked where it is about a party."""
    if not setup.game.needs_party:
        return setup.game()
    party = experiment.party or (victims[0] if victims else None)
    if party is None:
        raise InputError("no honest party with columns is left to attack")
    if party not in victims:
        raise unknown("honest party with columns", party, victims)
    return configure(setup.game, {"party": party}, f"game {setup.game.name!r}")
