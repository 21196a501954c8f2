"""The parts of a report, each from what the folder holds for it, or one plain sentence that says what is missing."""

import json
from collections.abc import Callable, Sequence
from math import isfinite

from sidestep.core.errors import InputError
from sidestep.planning.rows import PlanRow
from sidestep.report import figures
from sidestep.report.folder import Folder
from sidestep.report.page import Html, code, duration, facts, join, missing, number, paragraph, table, tag
from sidestep.report.page import figures as beside
from sidestep.report.svg import svg
from sidestep.safety.io import Scores


def asked(folder: Folder) -> Html:
    config = folder.config
    seeds = [one.config.seed for one in folder.seeds] or [config.seed]
    pairs = [
        ("model", config.model),
        ("notes on the model", _notes(folder)),
        ("constraints", ", ".join(config.constraints) or "none"),
        ("categories, best first", " < ".join(folder.categories)),
        ("labels come from", _expert(folder)),
        ("method", config.method),
        ("seeds" if folder.seeds else "seed", ", ".join(map(str, seeds))),
        ("label budget", number(config.labels) if config.labels is not None else ""),
        ("version of Sidestep", config.version),
    ]
    settings = {name: part for name in ("settings", "planning") if (part := getattr(config, name))}
    listing = tag("details", tag("summary", "All settings"), code(json.dumps(settings, indent=1))) if settings else ""
    return join([facts(pairs), listing])


def _notes(folder: Folder) -> str:
    """What the model cannot do, in its own words."""
    try:
        return "; ".join(folder.notes)
    except InputError:
        return ""


def _expert(folder: Folder) -> str:
    name = folder.config.rule
    if not name and folder.kept:
        name = folder.kept.rule
    elif not name:
        try:
            name = folder.expert.name if folder.expert.label else ""
        except InputError:
            return "nobody that is known"
    if name:
        return f"the rule {name}"
    return "people" if folder.config.kind == "campaign" else "nobody: there is no rule"


def rounds(folder: Folder) -> Html:
    """The rounds of a campaign; nothing for a run that has none by its kind."""
    rows = folder.rounds
    if not rows:
        campaign = folder.config.kind == "campaign" and not folder.seeds
        return missing("No round has been finished.") if campaign else Html("")
    heads = ["round", "labels", "new labels", "return", "feasible", "margin", "accuracy", "log loss", "ECE", "time"]
    cells = [
        [
            row.round,
            *map(number, (row.labels, row.asked, row.mean_return)),
            "–" if row.feasible is None else "yes" if row.feasible else "no",
            *map(number, (row.margin, row.accuracy, row.log_loss, row.ece)),
            duration(row.seconds),
        ]
        for row in rows
    ]
    first, last = rows[0], rows[-1]
    unsafe = "; an open circle is a policy predicted to be unsafe" if any(row.feasible is False for row in rows) else ""
    earned = (
        f"Return of each round's policy against the labels used{unsafe}. It "
        f"went from {number(first.mean_return, 3)} with {number(first.labels)} labels to "
        f"{number(last.mean_return, 3)} with {number(last.labels)}."
    )
    pictures = [(svg("rounds-return", earned, figures.round_returns(rows)), earned)]
    labelled = ", and the labels of the round's own policy" if any(row.labelled for row in rows) else ""
    shares = f"Side effects by round: what the safety model predicts{labelled}.{_last_shares(folder, last.predicted)}"
    if any(row.predicted or row.labelled for row in rows):
        by_round = figures.round_side_effects(rows, folder.categories, folder.constraints)
        pictures.append((svg("rounds-shares", shares, by_round), shares))
    return join([beside(*pictures), table(*_filled(heads, cells))])


