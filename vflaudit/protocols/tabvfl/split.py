"""Alg. 1 and 2 over the wire: TabVFL, TabVFL-LE, and the fine-tuning of Local TabNets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream
from vflaudit.core.run import Model
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.hosted import HOST
from vflaudit.protocols.networks import Predictor, SplitNetwork, outputs_to_predictions, parameters_of
from vflaudit.protocols.tabvfl.alone import pretrain
from vflaudit.protocols.tabvfl.blocks import Absent, ConcatHead, Head, JoinHead, SumHead, seeded_tabnet
from vflaudit.protocols.tabvfl.evaluation import outcome, validation_score
from vflaudit.protocols.tabvfl.failures import Attendance, Cache, Silent
from vflaudit.protocols.tabvfl.guest import AnyGuest, Guest, load, make_modules
from vflaudit.protocols.tabvfl.loop import fit
from vflaudit.protocols.tabvfl.protocol import TabVFL
from vflaudit.protocols.training import Labels, party_states


def run(protocol: TabVFL, session: Session) -> Outcome:
    """Pretrain, fine-tune, serve, release."""
    with ExitStack() as stack:
        training = Split(protocol, session, stack)
        training.pretrain()
        training.finetune()
        return training.finish()


class Split:
    """The host's side of a run, and the wire between it and the guests."""

    def __init__(self, protocol: TabVFL, session: Session, stack: ExitStack) -> None:
        self.protocol, self.session, self.data, self.wire = protocol, session, session.data, session.wire
        self.parties = session.data.parties
        self.chunks = dict(zip(self.parties, protocol.chunks(len(self.parties)), strict=True))
        self.guests: dict[str, AnyGuest] = {}
        for party in self.parties:
            values = session.data.blocks[party].values
            if protocol.processes:
                from vflaudit.protocols.tabvfl.processes import RemoteGuest

                remote = RemoteGuest(protocol, party, values, self.chunks[party], session.seed)
                self.guests[party] = stack.enter_context(remote)
            else:
                self.guests[party] = Guest(protocol, party, values, self.chunks[party], session.seed)
        self.labels = Labels(session.data)
        self.head = seeded_tabnet(self._build_head, session.seed, "tabvfl", HOST)
        self.decoder = seeded_tabnet(protocol.shape.decoder, session.seed, "tabvfl", HOST, "decoder")
        self.masks = stream(session.seed, "tabvfl", HOST, "masks")
        self.attendance = Attendance(self.parties, protocol.p_fail, stream(session.seed, "tabvfl", "failures"))
        self.epochs = 0  # of the phases before this one
        self.unnamed: dict[int, list[Array]] = {}  # rows by epoch of training messages that do not name them

    def _build_head(self) -> Head:
        outputs = len(self.data.classes) if self.data.task == "classification" else 1
        protocol = self.protocol
        if protocol.variant == "le":
            return SumHead(protocol.latent, outputs)
        if protocol.variant == "lt":
            return JoinHead(protocol.latent, outputs)
        widths = [protocol.outputs_of(block.width) for block in self.data.blocks.values()]
        return ConcatHead(widths, protocol.shape, outputs)

    # --- one phase ------------------------------------------------------------------------------------------

    def pretrain(self) -> None:
        """Alg. 1; with Local TabNets every guest does it alone, without a message."""
        if self.protocol.variant == "lt":
            for party, guest in self.guests.items():
                assert isinstance(guest, Guest)
                with self.wire.computing(party):
                    pretrain(self.protocol, guest, self.data, self.session.seed, party)
            return
        self._phase(finetuning=False)

    def finetune(self) -> None:
        """Alg. 2."""
        self._phase(finetuning=True)

    def _phase(self, *, finetuning: bool) -> None:
        protocol, rows = self.protocol, self.data.aligned("validation")
        training = protocol.training(finetuning=finetuning)
        modules = (self.head,) if finetuning else (self.head, self.decoder)
        self.modules = nn.ModuleList(modules)
        self.optimiser = training.adam(self.modules)
        self.masked, self.kind = not finetuning, "representation" if finetuning else "intermediate"
        self.linkable = finetuning or protocol.order != "unlinkable"
        self.cache = Cache(len(self.data), {party: self._shapes(party) for party in self.parties}, protocol.on_failure)
        for party in self.parties:
            with self._asking(party):
                self.guests[party].begin(finetuning=finetuning)
        step = self._finetuning_step if finetuning else self._pretraining_step
        score = self._finetuning_score if finetuning else self._pretraining_score
        rng = stream(self.session.seed, "tabvfl", "batches", int(finetuning))

        def run_step(batch: Array, epoch: int) -> float:
            self.attendance.begin(epoch)
            if not self.modules.training:  # walking through all of TabNet's modules takes a while
                self.modules.train()
            return step(batch, self.epochs + epoch)

        def validate(epoch: int) -> float:
            self.modules.eval()
            order = rows if self.linkable else rng.permutation(rows)
            with torch.no_grad():
                return score(order, self.epochs + epoch)

        losses = fit(training, self.data.aligned("train"), rng, run_step, validate if len(rows) else None)
        self.epochs += len(losses)
        self.attendance.everybody()

    def _shapes(self, party: str) -> dict[str, tuple[int, ...]]:
        width = self.data.blocks[party].width
        of = self.protocol
        if of.variant == "tabvfl":
            shapes: dict[str, tuple[int, ...]] = {"values": (of.outputs_of(width),)}
            return shapes | ({"mask": (width,)} if self.masked and of.masks == "sent" else {})
        latent = self.chunks[party] if of.variant == "lt" else of.latent
        return {"values": (of.steps, latent) if self.masked else (latent,)}

    @contextmanager
    def _asking(self, party: str) -> Iterator[None]:
        """A guest works; if it does not answer, it is offline for the rest of the epoch."""
        with self.wire.computing(party):
            try:
                yield
            except Silent:
                self.attendance.lose(party)

    # --- steps ----------------------------------------------------------------------------------------------

    def _collect(self, rows: Array, epoch: int | None, *, train: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """What everybody sends about these rows, and the masks: fresh from guests that are online, or else recalled."""
        self.wire.next_round()
        sent: dict[str, Mapping[str, Array]] = {}
        for party in self.attendance.online:
            with self._asking(party):
                sent[party] = self.guests[party].represent(rows, masked=self.masked, train=train, epoch=epoch)
        got: dict[str, Mapping[str, Array]] = {}
        for party, values in sent.items():
            arrays = {name: values[name] for name in self.cache.tables[party]}
            arrays["values"] = self.session.protect("features_out", party, arrays["values"])
            handles = rows if self.linkable else None
            got[party] = self.wire.send(party, HOST, self.kind, arrays, rows=handles, epoch=epoch)
        parts, masks = [], []
        with self.wire.computing(HOST):
            for party in self.parties:
                if party in got:
                    self.cache.store(party, rows, got[party])
                arrays = dict(got[party]) if party in got else self.cache.recall(party, rows)
                parts.append(torch.from_numpy(arrays["values"]).requires_grad_(train))
                if self.masked and self.protocol.masks == "withheld":
                    size = (len(rows), self.data.blocks[party].width)
                    arrays["mask"] = self.masks.random(size) < self.protocol.mask_ratio
                if "mask" in arrays:
                    masks.append(torch.from_numpy(arrays["mask"]).float())
        return parts, masks

    def _pretraining_step(self, rows: Array, epoch: int) -> float:
        """Alg. 1, one mini-batch: intermediate results up, decoder parts down, losses up, gradients down."""
        parts, masks = self._collect(rows, epoch, train=True)
        if not self.linkable:
            self.unnamed.setdefault(epoch, []).append(rows)
        with self.wire.computing(HOST):
            decoded = self.decoder(self.head.steps(parts, masks))
        losses, gradients = self._reconstruct(decoded.detach(), rows, epoch)
        if not losses:  # nobody is left: there is nothing to learn from
            return 0.0
        with self.wire.computing(HOST):
            decoded.backward(gradients)
            self._update()
        self._return_gradients(parts, "intermediate_gradient", rows, epoch)
        return sum(losses)

    def _reconstruct(self, decoded: torch.Tensor, rows: Array, epoch: int) -> tuple[list[float], torch.Tensor]:
        """Alg. 1, lines 19-31: everybody's loss, and the gradient of their sum; zero where somebody is offline."""
        handles, losses, gradients = rows if self.linkable else None, [], torch.zeros_like(decoded)
        train = self.modules.training
        places = dict(zip(self.parties, torch.split(decoded, list(self.chunks.values()), dim=1), strict=True))
        answers: dict[str, tuple[float, Array]] = {}
        self.wire.next_round()
        for party in self.attendance.online:
            arrays = {"values": places[party].numpy()}
            got = self.wire.send(HOST, party, "decoded", arrays, rows=handles, epoch=epoch)
            with self._asking(party):
                answers[party] = self.guests[party].reconstruct(got["values"])
        self.wire.next_round()
        backs = dict(zip(self.parties, torch.split(gradients, list(self.chunks.values()), dim=1), strict=True))
        for party, (loss, back) in answers.items():
            told = {"values": np.array([loss], np.float32)}
            losses.append(float(self.wire.send(party, HOST, "loss", told, epoch=epoch)["values"][0]))
            if train:
                arrays = {"values": self.session.protect("gradients_out", party, back)}
                got = self.wire.send(party, HOST, "decoded_gradient", arrays, rows=handles, epoch=epoch)
                backs[party].copy_(torch.from_numpy(got["values"]))
        return losses, gradients

    def _finetuning_step(self, rows: Array, epoch: int) -> float:
        """Alg. 2, one mini-batch."""
        parts, _ = self._collect(rows, epoch, train=True)
        with self.wire.computing(HOST):
            latent, sparsity = self.head.latent(parts)
            loss = self.labels.loss(self.head.final_mapping(latent), rows)
            if sparsity is not None:
                loss = loss - self.protocol.lambda_sparse * sparsity
            loss.backward()
            self._update()
        self._return_gradients(parts, "gradient", rows, epoch)
        return float(loss.detach())

    def _update(self) -> None:
        if self.optimiser is not None:
            self.optimiser.step()
            self.optimiser.zero_grad()

    def _return_gradients(self, parts: list[torch.Tensor], kind: str, rows: Array, epoch: int) -> None:
        """Gradients at what the guests sent, to those who are still there."""
        self.wire.next_round()
        for party, part in zip(self.parties, parts, strict=True):
            if party not in self.attendance.online:
                continue
            assert part.grad is not None
            arrays = {"values": self.session.protect("gradients_out", HOST, part.grad.numpy())}
            handles = rows if self.linkable else None
            back = self.wire.send(HOST, party, kind, arrays, rows=handles, epoch=epoch)["values"]
            with self._asking(party):
                self.guests[party].update(back)

    # --- validation and serving -----------------------------------------------------------------------------

    def _pretraining_score(self, rows: Array, epoch: int) -> float:
        """Minus the mean reconstruction loss of the guests that are online; validation rows are masked too."""
        parts, masks = self._collect(rows, epoch, train=False)
        with self.wire.computing(HOST):
            decoded = self.decoder(self.head.steps(parts, masks))
        losses, _ = self._reconstruct(decoded, rows, epoch)
        return -sum(losses) / len(losses) if losses else -math.inf

    def _finetuning_score(self, rows: Array, epoch: int) -> float:
        """Weighted F1, or minus the squared error."""
        parts, _ = self._collect(rows, epoch, train=False)
        with self.wire.computing(HOST):
            outputs = self.head(parts)
            return validation_score(outputs, self.labels, self.data, rows)

    @torch.no_grad()
    def finish(self) -> Outcome:
        """Serve all rows (the host keeps their latent vectors, Fig. 4), then release the model."""
        rows = np.concatenate([self.data.aligned(part) for part in self.data.split])
        self.masked, self.kind, self.linkable = False, "representation", True
        self.head.eval()
        parts, _ = self._collect(rows, None, train=False)
        with self.wire.computing(HOST):
            latent = self.head.latent(parts)[0]
            labels = self.labels
            outputs = self.head.final_mapping(latent)
            predictions = outputs_to_predictions(outputs, self.data.task, labels.centre, labels.scale)
        modules: dict[str, nn.Module] = {HOST: nn.ModuleDict({"head": self.head, "decoder": self.decoder})}
        bottoms: dict[str, nn.Module] = {}
        for party in self.parties:
            bottoms[party] = Absent(int(np.prod(self._shapes(party)["values"])))
            with self._asking(party):
                width, chunk = self.data.blocks[party].width, self.chunks[party]
                own = make_modules(self.protocol, party, width, chunk, self.session.seed)
                load(own, self.guests[party].parameters())
                modules[party], bottoms[party] = own, own["bottom"]
        network = SplitNetwork(bottoms, self.head)
        predictor = Predictor(network, self.parties, self.data.task, labels.centre, labels.scale)
        model = Model(predictor, parameters_of(network))
        states = party_states(self.data, modules)
        notes = {"epochs": float(self.epochs), "offline_epochs": float(self.attendance.missed)}
        made = outcome(self.protocol, self.session, states, model, rows, latent.numpy(), predictions, notes)
        order = np.concatenate(self.unnamed[max(self.unnamed)]) if self.unnamed else None
        return replace(made, order=order)  # positions are those in pretraining's last epoch of training messages
