"""Starting the page: what it shows, who may come in, and where it listens."""

import contextlib
import os
import signal
import socket
import sys
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn

from sidestep.core.errors import InputError
from sidestep.core.model import Model
from sidestep.labels.schema import spec_hash
from sidestep.labels.store import Store
from sidestep.models import load_model
from sidestep.runs.loaded import LoadedRun
from sidestep.serve.app import Page, Service, Site
from sidestep.serve.book import OWNER, Book, open_book
from sidestep.serve.desk import Desk, Rules
from sidestep.serve.guard import LOOPBACK, Names
from sidestep.serve.guidelines import guidelines_html
from sidestep.serve.runview import RunReader
from sidestep.serve.scenes import Drawing

QUESTION = "How bad is the worst side effect of this trajectory?"
TRIES = 20  # ports after the one that was asked for
TURN = 0.0005  # seconds after which a thread lets another go on: an overview does not hold up the questions


@dataclass(frozen=True)
class Serving:
    """What the command line asks for."""

    place: Path | str  # a run's folder or a label store, a file or a URL
    port: int = 8765
    host: str = "127.0.0.1"
    address: str = ""
    annotators: tuple[str, ...] = ()
    guidelines: Path | None = None
    question: str = QUESTION
    plane: str = ""
    model: str | None = None
    rules: Rules = field(default_factory=Rules)
    trust: bool = False

    @property
    def anywhere(self) -> bool:
        return self.host not in LOOPBACK


@dataclass(frozen=True)
class Link:
    name: str
    url: str


def prepare(asked: Serving) -> tuple[Service, RunReader | None]:
    """Everything but the network."""
    if asked.anywhere and not asked.annotators:
        raise InputError(
            "others can reach the page there, so everybody needs a link of their own; add --annotators ann,ben",
            place=f"--host {asked.host}",
        )
    folder = asked.place if isinstance(asked.place, Path) and asked.place.is_dir() else None
    reader = None
    if folder is not None:
        loaded = LoadedRun(folder, asked.trust)
        people = loaded.config.kind == "campaign" and loaded.expert.label is None
        model: Model | None = loaded.model
        reader = RunReader(folder, people)
        store = loaded.store_path
        loaded.open_store().close()
    else:
        store = asked.place
        model = _model_of(store, asked.model)
    with Store.open(store) as opened:
        signature = opened.model
    page = Page(
        title=signature.name,
        description=model.spec.description if model else "",
        question=asked.question,
        guidelines=guidelines_html(asked.guidelines) if asked.guidelines else "",
        hide=hidden_paths(asked.place),
        secure=urlsplit(asked.address).scheme == "https",
    )
    drawing = Drawing(signature, model, asked.plane)
    service = Service(page, Desk(Store.open(store), open_book(store), drawing, asked.rules, whole_store=reader is None))
    if reader is not None:
        service.with_run(reader, asked.trust)
    return service, reader


def _model_of(store: Path | str, reference: str | None) -> Model | None:
    """The model of a store by the name given, else by the store's own where that is a built-in one."""
    with Store.open(store) as opened:
        name, known = opened.model_name, opened.model_hash
    try:
        model = load_model(reference or name)
    except InputError:
        if reference:
            raise
        return None  # a model of the user's: its entries are drawn over time
    if spec_hash(model.spec) == known:
        return model
    if reference:
        raise InputError(f"the store is of the model '{name}', and this is another", place=f"--model {reference}")
    return None


def hidden_paths(place: Path | str) -> tuple[str, ...]:
    """The longest first."""
    own = {place} if isinstance(place, str) else {str(place.resolve()), str(place.resolve().parent)}
    found = {*own, str(Path.cwd()), str(Path.home())} - {"/", "."}
    return tuple(sorted(found, key=len, reverse=True))


def links(service: Service, asked: Serving, base: str) -> list[Link]:
    """A new link for the owner at every start, and one for each annotator who has none."""

    def make() -> list[Link]:
        book: Book = service.desk.book
        book.add_person(OWNER, "owner")
        found = [Link(OWNER, f"{base}/in/{book.invite(OWNER)}")]
        for name in asked.annotators:
            book.add_person(name)
        have = {person.name for person in book.invited() if person.links}
        for name in asked.annotators:
            url = "" if name in have else f"{base}/in/{book.invite(name)}"
            found.append(Link(name, url))
        return found

    return service.at_desk(make)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket on this port, or on one of those after it; port 0 is any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last: OSError | None = None
    for candidate in range(port, port + TRIES) if port else (0,):
        # With its protocol named, asyncio turns off Nagle's algorithm, which would hold back each answer for 40 ms.
        one = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, candidate))
            return one
        except OSError as error:
            one.close()
            last = error
    raise InputError(f"cannot listen there: {last}", place=f"--host {host} --port {port}")


def _listen(bound: socket.socket) -> None:
    try:
        bound.listen()
    except OSError as error:
        place = f"port {bound.getsockname()[1]}"
        raise InputError("another program has just begun to listen there; start the page again", place=place) from error


def serve(asked: Serving, tell: Callable[[list[Link], str], None]) -> None:
    """Serve until interrupted. `tell` is given the links and the address once they work."""
    service, _ = prepare(asked)
    sys.setswitchinterval(TURN)
    try:
        listening = bound_socket(asked.host, asked.port)
        port = listening.getsockname()[1]
        base = asked.address.rstrip("/") or f"http://{_name(asked.host)}:{port}"
        names = Names(port, asked.anywhere, asked.address, _own_names() if asked.anywhere else ())
        site = Site(service, names)
        config = uvicorn.Config(
            site.app(),
            log_level="warning",
            access_log=False,  # addresses hold the secrets of links
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=30,
            limit_concurrency=1000,
            h11_max_incomplete_event_size=32 * 1024,
            timeout_graceful_shutdown=3,
            loop="asyncio",
            http="h11",
            ws="none",
        )
        config.load()  # imports what it needs, before anybody is told to come
        server = uvicorn.Server(config)
        found = links(service, asked, base)
        _listen(listening)  # not before all is ready: who is refused asks again, who is let in is answered soon
        tell(found, base)
        with _quiet_signals():
            server.run(sockets=[listening])
    finally:
        service.close()


@contextlib.contextmanager
def _quiet_signals() -> Iterator[None]:
    """Uvicorn raises the signal that ended it once more; here that is the usual end."""
    with contextlib.suppress(KeyboardInterrupt):
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def _name(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _own_names() -> tuple[str, ...]:
    return tuple({socket.gethostname().lower(), socket.getfqdn().lower()})


def open_browser(url: str) -> None:
    """Where there is a screen."""
    if (
        os.environ.get("DISPLAY")
        or os.environ.get("WAYLAND_DISPLAY")
        or os.name == "nt"
        or os.uname().sysname == "Darwin"
    ):
        with contextlib.suppress(Exception):  # a browser that does not start is no reason to stop
            webbrowser.open(url)
