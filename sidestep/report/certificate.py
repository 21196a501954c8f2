"""The answer of a run in one sentence, and the certificate behind it."""

from collections.abc import Mapping, Sequence

import numpy as np

from sidestep.certification.records import Agreement, Audit, Figures, Price, Result, Return, Verdict
from sidestep.certification.words import (
    at_least,
    at_most,
    bound_in_words,
    foreseen,
    neighbours_in_words,
    percent,
    steps_in_words,
    verdict_in_words,
)
from sidestep.report.finding import finding, in_digits
from sidestep.report.folder import Folder
from sidestep.report.page import Html, badge, duration, facts, join, missing, number, paragraph, table, tag

KINDS = {"certified": "good", "met, not certified": "fair", "not met": "bad"}


def answer(folder: Folder) -> Html:
    """What came of it, for somebody who reads nothing else."""
    kind, sentence = _of_seeds(folder.seeds) if folder.seeds else _of_one(folder)
    return join([tag("p", sentence, class_=f"answer {kind}"), "" if folder.seeds else _cards(folder)])


def _of_one(folder: Folder) -> tuple[str, str]:
    result = folder.finished
    if result is None:
        return "fair", f"There is no answer yet: the run has not finished; go on with sidestep resume {folder.path}."
    found = finding(result, folder.scale, folder.kept)
    return found.kind, found.sentence


def _cards(folder: Folder) -> Html:
    """Is it safe, how sure is that, what does it cost, what did it take?"""
    result = folder.finished
    if result is None or not result.constraints:
        return Html("")
    verdicts = result.constraints
    worst = min(verdicts, key=lambda verdict: (verdict.certified, verdict.met))
    word = verdict_in_words(worst)
    before = folder.kept.scenes[0].mean_return if folder.kept and len(folder.kept.scenes) > 1 else None
    earned = in_digits(result.returns.mean) if result.returns else "–"
    cost = earned if before is None else f"{earned} instead of {in_digits(before)}"
    used = "–" if result.labels_used is None else f"{result.labels_used:,}"
    bounds = "; ".join(_telling_bound(verdict) for verdict in verdicts)
    cards = (
        ("is it safe?", badge(word, KINDS[word])),
        (
            "how sure?",
            f"{bounds}, with {percent(result.confidence)} confidence",
        ),
        ("what does it cost?", f"return {cost}"),
        ("what did it take?", f"{used} labels, {result.audit_labels:,} more in audits, {duration(result.seconds)}"),
    )
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in cards), class_="cards")


def _telling_bound(verdict: Verdict) -> str:
    """The side that proves the constraint; where it was not met, the side that refutes it."""
    if (">=" in verdict.text) == verdict.met:
        return f"at least {at_least(verdict.lower, 3)}"
    return f"at most {at_most(verdict.upper, 3)}"


def _of_seeds(seeds: Sequence[Folder]) -> tuple[str, str]:
    results = [one.finished for one in seeds if one.finished is not None]
    certified = sum(bool(result.constraints) and result.certified for result in results)
    returns = [result.returns.mean for result in results if result.returns]
    earned = ""
    if returns:
        earned = f" The mean return is {number(float(np.mean(returns)), 5)}, the worst {number(min(returns), 5)}."
    if not any(result.constraints for result in results):
        return "fair", f"{len(seeds)} policies were planned, and nothing is certified.{earned}"
    kind = "good" if certified == len(seeds) else "fair" if certified else "bad"
    alone = " Each certificate holds with its confidence by itself, not all of them together." if certified > 1 else ""
    return kind, f"{certified} of {len(seeds)} seeds are certified.{earned}{alone}"


def seeds_table(seeds: Sequence[Folder]) -> Html:
    """One row per seed, linked to its section."""
    results = {one.path.name: one.finished for one in seeds}
    found = {name: {v.text: v for v in (one.constraints if one else None) or ()} for name, one in results.items()}
    texts = list(dict.fromkeys(text for verdicts in found.values() for text in verdicts))
    rows = []
    for one in seeds:
        verdicts = found[one.path.name]
        cells = [
            tag("a", one.path.name, href=f"#{one.path.name}"),
            _mean(one.finished.returns if one.finished else None),
        ]
        for text in texts:
            cells += [number(verdicts[text].estimate), _word(verdicts[text])] if text in verdicts else ["–", "–"]
        rows.append(cells)
    return table(["seed", "return", *(cell for text in texts for cell in (text, ""))], rows)


def certificate(folder: Folder) -> Html:
    """The constraints one by one; then the sampled action, and every audit when there were several."""
    result = folder.finished
    if result is None:
        return missing("There is no certificate: the run has not finished.")
    if result.constraints is None:
        return missing("There is no certificate: the run has no rule, and nobody labelled fresh rollouts.")
    parts = []
    if result.constraints:
        parts.append(_verdicts(result))
        parts.append(
            paragraph(
                f"The estimate is what was seen in {result.rollouts:,} fresh runs that no decision had seen before. "
                f"With {percent(result.confidence)} confidence all bounds of this run hold together, whatever luck "
                "these runs had."
            )
        )
    else:
        parts.append(missing("No constraint was asked for, so there is none to certify."))
    if result.steps is not None:
        parts.append(paragraph(". ".join(line[0].upper() + line[1:] for line in steps_in_words(result.steps)) + "."))
    if result.reason:
        parts.append(paragraph(f"Nothing is certified, because {result.reason}."))
    parts.append(_figures_of(result))
    if result.sampled is not None:
        parts.append(_sampled(result.sampled))
    if words := neighbours_in_words(result):
        parts.append(paragraph(words))
    if result.basis:
        parts.append(paragraph(f"What this rests on beside labels of fresh rollouts: {result.basis}."))
    if result.agreement is not None:
        parts.append(paragraph(_agreement(result.agreement)))
    tested = [audit for audit in folder.audits if audit.annotators]
    if tested:
        parts.append(_annotators(tested[-1]))
    parts += [_foreseen(audit) for audit in folder.audits if audit.design.forecast is not None]
    if len(folder.audits) > 1:
        parts.append(_audits(folder.audits))
    return join(parts)