def _filled(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> tuple[list[str], list[list[object]]]:
    """A table without the columns that nothing is known of."""
    kept = [place for place in range(len(heads)) if any(row[place] != "–" for row in rows)]
    return [heads[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _last_shares(folder: Folder, predicted: Sequence[float] | None) -> str:
    if not predicted:
        return ""
    parts = [f"{name} {100 * share:.1f} %" for name, share in zip(folder.categories, predicted, strict=True)]
    return f" In the last round it predicts {', '.join(parts)}."


def _ends(histories: Sequence[Sequence[PlanRow]], value: Callable[[PlanRow], float | None], unit: str = "") -> str:
    """Where curves end, as a sentence: one figure, or from the lowest to the highest of several."""
    found = [end for rows in histories if rows and (end := value(rows[-1])) is not None and isfinite(end)]
    if not found:
        return ""
    low, high = number(min(found), 3), number(max(found), 3)
    return f" At the end {low if low == high else f'{low} to {high}'}{unit}."


def curves(folder: Folder) -> Html:
    """Return, side effects and multipliers over the epochs."""
    histories = folder.histories
    if not histories:
        return missing("No test of the training is on record, so there are no curves.")
    dotted = " Dotted vertical lines mark new rounds." if any(figures.epochs(rows)[1] for rows in histories) else ""
    several = " One line per seed." if folder.seeds else " One line per policy of the bank."
    each = several if len(histories) > 1 else ""
    reached = _ends(histories, lambda row: row.mean_return)
    earned = f"Return in the tests, mean action. Dots: predicted to be safe enough.{each}{dotted}{reached}"
    pictures = [(svg("return", earned, figures.return_curves(histories)), earned)]
    if any(row.mean_predicted or row.mean_true for rows in histories for row in rows):
        unit = f" % of runs are predicted to be '{folder.categories[0]}'"
        predicted = _ends(histories, lambda row: 100 * row.mean_predicted[0] if row.mean_predicted else None, unit)
        shares = f"Side effects: what the safety model predicts and what the rule sees.{dotted}{predicted}"
        figure = figures.side_effect_curves(histories, folder.categories, folder.constraints)
        pictures.append((svg("shares", shares, figure), shares))
    texts = folder.config.constraints
    if texts and any(row.train_multipliers for rows in histories for row in rows):
        weights = _ends(histories, lambda row: max(row.train_multipliers, default=None))
        pull = f"Multipliers: how much weight each constraint has.{dotted}{weights}"
        pictures.append((svg("multipliers", pull, figures.multiplier_curves(histories, texts)), pull))
    return beside(*pictures)


def pattern(folder: Folder) -> Html:
    """What was learned, where it can be put into words."""
    return paragraph(f"The learned pattern behind the labels: {folder.pattern}.") if folder.pattern else Html("")


def calibration(folder: Folder) -> Html:
    """Reliability on the labels of the store, and the scores on what the fit held out."""
    if folder.safety is None:
        return missing("The run has no safety model.")
    parts = [_scores(folder.scores)] if folder.scores else []
    if folder.labels is None:
        parts.append(missing("The run's folder holds no labels to check the safety model against."))
        return join(parts)
    categories, probabilities = folder.labels[2], folder.predicted
    accuracy = float((probabilities.argmax(axis=1) == categories).mean())
    best = folder.categories[0]
    words = f"Predicted probability of '{best}' against its observed frequency; below, the histogram of predictions."
    said = (
        f"On the {number(len(categories))} labelled trajectories of the run, most of which it has learned from, the "
        f"likeliest category is the labelled one in {100 * accuracy:.1f} % of them."
    )
    picture = svg("calibration", f"{words} {said}", figures.calibration(probabilities, categories))
    return join([paragraph(said), beside((picture, words)), *parts])


def _scores(scores: Scores) -> Html:
    """What the fit measured on trajectories that its gradient never saw."""
    said = (
        f"On {number(scores.trajectories)} trajectories that its last fit held out: accuracy "
        f"{number(scores.accuracy)}, log loss {number(scores.log_loss)}, calibration error "
        f"{number(scores.calibration_error)}."
    )
    return paragraph(said)


def spent(folder: Folder) -> Html:
    done = [one.finished for one in folder.seeds or [folder] if one.finished is not None]
    budget = folder.config.labels
    within = "" if budget is None else f" of {number(budget)}"
    planning = sum(row.seconds or 0.0 for rows in folder.histories for row in rows if row.seed_index == 0)
    in_rounds = sum(row.seconds or 0.0 for row in folder.rounds)
    used = number(sum(result.labels_used or 0 for result in done)) + within
    sums = facts(
        [
            ("labels used", used if done else ""),
            ("labels of the audits, on top", number(sum(r.audit_labels for r in done)) if done else ""),
            ("total time", duration(max(r.seconds for r in done)) if done else ""),
            ("time in rounds", duration(in_rounds) if in_rounds else ""),
            ("time in training and tests", duration(planning) if planning else ""),
        ]
    )
    return join([sums, missing("The run has not finished, so its totals are not known.") if not done else ""])


def labels_by_source(folder: Folder) -> Html:
    """How many labels of each category went where."""
    if folder.labels is None:
        return missing("The run's folder holds no labels of its own.")
    _, _, categories, sources = folder.labels
    groups: dict[tuple[int, str], list[int]] = {}
    for source, category in zip(sources, categories.tolist(), strict=True):
        place = (-1, source.policy) if source.round is None else (source.round, "")
        groups.setdefault(place, [0] * len(folder.categories))[category] += 1
    rows: list[list[object]] = [
        [policy or f"round {place}", *map(number, (*counts, sum(counts)))]
        for (place, policy), counts in sorted(groups.items())
    ]
    totals = [int((categories == k).sum()) for k in range(len(folder.categories))]
    rows.append(["all", *map(number, (*totals, len(categories)))])
    return table(["trajectories from", *folder.categories, "labels"], rows)


def reload(folder: Folder) -> Html:
    """How to use the policy elsewhere."""
    path = (folder.seeds[0].path if folder.seeds else folder.path).as_posix()
    objects = "".join(f", {name}={name}" for name in folder.config.live)
    lines = [
        "import sidestep",
        "",
        *(["# the model and the expert that were given to solve"] if objects else []),
        f"run = sidestep.load({path!r}{objects})",
        "policy = run.policy",
        "",
        "# one state, or a batch of them; it keeps clock and memory",
        "action = policy.act(state)",
        "# before the next run",
        "policy.restart()",
        "",
    ]
    if (folder.seeds[0] if folder.seeds else folder).safety is not None:
        lines += [
            "# the risk so far, of each category or worse",
            "monitor = run.monitor(threshold=0.05)",
            "risk = monitor.step(state, action)",
            "",
        ]
    lines += ["# one file that needs only NumPy", 'run.export("policy.py")']
    snippet = "\n".join(lines)
    commands = f"sidestep certify {path}\nsidestep export {path} policy.py\nsidestep report {folder.path.as_posix()}\n"
    return join([paragraph("In Python:"), code(snippet), paragraph("On the command line:"), code(commands)])


WORDS = {
    "run, trajectory, rollout": "one course of events from start to end: states, actions and rewards, step by step.",
    "return": "the sum of the rewards of a run; the more the better.",
    "category": "how bad the side effects of a run were, as the expert who labels it sees them.",
    "constraint": "a limit on how often a category may occur: none>=0.95 asks for it in at least 95 of 100 runs.",
    "certified": "proved by an audit: the bound of the constraint holds with the confidence that is told.",
    "audit": "fresh runs of the final policy, labelled by the expert, that no decision had seen before.",
    "confidence": "how often such a proof is right: at 95 % at most one in twenty would be wrong.",
    "before": "a policy of the first round that ignores side effects.",
    "safety model": "what was learned from the labels: it predicts the category of a run, step by step.",
    "blame": "by how much each step of a run adds to the prediction that it is bad.",
    "round": "learn from all labels, plan against what was learned, ask about the runs of these plans.",
    "multiplier": "how much return the planner gives up for a little less of what a constraint limits.",
    "accuracy, log loss, ECE": "how good the safety model is on runs that it has not learned from: how often its "
    "likeliest category is right, how surprised it is, and how far its probabilities are from the frequencies.",
}


def words() -> Html:
    """What the terms of the page mean."""
    return facts(WORDS.items())
