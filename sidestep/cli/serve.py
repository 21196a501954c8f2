"""`sidestep serve`: the page on which people label, and the live view of a run."""

from pathlib import Path
from urllib.parse import urlsplit

from sidestep.cli.commands import Serve
from sidestep.cli.console import say
from sidestep.cli.work import CERTIFIED, LABELS_NEEDED, NOT_CERTIFIED
from sidestep.core.errors import InputError
from sidestep.labels.store import store_place
from sidestep.report.folder import Folder
from sidestep.serve.book import OWNER
from sidestep.serve.desk import Rules
from sidestep.serve.server import Link, Serving, open_browser
from sidestep.serve.server import serve as serve_page


def serve(asked: Serve) -> int:
    """Serve until Ctrl-C. The exit status is that of the run, 0 for a store."""
    place = store_place(asked.place)
    if isinstance(place, Path) and not place.exists():
        raise InputError("expected a run's folder or a label store, and there is nothing here", place=str(asked.place))
    annotators = tuple(dict.fromkeys(name.strip() for name in asked.annotators.split(",") if name.strip()))
    if asked.overlap > len(annotators) + 1:
        raise InputError(
            f"{asked.overlap} people cannot answer each question where there are {len(annotators) + 1} with you",
            place="option --overlap",
        )
    if asked.address and (
        urlsplit(asked.address).scheme not in ("http", "https") or not urlsplit(asked.address).netloc
    ):
        raise InputError("expected an address such as https://label.example.org", place=f"--address {asked.address}")
    if asked.model and isinstance(place, Path) and place.is_dir():
        raise InputError("a run says itself what its model is; leave it out", place="option --model")
    if asked.trust and not (isinstance(place, Path) and place.is_dir()):
        raise InputError("a label store brings no code; leave it out", place="option --trust")
    serving = Serving(
        place=place,
        port=asked.port,
        host=asked.host,
        address=asked.address,
        annotators=annotators,
        guidelines=asked.guidelines,
        question=asked.question,
        plane=asked.plane,
        model=asked.model,
        rules=Rules(asked.overlap, asked.lease, asked.checks),
        trust=asked.trust,
    )

    def tell(links: list[Link], address: str) -> None:
        for link in links:
            who = "your own page" if link.name == OWNER else f"for {link.name}"
            say(f"{who}: {link.url or 'has a link already; the overview on your page makes a new one'}")
        if not asked.quiet:
            say("the links are secrets; stop with Ctrl-C, what was answered is saved", stderr=True)
            open_browser(links[0].url)

    serve_page(serving, tell)
    if isinstance(place, str) or not place.is_dir():
        return 0
    return exit_status(asked)


def exit_status(asked: Serve) -> int:
    """0 certified, 1 finished but not certified, 3 labels are needed or it is still at work."""
    finished = Folder(Path(asked.place)).finished
    if finished is None:
        return LABELS_NEEDED
    return CERTIFIED if finished.certified else NOT_CERTIFIED
