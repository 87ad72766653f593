"""What the numbers say, in sentences. Every word that judges follows from an interval."""

from __future__ import annotations

from vflaudit.report.audit import Audit
from vflaudit.report.summary import Row, Series
from vflaudit.report.tradeoff import Plane, find_planes
from vflaudit.report.words import capital, count, interval, listed, number, signed

MANY = 3  # from so many defenses on, they are told together
DONE = {
    "reconstruction": "reconstructs the columns of {party} with an R² of {score}",
    "label-inference": "infers the labels with an AUC of {score}",
    "membership": "tells members from non-members with an AUC of {score}",
    "reidentification": "re-identifies people with a hit rate of {score}",
    "distinguishing": "proves that epsilon is at least {score}",
}


def paragraph(audit: Audit) -> list[str]:
    """The summary, a sentence each: controls first if they failed, then the worst leak, the rest, the defenses."""
    said = controls_failed(audit)
    findings = audit.findings
    if findings:
        said += [_overview(audit), *_strongest(findings), *_rest(findings)]
        said += [_series(series) for series in audit.series[:1]]
        planes = [plane for plane in find_planes(audit) if sum(p.defended for p in plane.points) >= MANY]
        said += [_plane(plane) for plane in planes] or _defenses(findings)
    said += _controls(audit)
    if audit.claims:
        counts = [
            f"{len(found)} {verdict}"
            for verdict in ("upheld", "refuted", "conditional", "inconclusive")
            if (found := [c for c in audit.claims if c.verdict == verdict])
        ]
        said.append(f"Of {count(len(audit.claims), 'published claim')} judged: {listed(counts)}.")
    if audit.failures or audit.missing:
        many = max(len(audit.failures), audit.missing)
        said.append(f"{capital(count(many, 'experiment'))} could not be completed, so this picture has gaps.")
    return said


def controls_failed(audit: Audit) -> list[str]:
    """The sentence that overrules all others."""
    if not audit.broken:
        return []
    return [f"{capital(count(len(audit.broken), 'control'))} FAILED, so nothing else in this report can be trusted."]


def _overview(audit: Audit) -> str:
    leaking = [row for row in audit.findings if row.leaks]
    targets = {(row.target, row.dataset) for row in audit.findings}
    settings = count(len(audit.findings), "combination")
    verb = "shows" if len(leaking) == 1 else "show"
    many = f"all {len(leaking)}" if len(leaking) == len(audit.findings) > 1 else f"{len(leaking)} of them"
    return (
        f"{settings} of target, adversary and attack on {count(len(targets), 'target')} were measured; "
        f"{many} {verb} a leak."
    )


def _strongest(findings: list[Row]) -> list[str]:
    row = findings[0]
    if not row.leaks:
        return ["No attack in this report beat the best guess possible without the protocol."]
    done = DONE.get(row.game, "scores {score}").format(party=row.party, score=number(row.score))
    return [
        f"What leaks most: on {row.target} with {row.dataset}, {row.adversary}, {done}, where the best guess without "
        f"the protocol reaches {number(row.baseline)} (advantage {signed(row.advantage)}, 95% interval "
        f"{interval(row.interval)}, {count(row.seeds, 'seed')})."
    ]


def _rest(findings: list[Row]) -> list[str]:
    unsettled = [row for row in findings if row.level == "unsettled"]
    said = []
    if unsettled:
        verb = "is" if len(unsettled) == 1 else "are"
        said.append(f"{count(len(unsettled), 'combination')} {verb} too uncertain to tell: more seeds would settle it.")
    return said


def _series(series: Series) -> str:
    (few, least), (many, most) = series.points[0], series.points[-1]
    return (
        f"Knowledge matters: on {least.target} with {least.dataset}, {least.attack} goes from a score of "
        f"{number(least.score)} with {few:,} to {number(most.score)} with {many:,} {series.axis}."
    )


def _defenses(findings: list[Row]) -> list[str]:
    """A defended row beside the same row without its defenses."""
    plain = {_without_defenses(row): row for row in findings if not row.experiment.get("defenses")}
    said = []
    for row in findings:
        other = plain.get(_without_defenses(row)) if row.experiment.get("defenses") else None
        if other is None:
            continue
        text = f"With {' + '.join(row.experiment['defenses'])} the score of {row.attack} on {row.dataset} moves from "
        text += f"{number(other.score)} to {number(row.score)}"
        if "accuracy" in row.utility and "accuracy" in other.utility:
            before, after = number(other.utility["accuracy"]), number(row.utility["accuracy"])
            text += f" and the model's accuracy from {before} to {after}"
        said.append(text + ".")
    return said[:3]


def _plane(plane: Plane) -> str:
    """Many defenses of one protocol: how many fail, and what the best of the others costs."""
    defended, plain = ([p for p in plane.points if p.defended is kind] for kind in (True, False))
    quiet = [point for point in defended if not point.surest.leaks]
    said = f"Of {count(len(defended), 'defense')} of {plane.title}, {len(defended) - len(quiet)} still leak"
    if quiet:
        best = max(quiet, key=lambda point: point.utility)
        said += f"; the most useful one without a shown leak is {best.name} ({plane.worth} {number(best.utility)}"
        said += f", against {number(max(p.utility for p in plain))} without a defense)" if plain else ")"
    return said + "."


def _without_defenses(row: Row) -> str:
    return repr(sorted((key, repr(value)) for key, value in row.experiment.items() if key != "defenses"))


def _controls(audit: Audit) -> list[str]:
    if not audit.controls:
        return ["No control was run, so nothing shows that these attacks win where they must or stay silent elsewhere."]
    if audit.broken:
        return []
    said = []
    for kind, ending in (("positive", "won, as it must"), ("negative", "showed no advantage, as it must")):
        many = sum(row.control == kind for row in audit.controls)
        if many:
            each = ending if many == 1 else ending.replace("it must", "they must")
            which = {1: "the", 2: "both"}.get(many, f"all {many}")
            said.append(f"{which} {kind} control{'s' if many > 1 else ''} {each}")
        else:
            said.append(f"there was no {kind} control")
    return [capital("; ".join(said)) + "."]
