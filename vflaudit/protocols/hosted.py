"""Protocols with a host: it holds the labels and columns of its own, guests hold the other columns."""

from __future__ import annotations

from vflaudit.core.dataset import VerticalDataset
from vflaudit.errors import unknown

HOST = "host"


def with_host(data: VerticalDataset, host: str | None) -> VerticalDataset:
    """The same data at host, guest1, guest2, ...; by default the label owner is the host, or else the first party."""
    chosen = host or (data.label_owner if data.label_owner in data.parties else data.parties[0])
    if chosen not in data.parties:
        raise unknown("party to be the host", chosen, data.parties)
    guests = [party for party in data.parties if party != chosen]
    names = {chosen: HOST} | {party: f"guest{number}" for number, party in enumerate(guests, 1)}
    return data.rename(names, label_owner=HOST)


def guests_of(data: VerticalDataset) -> tuple[str, ...]:
    """Everybody with columns but the host."""
    return tuple(party for party in data.parties if party != HOST)
