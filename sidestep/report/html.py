"""The report of a run: one HTML file that needs nothing else, built from the run's folder alone."""

from collections.abc import Callable
from pathlib import Path

from sidestep.core.errors import InputError
from sidestep.report import scenes, sections
from sidestep.report.certificate import answer, certificate, seeds_table
from sidestep.report.folder import Folder
from sidestep.report.page import Html, folded, missing, page, section, tag
from sidestep.report.svg import style
from sidestep.runtime.files import atomic_write


def write_report(path: Path, trust: bool = False) -> Path:
    """Write report.html into the run's folder; `trust` is that of `sidestep.load`."""
    folder = Folder(Path(path), trust)
    with style():
        text = page(f"Sidestep: {_title(folder)}", *_parts(folder))
    target = folder.run.target("report.html")
    atomic_write(target, text)
    return target


def _title(folder: Folder) -> str:
    return ", ".join([folder.config.model, *folder.config.constraints])


def _parts(folder: Folder) -> list[Html]:
    heads = [tag("header", tag("h1", _title(folder)), _or_sentence(lambda: answer(folder)))]
    if folder.seeds:
        heads.append(section("The seeds", _or_sentence(lambda: seeds_table(folder.seeds))))
        heads += [_seed(one) for one in folder.seeds]
    else:
        learned = _or_sentence(lambda: sections.pattern(folder))
        heads.append(section("Before and after", _or_sentence(lambda: scenes.trajectories(folder)), learned))
        heads.append(section("What can still go wrong", _or_sentence(lambda: scenes.failing(folder))))
        heads.append(section("The certificate", _or_sentence(lambda: certificate(folder))))
    return [
        *heads,
        section("Using it", _or_sentence(lambda: sections.reload(folder))),
        tag("h2", "For the engineer"),
        folded("What was asked", _or_sentence(lambda: sections.asked(folder))),
        folded(
            "How it went", _or_sentence(lambda: sections.rounds(folder)), _or_sentence(lambda: sections.curves(folder))
        ),
        folded("Calibration", _or_sentence(lambda: sections.calibration(folder))),
        folded("Where the blame falls", _or_sentence(lambda: scenes.blame(folder))),
        folded(
            "Labels and time",
            _or_sentence(lambda: sections.spent(folder)),
            _or_sentence(lambda: sections.labels_by_source(folder)),
        ),
        folded("Words on this page", sections.words()),
    ]


def _seed(folder: Folder) -> Html:
    return section(
        folder.path.name,
        _or_sentence(lambda: answer(folder)),
        _or_sentence(lambda: certificate(folder)),
        _or_sentence(lambda: scenes.trajectories(folder)),
        _or_sentence(lambda: sections.pattern(folder)),
        name=folder.path.name,
    )


def _or_sentence(make: Callable[[], Html]) -> Html:
    """The part, or what is wrong with the files that it is made of."""
    try:
        return make()
    except InputError as error:
        return missing(f"Left out: {error}.")
