"""The answer of a run in one sentence, and the certificate behind it."""

from collections.abc import Sequence

import numpy as np

from sidestep.certification.records import Audit, Figures, Result, Return, Verdict
from sidestep.certification.words import bound_in_words, percent, verdict_in_words
from sidestep.report.folder import Folder
from sidestep.report.page import Html, badge, facts, join, missing, number, paragraph, table, tag

KINDS = {"certified": "good", "met, not certified": "fair", "not met": "bad"}


def answer(folder: Folder) -> Html:
    """What came of it, for somebody who reads nothing else."""
    kind, sentence = _of_seeds(folder.seeds) if folder.seeds else _of_one(folder)
    return tag("p", sentence, class_=f"answer {kind}")


def _of_one(folder: Folder) -> tuple[str, str]:
    result = folder.finished
    if result is None:
        return "fair", f"There is no answer yet: the run has not finished; go on with sidestep resume {folder.path}."
    earned = f"a mean return of {_mean(result.returns)}" if result.returns else ""
    verdicts = result.constraints
    if verdicts is None:
        return "fair", (
            "A policy was planned but nothing is certified: there was no rule to label fresh rollouts, so it is not "
            "known what it really does."
        )
    if not verdicts:
        return "fair", f"A policy was planned without any constraint; it earns {earned or 'an unknown return'}."
    texts = " and ".join(verdict.text for verdict in verdicts)
    earned = f", and earns {earned}" if earned else ""
    if result.certified:
        return "good", f"Yes: with {percent(result.confidence)} confidence the policy keeps {texts}{earned}."
    if result.reason:
        return "bad", f"Not certified: {result.reason}."
    if all(verdict.met for verdict in verdicts):
        return "fair", f"Not proved: {texts} held in the audit, but too narrowly to be certified{earned}."
    broken = " and ".join(f"{v.text} ({number(v.estimate)} in the audit)" for v in verdicts if not v.met)
    return "bad", f"No: the policy does not keep {broken}{earned}."


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
        parts.append(paragraph(f"With {percent(result.confidence)} confidence all bounds of this run hold together."))
    else:
        parts.append(missing("No constraint was asked for, so there is none to certify."))
    if result.reason:
        parts.append(paragraph(f"Nothing is certified, because {result.reason}."))
    parts.append(_figures_of(result))
    if result.sampled is not None:
        parts.append(_sampled(result.sampled))
    if len(folder.audits) > 1:
        parts.append(_audits(folder.audits))
    return join(parts)


def _verdicts(result: Result) -> Html:
    rows = [
        [
            verdict.text,
            _yes(verdict.certified, "fair"),
            number(verdict.estimate),
            bound_in_words(verdict),
            _yes(verdict.met, "bad"),
            percent(result.confidence),
            number(result.rollouts),
        ]
        for verdict in result.constraints or ()
    ]
    return table(["constraint", "certified", "estimate", "bound", "met", "confidence", "rollouts"], rows)


def _figures_of(result: Result) -> Html:
    earned, penalty = result.returns, result.penalty
    spread = f" (about {' to '.join(number(end, 5) for end in earned.interval)})" if earned and earned.interval else ""
    shares = ", ".join(f"{name} {number(share)}" for name, share in (result.side_effects or {}).items())
    return facts(
        [
            ("return", f"{_mean(earned)}{spread}" if earned else ""),
            ("deviation of the return", number(earned.std) if earned else ""),
            ("discounted return", number(earned.discounted_mean, 5) if earned else ""),
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
    shares = ", ".join(f"{name} {number(share)}" for name, share in figures.side_effects.items())
    return paragraph(
        f"With sampled instead of mean actions the return is {_mean(figures.returns)}, and the side effects are "
        f"{shares}. Nothing is certified of that."
    )


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
    return number(earned.mean if earned else None, 5)
