"""Who spent what: protocols write events here while they run, and the books are read when the run is over."""

from __future__ import annotations

from dataclasses import replace

from vflaudit.accounting.events import Composed, Event, SampledGaussian


class Ledger:
    """Events by party, in the order in which they happened. Equal steps in a row are kept as one event."""

    def __init__(self) -> None:
        self._events: dict[str, list[Event]] = {}

    def spend(self, party: str, event: Event) -> None:
        """Write down that `party` did `event` with its people's data."""
        events = self._events.setdefault(party, [])
        last = events[-1] if events else None
        if (
            isinstance(last, SampledGaussian)
            and isinstance(event, SampledGaussian)
            and replace(last, steps=0) == replace(event, steps=0)
        ):
            events[-1] = replace(last, steps=last.steps + event.steps)
        else:
            events.append(event)

    @property
    def parties(self) -> tuple[str, ...]:
        """Everybody who has written something."""
        return tuple(self._events)

    def of(self, party: str) -> Composed:
        """Everything that one party did; nothing, if it has not written."""
        return Composed(self._events.get(party, ()))

    def total(self) -> Composed:
        """Everything that was done to the same people, at all parties."""
        return Composed(self.of(party) for party in self._events)

    def __bool__(self) -> bool:
        return bool(self._events)

    def __str__(self) -> str:
        return "\n".join(f"{party}: {self.of(party)}" for party in self._events) or "nothing was spent"