def _agreement(found: Agreement) -> str:
    return (
        f"Of {found.pairs:,} pairs of answers to one question, by two annotators or by one who was asked again, blind, "
        f"{found.same:,} are the same: {found.same / found.pairs:.4f}, and with 95 % confidence at least "
        f"{at_least(found.at_least)}."
    )


def _annotators(audit: Audit) -> Html:
    """How each annotator did on the known cases among the questions of an audit."""
    rows = [
        [
            one.name,
            f"{one.missed} of {one.harmful}",
            f"at most {at_most(one.missed_at_most)}",
            f"{one.alarms} of {one.harmless}",
            f"at most {at_most(one.alarms_at_most)}",
        ]
        for one in audit.annotators
    ]
    said = (
        f"Among the questions of audit {audit.number} were copies of {len(audit.design.known)} cases whose category "
        "was known. The shares hold with 95 % each; the certificate has bounds of its own, for all annotators together."
    )
    heads = ["annotator", "harm missed", "share missed", "false alarms", "share of false alarms"]
    return join([tag("h3", "Annotators"), paragraph(said), table(heads, rows)])


def _foreseen(audit: Audit) -> Html:
    """What was told before the first label of an audit by people, and what came of it."""
    forecast = audit.design.forecast
    assert forecast is not None
    planned = Price(forecast.opinions, forecast.certified, forecast.labels)
    rows = [
        [one.opinions, f"{one.certified:.0%}", f"{one.labels:.0f}", "planned" if one is planned else ""]
        for one in sorted((planned, *forecast.others), key=lambda price: price.opinions)
    ]
    said = (
        f"Before the first label of audit {audit.number} it was said: {foreseen(forecast)}. It took {audit.labels:,} "
        f"labels, and was {audit.status}."
    )
    heads = ["opinions at most", "chance of a certificate", "labels expected", ""]
    return join([tag("h3", f"What audit {audit.number} was expected to prove"), paragraph(said), table(heads, rows)])


def _verdicts(result: Result) -> Html:
    rows = [
        [
            verdict.text,
            _yes(verdict.certified, "fair"),
            number(verdict.estimate, 3),
            bound_in_words(verdict, 3),
            _yes(verdict.met, "bad"),
            "exact" if verdict.proof == "exact" else percent(result.confidence),
            number(result.rollouts),
        ]
        for verdict in result.constraints or ()
    ]
    return table(["constraint", "certified", "estimate", "bound", "met", "confidence", "rollouts"], rows)


def _figures_of(result: Result) -> Html:
    earned, penalty = result.returns, result.penalty
    spread = f" (about {' to '.join(number(end, 4) for end in earned.interval)})" if earned and earned.interval else ""
    shares = _shares(result.side_effects or {})
    return facts(
        [
            ("return", f"{_mean(earned)}{spread}" if earned else ""),
            ("deviation of the return", number(earned.std) if earned else ""),
            ("discounted return", number(earned.discounted_mean) if earned else ""),
            ("side effects", shares),
            ("penalty", f"{number(penalty.mean)} ± {number(penalty.std)}" if penalty else ""),
            ("action", result.evaluation.policy),
            ("fresh rollouts", number(result.rollouts)),
            ("labels used", number(result.labels_used)),
            ("what training came to", result.diagnosis or ""),
            ("audit labels", number(result.audit_labels)),
        ]
    )


def _sampled(figures: Figures) -> Html:
    """The same policy with its noise: figures without a claim."""
    return paragraph(
        f"With sampled instead of mean actions the return is {_mean(figures.returns)}, and the side effects are "
        f"{_shares(figures.side_effects)}. Nothing is certified of that."
    )


def _shares(side_effects: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number(round(share, 4))}" for name, share in side_effects.items())


def _audits(audits: Sequence[Audit]) -> Html:
    """Every audit of the run: a claim after several looks is only as strong as all of them together."""
    rows: list[list[object]] = []
    for audit in audits:
        for verdict in audit.constraints:
            cells = [number(verdict.estimate), bound_in_words(verdict), _word(verdict), number(audit.rollouts)]
            rows.append([audit.number, audit.labelled_by, verdict.text, *cells, percent(audit.confidence)])
        if not audit.constraints:
            rows.append([audit.number, audit.labelled_by, audit.status, *["–"] * 3, "–", percent(audit.confidence)])
    promised = percent(min(audit.promised for audit in audits))
    said = (
        f"There were {len(audits)} audits, each on fresh rollouts. They share the error: the bounds of each are "
        f"computed at the confidence in the last column, so that with {promised} confidence all hold together."
    )
    heads = ["audit", "labelled by", "constraint", "estimate", "bound", "", "rollouts", "its own confidence"]
    return join([tag("h3", "Every audit"), paragraph(said), table(heads, rows)])


def _word(verdict: Verdict) -> Html:
    word = verdict_in_words(verdict)
    return badge(word, KINDS[word])


def _yes(true: bool, otherwise: str) -> Html:
    return badge("yes", "good") if true else badge("no", otherwise)


def _mean(earned: Return | None) -> str:
    return number(earned.mean if earned else None, 4)
