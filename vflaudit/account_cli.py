"""`vflaudit account`: what DP-SGD at k parties costs together, as a table and a figure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vflaudit.terminal import print_json, show, working

FIELDS = ("parties", "accountant", "simple", "moments", "reduction")


def account(
    n: Annotated[int, typer.Option("--n", min=1, help="Training people.")] = 60000,
    batch: Annotated[int, typer.Option(min=1, help="Expected batch size.")] = 128,
    epochs: Annotated[float, typer.Option(help="Passes over the data, at each party.")] = 50,
    sigma: Annotated[float, typer.Option(help="Noise multiplier: the noise's deviation in clips.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Total delta.")] = 1e-5,
    parties: Annotated[str, typer.Option(help="How many parties: 4, 1:100 or 1,2,8.")] = "1:4",
    epsilon: Annotated[
        float | None, typer.Option(help="Find the sigma that keeps all parties together within this epsilon.")
    ] = None,
    scheme: Annotated[str, typer.Option(help="How batches are drawn: poisson or shuffled.")] = "poisson",
    neighbours: Annotated[str, typer.Option(help="Who is hidden: add-remove or replace-one.")] = "add-remove",
    sensitivity: Annotated[
        float, typer.Option(help="Clips by which one person changes the sum: 1 if each gradient is clipped by itself.")
    ] = 1.0,
    accountant: Annotated[
        list[str] | None,
        typer.Option(help="rdp-classic, rdp, prv or pld (extra 'accounting'); by default all that are installed."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Where to draw epsilon over the parties (.svg, .png or .pdf).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")] = False,
) -> None:
    """Account for DP-SGD at k parties over the same people: simple division against moments, calibration of sigma.

    Example: `vflaudit account --n 60000 --batch 128 --epochs 50 --sigma 1 --delta 1e-5 --parties 1:100`
    """
    from vflaudit.accounting import parties as books
    from vflaudit.accounting.validity import as_covered, gaps

    training = books.Training(n, batch, epochs, sigma)
    event = training.event(scheme=scheme, neighbours=neighbours, sensitivity=sensitivity)
    counts = books.parse_parties(parties)
    flags = [str(gap) for gap in gaps(event)]
    facts: dict[str, Any] = {
        "event": str(event), "neighbours": neighbours, "scheme": scheme, "steps": event.steps, "delta": delta,
        "delta_split": books.DELTA_SPLIT, "flags": flags,
    }  # fmt: skip
    if not as_json:
        for flag in flags:
            print(f"not covered, so accounted for without it: {flag}", file=sys.stderr)
    if epsilon is not None:
        found = _calibrate(event, counts, epsilon, (accountant or ["rdp"])[0], facts)
        if as_json:
            print_json(found)
        else:
            lines = [(str(k), f"{found['sigma_simple'][k]:.3f}", f"{found['sigma'][k]:.3f}") for k in counts]
            title = (
                f"sigma for epsilon {epsilon:g} at delta {delta:g} ({found['accountant']}, {neighbours}), each party: "
                f"{event.steps} steps on {scheme} batches of rate {event.rate:.4g}, sensitivity {sensitivity:g}"
            )
            show(title, ("parties", "simple (epsilon/k and delta/k each)", "moments"), lines)
        return
    with working("accounting"):
        rows = books.account(as_covered(event), delta, counts, accountant)
    if as_json:
        print_json({"rows": [{field: getattr(row, field) for field in FIELDS} for row in rows], **facts})
    else:
        shown = set(books.few(counts))
        cells = [
            (str(row.parties), row.accountant, f"{row.simple:.2f}", f"{row.moments:.2f}", f"{row.reduction:.1%}")
            for row in rows
            if row.parties in shown
        ]
        header = ("parties", "accountant", "simple (delta/k each)", "moments (delta)", "saved")
        show(f"epsilon at delta {delta:g}, each party: {event}", header, cells)
        if len(shown) < len(counts):
            print(f"{len(shown)} of {len(counts)} counts are shown; --json and the figure have all.")
    if plot is not None or (len(counts) > 1 and not as_json):
        from vflaudit.report.accounting import save

        path = save(rows, delta, str(event), plot or Path("account.svg"))
        if not as_json:
            print(f"figure: {path}")


def _calibrate(event: Any, counts: list[int], epsilon: float, accountant: str, facts: dict[str, Any]) -> dict[str, Any]:
    """For each count, the sigma that is enough: by moments, and by simple division."""
    from vflaudit.accounting.parties import calibrate

    found: dict[str, dict[int, float]] = {"sigma": {}, "sigma_simple": {}}
    with working("calibrating"):
        for count in counts:
            share = [event] * count, epsilon, facts["delta"]
            found["sigma"][count] = calibrate(*share, accountant=accountant)[0]
            found["sigma_simple"][count] = calibrate(*share, accountant=accountant, division="simple")[0]
    return {"epsilon": epsilon, "accountant": accountant, **found, **facts}
