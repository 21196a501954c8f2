"""The answer of a run in one sentence, and the certificate behind it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sidestep.report.folder import Folder
from sidestep.report.page import Html, badge, facts, join, missing, number, paragraph, table, tag

Row = dict[str, Any]


def answer(folder: Folder) -> Html:
    """What came of it, for somebody who reads nothing else."""
    kind, sentence = _of_seeds(folder.seeds) if folder.seeds else _of_one(folder)
    return tag("p", sentence, class_=f"answer {kind}")


def _of_one(folder: Folder) -> tuple[str, str]:
    result = folder.result
    if not result:
        return "fair", f"There is no answer yet: the run has not finished; go on with sidestep resume {folder.path}."
    earned = f"a mean return of {number(result['return']['mean'], 5)}" if "return" in result else ""
    verdicts = result.get("constraints")
    if verdicts is None:
        return "fair", (
            "A policy was planned but nothing is certified: no rule was there to label fresh rollouts, so what it "
            "really does is not known."
        )
    if not verdicts:
        return "fair", f"A policy was planned without any constraint; it earns {earned or 'an unknown return'}."
    texts = " and ".join(verdict["text"] for verdict in verdicts)
    earned = f", and earns {earned}" if earned else ""
    confidence = result.get("evaluation", {}).get("confidence")
    if all(verdict["certified"] for verdict in verdicts):
        return "good", f"Yes: with {_percent(confidence)} confidence the policy keeps {texts}{earned}."
    if all(verdict["met"] for verdict in verdicts):
        return "fair", f"Not proved: {texts} held in the audit, but too narrowly to be certified{earned}."
    broken = " and ".join(f"{v['text']} ({number(v['estimate'])} in the audit)" for v in verdicts if not v["met"])
    return "bad", f"No: the policy does not keep {broken}{earned}."


def _of_seeds(seeds: Sequence[Folder]) -> tuple[str, str]:
    results = [one.result for one in seeds]
    certified = sum(bool(r.get("constraints")) and all(v["certified"] for v in r["constraints"]) for r in results)
    returns = [r["return"]["mean"] for r in results if "return" in r]
    earned = ""
    if returns:
        earned = f" The mean return is {number(float(np.mean(returns)), 5)}, the worst {number(min(returns), 5)}."
    if not any(r.get("constraints") for r in results):
        return "fair", f"{len(seeds)} policies were planned, and nothing is certified.{earned}"
    kind = "good" if certified == len(seeds) else "fair" if certified else "bad"
    return kind, f"{certified} of {len(seeds)} seeds are certified.{earned}"


def seeds_table(seeds: Sequence[Folder]) -> Html:
    """One line a seed, linked to its section."""
    texts = list(dict.fromkeys(v["text"] for one in seeds for v in one.result.get("constraints") or ()))
    rows = []
    for one in seeds:
        verdicts = {verdict["text"]: verdict for verdict in one.result.get("constraints") or ()}
        cells = [tag("a", one.path.name, href=f"#{one.path.name}"), _mean(one.result)]
        for text in texts:
            cells += [number(verdicts[text]["estimate"]), _word(verdicts[text])] if text in verdicts else ["–", "–"]
        rows.append(cells)
    return table(["seed", "return", *(cell for text in texts for cell in (text, ""))], rows)


def certificate(folder: Folder) -> Html:
    """The constraints one by one; then the sampled action, and every audit when there were several."""
    result = folder.result
    if not result:
        return missing("There is no certificate: the run has not finished.")
    if result.get("constraints") is None:
        return missing("There is no certificate: the run has no rule, and nobody labelled fresh rollouts.")
    evaluation = result.get("evaluation", {})
    confidence, rollouts = evaluation.get("confidence"), result.get("rollouts", evaluation.get("trajectories"))
    parts = []
    if result["constraints"]:
        parts.append(
            table(
                ["constraint", "estimate", "bound", "met", "certified", "confidence", "rollouts"],
                [
                    [
                        verdict["text"],
                        number(verdict["estimate"]),
                        _bound(verdict),
                        _yes(verdict["met"], "bad"),
                        _yes(verdict["certified"], "fair"),
                        _percent(confidence),
                        number(rollouts),
                    ]
                    for verdict in result["constraints"]
                ],
            )
        )
        if len(result["constraints"]) > 1:
            parts.append(paragraph("The confidence is that all the bounds hold together."))
    else:
        parts.append(missing("No constraint was asked for, so there is none to certify."))
    parts.append(_figures_of(result, evaluation, rollouts))
    if "sampled" in result:
        parts.append(_sampled(result["sampled"]))
    if len(folder.audits) > 1:
        parts.append(_audits(folder.audits))
    return join(parts)


def _figures_of(result: Row, evaluation: Row, rollouts: Any) -> Html:
    earned = result.get("return", {})
    interval = earned.get("interval")
    spread = f" ({number(interval[0], 5)} to {number(interval[1], 5)} with 95 % confidence)" if interval else ""
    shares = ", ".join(f"{name} {number(share)}" for name, share in result.get("side_effects", {}).items())
    penalty = result.get("penalty")
    return facts(
        [
            ("return", f"{_mean(result)}{spread}" if earned else ""),
            ("deviation of the return", number(earned["std"]) if "std" in earned else ""),
            ("discounted return", number(earned["discounted_mean"], 5) if "discounted_mean" in earned else ""),
            ("side effects", shares),
            ("penalty", f"{number(penalty['mean'])} ± {number(penalty['std'])}" if penalty else ""),
            ("action", evaluation.get("policy", "")),
            ("fresh rollouts", number(rollouts)),
            ("labels used", number(result["labels_used"]) if "labels_used" in result else ""),
            ("what training came to", result.get("diagnosis", "")),
            ("audit labels", number(result["audit_labels"]) if "audit_labels" in result else ""),
        ]
    )


def _sampled(sampled: Row) -> Html:
    """The same policy with its noise."""
    verdicts = "; ".join(
        f"{v['text']}: {number(v['estimate'])}, {_bound(v)}, {_plain_word(v)}" for v in sampled.get("constraints", ())
    )
    said = f" {verdicts}." if verdicts else ""
    return paragraph(f"With sampled instead of mean actions the return is {_mean(sampled)}.{said}")


def _audits(audits: Sequence[Row]) -> Html:
    """Every audit that was asked for: a claim after several looks is only as strong as all of them together."""
    rows = []
    for place, audit in enumerate(audits, 1):
        for verdict in audit.get("constraints", ()):
            cells = [number(verdict["estimate"]), _bound(verdict), _word(verdict)]
            rows.append(
                [place, verdict["text"], *cells, _percent(audit.get("confidence")), number(audit.get("rollouts"))]
            )
    together = 1.0 - sum(1.0 - audit.get("confidence", 1.0) for audit in audits)
    said = (
        f"There were {len(audits)} audits, each on fresh rollouts, and the risk of error is split over them: with "
        f"{_percent(max(together, 0.0))} confidence all their bounds hold together."
    )
    heads = ["audit", "constraint", "estimate", "bound", "", "confidence", "rollouts"]
    return join([tag("h3", "Every audit"), paragraph(said), table(heads, rows)])


def _bound(verdict: Row) -> str:
    if ">=" in verdict["text"]:
        return f"at least {number(verdict['lower'])}"
    return f"at most {number(verdict['upper'])}"


def _word(verdict: Row) -> Html:
    if verdict["certified"]:
        return badge("certified", "good")
    return badge("met, not certified", "fair") if verdict["met"] else badge("not met", "bad")


def _plain_word(verdict: Row) -> str:
    return "certified" if verdict["certified"] else "met, not certified" if verdict["met"] else "not met"


def _yes(true: bool, otherwise: str) -> Html:
    return badge("yes", "good") if true else badge("no", otherwise)


def _mean(result: Row) -> str:
    return number(result.get("return", {}).get("mean"), 5)


def _percent(share: Any) -> str:
    return "–" if share is None else f"{100.0 * share:.4g} %"
