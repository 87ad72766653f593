"""Guests as processes of their own, which may die or hang in the middle of an epoch (IV-E, the practical setting).

The host asks by number and waits until a timeout; an answer with another number is late and is thrown away, so that a
guest that comes back never mixes batches up. A guest with an unanswered question is not asked again until it answers.
Questions and answers are safetensors over a socket pair: no pickle.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import numpy as np
from safetensors import numpy as safetensors

from vflaudit.core.dataset import Array
from vflaudit.errors import InputError
from vflaudit.protocols.tabvfl.failures import Silent

if TYPE_CHECKING:
    from vflaudit.protocols.tabvfl.protocol import TabVFL

START_SECONDS = 120  # importing PyTorch on a busy machine; also the longest that half a message may take
TASKS = ("introduce", "begin", "represent", "reconstruct", "update", "parameters")


def pack(task: int, number: int, arrays: Mapping[str, Array]) -> bytes:
    """One question or answer."""
    return safetensors.save({"#": np.array([task, number]), **{name: np.array(a) for name, a in arrays.items()}})


def unpack(payload: bytes) -> tuple[int, int, dict[str, Array]]:
    """Task, number, arrays."""
    arrays = safetensors.load(payload)
    task, number = arrays.pop("#").tolist()
    return task, number, arrays


class RemoteGuest:
    """The host's end of a guest in another process. Leaving the context ends the process."""

    def __init__(self, protocol: TabVFL, party: str, values: Array, chunk: int, seed: int) -> None:
        if sys.platform == "win32":
            raise InputError("processes=True needs a POSIX system")
        mine, other = socket.socketpair()
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            mine.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", START_SECONDS, 0))
        command = [sys.executable, "-m", "vflaudit.protocols.tabvfl.guest_process", str(other.fileno())]
        self.process = subprocess.Popen(command, pass_fds=(other.fileno(),), stdin=subprocess.DEVNULL)
        other.close()
        self.connection = Connection(mine.detach())
        self.party, self.timeout = party, protocol.timeout
        self.number, self.waiting, self.gone = 0, False, False
        who = {"protocol": protocol.parameters(), "party": party, "chunk": chunk, "seed": seed}
        about = np.frombuffer(json.dumps(who).encode(), dtype=np.uint8)
        self._introduction = {"about": about, "values": values}

    def __enter__(self) -> RemoteGuest:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()  # a guest that reads sees the end and stops
        self.process.kill()
        self.process.wait()

    def _ask(self, task: str, arrays: Mapping[str, Array], seconds: float | None = None) -> dict[str, Array]:
        """Ask, and wait for the answer to this very question."""
        if self.gone:
            raise Silent(self.party)
        try:
            if self.waiting and self._answer(0.0) is None:
                raise Silent(self.party)
            self.number, self.waiting = self.number + 1, True
            self.connection.send_bytes(pack(TASKS.index(task), self.number, arrays))
            answer = self._answer(self.timeout if seconds is None else seconds)
        except (OSError, EOFError):  # the process is no more
            self.gone = True
            raise Silent(self.party) from None
        if answer is None:
            raise Silent(self.party)
        return answer

    def _answer(self, seconds: float) -> dict[str, Array] | None:
        """The answer to the last question, if it comes in time."""
        until = time.monotonic() + seconds
        while self.connection.poll(max(0.0, until - time.monotonic())):
            _, number, arrays = unpack(self.connection.recv_bytes())
            if number == self.number:
                self.waiting = False
                return arrays
        return None

    def begin(self, *, finetuning: bool) -> None:
        if self._introduction:  # here and not earlier, so that all processes start at once
            self._ask("introduce", self._introduction, START_SECONDS)
            self._introduction = {}
        self._ask("begin", {"finetuning": np.array([finetuning])})

    def represent(self, rows: Array, *, masked: bool, train: bool, epoch: int | None = None) -> dict[str, Array]:
        when = np.array([] if epoch is None else [epoch], dtype=np.int64)
        return self._ask("represent", {"rows": rows, "flags": np.array([masked, train]), "epoch": when})

    def reconstruct(self, decoded: Array) -> tuple[float, Array]:
        answer = self._ask("reconstruct", {"values": decoded})
        return float(answer["loss"][0]), answer["gradient"]

    def update(self, gradient: Array) -> None:
        self._ask("update", {"values": gradient})

    def parameters(self) -> dict[str, Array]:
        return self._ask("parameters", {})
