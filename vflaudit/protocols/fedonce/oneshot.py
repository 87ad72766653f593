"""Algorithms 1 and 2 over the wire: guests train and send once, the host trains, everybody serves; then, if asked, on
as SplitNN (3.2, multi-round)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from safetensors import numpy as safetensors
from torch import nn

from defenses.base import Protection
from vflaudit.accounting.events import NonPrivate
from vflaudit.accounting.ledger import Ledger
from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.randomness import child_seed, stream
from vflaudit.core.run import Model
from vflaudit.core.transcript import Recording, Transcript
from vflaudit.core.wire import Wire
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.fedonce.descent import Optimiser, Training, batches
from vflaudit.protocols.fedonce.gradients import network_of, outputs_of, vector_of, write
from vflaudit.protocols.fedonce.host import HostLoss, train_host
from vflaudit.protocols.fedonce.nat import GuestTask, unit_targets
from vflaudit.protocols.fedonce.networks import HostNetwork, OneShotNetwork, fully_connected, local_model
from vflaudit.protocols.fedonce.privacy import events, privacies
from vflaudit.protocols.fedonce.protocol import FedOnce
from vflaudit.protocols.hosted import HOST, guests_of
from vflaudit.protocols.networks import Predictor, outputs_to_predictions, parameters_of, seeded, utility_of
from vflaudit.protocols.training import party_states, with_validation


class OneShot:
    """The moving parts of one run. Each module, and each array that is not a message, lives at one party."""

    def __init__(self, protocol: FedOnce, session: Session) -> None:
        self.protocol, self.session, self.data, self.wire = protocol, session, session.data, session.wire
        self.plan, self.guests, self.train = protocol.plan(self.data), guests_of(self.data), self.data.aligned("train")
        self.late = self.guests[len(self.guests) - protocol.laggy :]
        self.loss = HostLoss(self.data, self.train, protocol.host_loss)
        setting, people = self.plan.setting, len(self.train)
        kind, hidden, width = setting.guest_model, setting.guest_hidden, setting.dimension
        tanh = protocol.guest_output == "tanh"
        self.modules: dict[str, nn.Module] = {}
        for party in self.guests:
            if protocol.variant == "pca":
                with self.wire.computing(party):
                    values = self.data.blocks[party].values[self.train]
                    self.modules[party] = principal_components(values, width)
            else:
                build = partial(local_model, kind, self.data.blocks[party], hidden, width, tanh=tanh)
                self.modules[party] = seeded(build, session.seed, party)
        self.widths = {party: _outputs(module) for party, module in self.modules.items()}
        joined = width + sum(self.widths.values())
        self.modules[HOST] = seeded(
            lambda: HostNetwork(
                local_model(kind, self.data.blocks[HOST], hidden, width),
                fully_connected(joined, setting.host_hidden, self.loss.outputs),
            ),
            session.seed,
            HOST,
        )
        self.networks = {party: network_of(module) for party, module in self.modules.items()}
        self.parameters = {party: vector_of(module) for party, module in self.modules.items()}
        private = privacies(protocol, self.plan, self.guests, people) if protocol.private else {}
        self.trainings = {
            party: self.plan.training(setting.host if party == HOST else setting.guest, private.get(party))
            for party in self.modules
        }
        self.targets: dict[str, Array] = {}
        self.curve: dict[str, float] = {}
        self.ledger = Ledger()

    def run(self) -> Outcome:
        """Train, serve validation and test rows, release."""
        losses = self.one_shot() if self.protocol.variant != "splitnn" else []
        if self.protocol.variant in ("multi-round", "splitnn"):
            epochs = self.protocol.joint_epochs if losses else self.plan.setting.host.epochs
            losses = [*losses, *self.jointly(epochs)]
        costs = self.wire.costs
        model = self.released()
        spent = {"training_rounds": float(costs.rounds), "training_bytes": float(costs.total.bytes)}
        utility = with_validation(self.serve("test"), self.serve("validation"), losses) | spent | self.curve
        states = party_states(self.data, self.modules)
        for party, targets in self.targets.items():
            parameters = {**states[party].parameters, "targets": targets}
            states[party] = replace(states[party], parameters=parameters)
        return Outcome(states, model, utility, ledger=self.ledger)

    def released(self) -> Model:
        """Everybody's networks as one, with the parameters that they have by now."""
        for party, module in self.modules.items():
            write(module, self.parameters[party])
        network = OneShotNetwork({party: self.modules[party] for party in self.guests}, self._host(), self.late)
        parties = (HOST, *self.guests)
        predictor = Predictor(network, parties, self.data.task, self.loss.centre, self.loss.scale)
        return Model(predictor, parameters_of(network))

    def _host(self) -> HostNetwork:
        module = self.modules[HOST]
        assert isinstance(module, HostNetwork)
        return module

    # --- Algorithm 1 ----------------------------------------------------------------------------------------

    def one_shot(self) -> list[float]:
        """Guests learn and send R_j, the only message; then the host learns. Returns the host's losses."""
        self.wire.next_round()
        received = {}
        for party in self.guests:
            if party not in self.late:
                self.learn(party)
                received[party] = self.send(party, self.train)
        training = self.trainings[HOST]
        with self.wire.computing(HOST):
            descent = train_host(
                self.networks[HOST],
                self.parameters[HOST],
                self.data.blocks[HOST].values[self.train],
                self.joined(received, len(self.train)),
                self.loss,
                training,
                self.seed(HOST),
            )
        self.parameters[HOST] = descent.parameters
        self.spend(HOST, training, descent.largest_batch)
        return descent.losses.tolist()

    def learn(self, party: str) -> None:
        """Lines 2-15 at one guest."""
        if self.protocol.variant == "pca":
            self.ledger.spend(party, NonPrivate("principal components"))
            return
        with self.wire.computing(party):
            guest = self.task(party).train()
        self.parameters[party], self.targets[party] = guest.parameters, guest.targets
        self.spend(party, self.trainings[party], guest.descent.largest_batch)

    def task(self, party: str) -> GuestTask:
        """Everything that a guest's training depends on."""
        return GuestTask(
            self.networks[party],
            self.parameters[party],
            self.data.blocks[party].values[self.train],
            unit_targets(len(self.train), self.plan.setting.dimension, stream(self.seed(party), "targets")),
            self.trainings[party],
            self.seed(party),
            self.protocol.assignment,
            self.plan.setting.frequency,
        )

    def seed(self, party: str) -> int:
        """A party's own randomness."""
        return child_seed(self.session.seed, "fedonce", party)

    def spend(self, party: str, training: Training, largest_batch: int) -> None:
        """Write down what the training did with people's data."""
        guest = party != HOST
        fitted = self.data.standardised or (not guest and self.data.task == "regression")
        for event in events(self.protocol, training, len(self.train), largest_batch, guest=guest, standardised=fitted):
            self.ledger.spend(party, event)

    def represent(self, party: str, rows: Array) -> Array:
        """R_j = f_theta(x_j) for these rows."""
        values = self.data.blocks[party].values[rows]
        return outputs_of(self.networks[party], self.parameters[party], values).astype(np.float32)

    def send(self, party: str, rows: Array) -> Array:
        """A guest's representations of these rows, as the host gets them."""
        with self.wire.computing(party):
            out = self.session.protect("features_out", party, self.represent(party, rows))
        return self.wire.send(party, HOST, "representation", {"values": out}, rows=rows)["values"]

    def joined(self, received: Mapping[str, Array], count: int) -> Array:
        """Everybody's representations side by side; zeros for guests that are late (App. C)."""
        parts = [received.get(party, np.zeros((count, self.widths[party]))) for party in self.guests]
        return np.hstack(parts).astype(np.float64)

    # --- 3.2, extension to multi-round training -------------------------------------------------------------

    def jointly(self, epochs: int) -> list[float]:
        """Train all networks together as SplitNN: representations of each batch go up, gradients come down."""
        training = replace(self.trainings[HOST], epochs=epochs)
        budget, per_step = self.budget(), 0
        active = [party for party in self.guests if party not in self.late]
        optimisers = {party: Optimiser(training, len(self.parameters[party])) for party in (HOST, *active)}
        losses: dict[int, list[float]] = {}
        self.measure(0)
        for epoch, places in batches(training, len(self.train), stream(self.seed(HOST), "joint batches")):
            if losses and epoch not in losses:
                self.measure(epoch)
            before = self.wire.costs.total.bytes
            least = 8 * len(places) * sum(self.widths[party] for party in active)  # float32, there and back
            if budget is not None and before + max(per_step, least) > budget:
                break
            losses.setdefault(epoch, []).append(self.joint_step(places, epoch, active, optimisers))
            per_step = self.wire.costs.total.bytes - before
        self.measure(len(losses))
        for party in (HOST, *active):
            self.ledger.spend(party, NonPrivate("joint gradient descent without noise"))
        return [float(np.mean(each)) for each in losses.values()]

    def measure(self, epoch: int) -> None:
        """A point of Fig. 6: utility on test rows and bytes so far. It stands outside the protocol, nothing is sent."""
        rows = self.data.aligned("test")
        if not self.protocol.curve or not len(rows):
            return
        sent = {party: self.represent(party, rows) for party in self.guests if party not in self.late}
        found = self.predict(rows, sent)
        useful = utility_of(found, self.data.labels[rows], self.data.task)
        self.curve |= {f"epoch_{epoch}_{name}": value for name, value in useful.items()}
        self.curve[f"epoch_{epoch}_bytes"] = float(self.wire.costs.total.bytes)

    def budget(self) -> int | None:
        """Bytes that training may send in all."""
        if self.protocol.budget != "one-shot":
            return self.protocol.budget
        sizes = (self.widths[party] for party in self.guests if party not in self.late)
        return sum(len(safetensors.save({"values": np.zeros((len(self.train), w), np.float32)})) for w in sizes)

    def joint_step(
        self, places: Array, epoch: int, active: Sequence[str], optimisers: Mapping[str, Optimiser]
    ) -> float:
        """One batch, forth and back."""
        wire, rows = self.wire, self.train[places]
        wire.next_round()
        tapes, received = {}, {}
        for party in active:
            network = self.networks[party]
            with wire.computing(party):
                inputs = np.asarray(self.data.blocks[party].values[rows], dtype=network.dtype)
                outputs, tapes[party] = network.forward(self.parameters[party], inputs)
                sent = self.session.protect("features_out", party, outputs.astype(np.float32))
            arrays = {"values": sent}
            received[party] = wire.send(party, HOST, "representation", arrays, rows=rows, epoch=epoch)["values"]
        host = self.networks[HOST]
        with wire.computing(HOST):
            own = np.asarray(self.data.blocks[HOST].values[rows], dtype=host.dtype)
            outputs, tape = host.forward(self.parameters[HOST], own, self.joined(received, len(rows)))
            delta, loss = self.loss(outputs, places, epoch)
            gradient, side = host.gradient(self.parameters[HOST], tape, delta / len(rows))
            self.parameters[HOST] = optimisers[HOST].step(self.parameters[HOST], gradient)
            ends = np.cumsum([self.widths[party] for party in self.guests])[:-1]
            backs = dict(zip(self.guests, np.split(side, ends, axis=1), strict=True))
        wire.next_round()
        for party in active:
            arrays = {"values": np.ascontiguousarray(backs[party], dtype=np.float32)}
            back = wire.send(HOST, party, "gradient", arrays, rows=rows, epoch=epoch)["values"]
            with wire.computing(party):
                gradient = self.networks[party].gradient(self.parameters[party], tapes[party], back)[0]
                self.parameters[party] = optimisers[party].step(self.parameters[party], gradient)
        return loss

    # --- Algorithm 2 ----------------------------------------------------------------------------------------

    def serve(self, part: str) -> Mapping[str, float]:
        """Guests send their representations of new rows, the host predicts and scores."""
        rows = self.data.aligned(part)
        if len(rows) == 0:
            return {}
        self.wire.next_round()
        received = {party: self.send(party, rows) for party in self.guests if party not in self.late}
        with self.wire.computing(HOST):
            found = self.predict(rows, received)
        return utility_of(found, self.data.labels[rows], self.data.task)

    def predict(self, rows: Array, received: Mapping[str, Array]) -> Array:
        """Line 7, at the host."""
        own, sent = self.data.blocks[HOST].values[rows], self.joined(received, len(rows))
        outputs = outputs_of(self.networks[HOST], self.parameters[HOST], own, sent)
        return outputs_to_predictions(torch.from_numpy(outputs), self.data.task, self.loss.centre, self.loss.scale)


def guest_task(protocol: FedOnce, data: VerticalDataset, party: str, seed: int) -> GuestTask:
    """What this guest trains in a run with this seed, for an audit that trains it many times; `data` is prepared."""
    wire = Wire(protocol.parties(data), Transcript(Recording.none(), population=len(data)))
    return OneShot(protocol, Session(data, wire, Protection((), seed), seed)).task(party)


def principal_components(values: Array, width: int) -> nn.Sequential:
    """FedOnce-PCA (5.6): the first principal components of a guest's training rows, as a linear layer."""
    mean = values.mean(axis=0)
    axes = np.linalg.svd(values - mean, full_matrices=False)[2][:width]
    layer = nn.Linear(values.shape[1], len(axes))
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(axes))
        layer.bias.copy_(torch.from_numpy(-axes @ mean))
    return nn.Sequential(layer)


def _outputs(module: nn.Module) -> int:
    """Width of the last linear layer."""
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1].out_features
