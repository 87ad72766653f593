"""The process of one guest: `python -m vflaudit.protocols.tabvfl.guest_process FD` answers what the host asks."""

from __future__ import annotations

import json
import sys
from multiprocessing.connection import Connection

import numpy as np
import torch

from vflaudit.core.dataset import Array
from vflaudit.protocols.tabvfl.guest import Guest
from vflaudit.protocols.tabvfl.processes import TASKS, pack, unpack
from vflaudit.protocols.tabvfl.protocol import TabVFL


def introduce(arrays: dict[str, Array]) -> Guest:
    """Build the guest from what the host says and the guest's own columns."""
    about = json.loads(arrays["about"].tobytes())
    return Guest(TabVFL(**about["protocol"]), about["party"], arrays["values"], about["chunk"], about["seed"])


def answer(guest: Guest, task: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """Do one task."""
    if task == "begin":
        guest.begin(finetuning=bool(arrays["finetuning"][0]))
    elif task == "represent":
        masked, train = arrays["flags"].tolist()
        epoch = arrays["epoch"].tolist()
        return guest.represent(arrays["rows"], masked=masked, train=train, epoch=epoch[0] if epoch else None)
    elif task == "reconstruct":
        loss, gradient = guest.reconstruct(arrays["values"])
        return {"loss": np.array([loss]), "gradient": gradient}
    elif task == "update":
        guest.update(arrays["values"])
    elif task == "parameters":
        return guest.parameters()
    return {}


def serve(connection: Connection) -> None:
    """Answer until the host hangs up."""
    guest: Guest | None = None
    while True:
        try:
            number, count, arrays = unpack(connection.recv_bytes())
        except (EOFError, OSError):
            return
        if guest is None:
            guest, result = introduce(arrays), {}
        else:
            result = answer(guest, TASKS[number], arrays)
        connection.send_bytes(pack(number, count, result))


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(Connection(int(sys.argv[1])))
