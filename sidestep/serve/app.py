"""The addresses of the page: what each of them takes, who may ask, and what it gives.

Three threads share the work, so that a question never waits for the disk nor for a table of figures. On a busy machine
every change from one to another costs more than the work itself, so there are few of them:

    the loop's  takes requests and is at the desk, who is asked what: it keeps what it needs of the store in memory
    writing     puts answers into the store. Those that come in while a write is under way are written together by the
                next one: an answer is acknowledged when it is on disk, and a slow disk does not make a queue
    aside       what only the owner looks at: overviews, the state of a run
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sidestep import __version__
from sidestep.core.errors import DiskFull, InputError
from sidestep.core.records import from_json
from sidestep.labels.store import Store
from sidestep.serve.book import LINK_DAYS, Person, Pin
from sidestep.serve.desk import MOST_AT_ONCE, Checked, Desk, Given, Own, Progress, write_answers
from sidestep.serve.guard import LARGEST_BODY, PER_PERSON, PER_STRANGER, REPORT_POLICY, Buckets, Guard, Names
from sidestep.serve.insight import Overviews, Work
from sidestep.serve.runview import RunReader
from sidestep.serve.scenes import Scene
from sidestep.serve.worker import Worker

T = TypeVar("T")
MINE = 60  # own answers that are told at once
LOOK = 0.5  # seconds between two looks at whether the campaign can go on
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class Refused(Exception):
    """An answer other than 200, and why, in a sentence for the person at the page."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class Page:
    """What one server shows."""

    title: str  # of the model
    description: str
    question: str  # that is asked of every trajectory
    guidelines: str = ""  # as HTML that is safe
    hide: tuple[str, ...] = ()  # paths of this machine that never leave it
    secure: bool = False  # reached by https


@dataclass(frozen=True)
class Saved:
    """What somebody is told whose answers are on disk."""

    saved: tuple[Own, ...]
    progress: Progress


@dataclass(frozen=True)
class Unwritten:
    """Answers that came in, of whoever has this token."""

    token: str
    client: str
    answers: tuple[Given, ...]
    done: asyncio.Future[Saved]


class Service:
    """The desk and the campaign behind the addresses."""

    def __init__(self, page: Page, desk: Desk) -> None:
        self.page, self.desk = page, desk
        self._writer, self._aside = (ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("writing", "aside"))
        self._turn = Lock()
        self._written = Store.open(desk.store.path)  # the same, to write to
        self.overviews = Overviews()
        self.reader: RunReader | None = None
        self.worker: Worker | None = None
        self.people, self.strangers = Buckets(*PER_PERSON), Buckets(*PER_STRANGER)
        self._unwritten: list[Unwritten] = []
        self._writing: asyncio.Task[None] | None = None

    def with_run(self, reader: RunReader, trust: bool) -> None:
        """Show this run, and take its campaign on."""
        self.reader = reader
        self.worker = Worker(reader.run.path, campaign=reader.campaign is not None, trust=trust, asked=self._asked)

    def _asked(self, said: Mapping[str, object]) -> None:
        """From the worker's thread; returns when the questions can be handed out."""
        ids = [i for name in ("trajectories", "ahead") if isinstance(given := said.get(name), list) for i in given]
        kept = {name: value for name, value in said.items() if name not in ("trajectories", "store", "status")}
        self.at_desk(self.desk.ask, ids, kept)

    def at_desk(self, work: Callable[..., T], *given: object) -> T:
        """Do this at the desk, where one is at a time."""
        with self._turn:
            return work(*given)

    def who(self, token: str, client: str) -> Person:
        """At the desk."""
        person = self.desk.book.who(token) if token else None
        if person is None:
            if not self.strangers.take(client):
                raise Refused(429, "too many requests without a good link; wait a moment")
            raise Refused(401, "your link is not valid here, or no longer; ask the owner for a new one")
        if not self.people.take(person.name):
            raise Refused(429, "too many requests; wait a moment")
        return person

    async def call_aside(self, work: Callable[[], T]) -> T:
        """Do this where nobody waits for it but the one who asked."""
        return await asyncio.get_running_loop().run_in_executor(self._aside, work)

    async def answer(self, token: str, answers: tuple[Given, ...], client: str) -> Saved:
        """Answers of one person, on disk when this returns."""
        done: asyncio.Future[Saved] = asyncio.get_running_loop().create_future()
        self._unwritten.append(Unwritten(token, client, answers, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return await done

    async def _write(self) -> None:
        while self._unwritten:
            batch, self._unwritten = self._unwritten, []
            try:
                people, checked = self.at_desk(self._check, batch)
                if checked.good:
                    loop = asyncio.get_running_loop()
                    await loop.run_in_executor(self._writer, write_answers, self._written, checked.good)
                replies = self.at_desk(self._replies, batch, people, checked)
            except Exception as error:  # told to everybody whose answer this was
                replies = [error] * len(batch)
            for one, reply in zip(batch, replies, strict=True):
                _settle(one.done, reply)

    def _check(self, batch: Sequence[Unwritten]) -> tuple[list[Person | Refused], Checked]:
        """At the desk: who sent each of these, and which answers are to be written."""
        people: list[Person | Refused] = []
        for one in batch:
            try:
                people.append(self.who(one.token, one.client))
            except Refused as refused:
                people.append(refused)
        known = [(who, one) for who, one in zip(people, batch, strict=True) if isinstance(who, Person)]
        return people, self.desk.check([(person, given) for person, one in known for given in one.answers])

    def _replies(
        self, batch: Sequence[Unwritten], people: Sequence[Person | Refused], checked: Checked
    ) -> list[Saved | Exception]:
        """At the desk: what each of them is told; of one who sent a bad answer, the first fault."""
        replies = iter(self.desk.replies(checked))
        found: list[Saved | Exception] = []
        for who, one in zip(people, batch, strict=True):
            if not isinstance(who, Person):
                found.append(who)
                continue
            own = [next(replies) for _ in one.answers]
            fault = next((reply for reply in own if isinstance(reply, InputError)), None)
            saved = tuple(reply for reply in own if isinstance(reply, Own))
            found.append(fault or Saved(saved, self.desk.progress(who.name)))
        return found

    async def watch(self) -> None:
        """Take the campaign on whenever its questions are answered."""
        while True:
            if self.worker is not None:
                await asyncio.get_running_loop().run_in_executor(None, self.worker.start)
                if self.worker.state == "waiting" and self.at_desk(self._answered):
                    self.worker.go_on()
            await asyncio.sleep(LOOK)

    def _answered(self) -> bool:
        self.desk.read_log()
        self.desk.leave_doubtful()
        return self.desk.all_answered

    def close(self) -> None:
        if self.worker is not None:
            self.worker.stop()
        for thread in (self._aside, self._writer):
            thread.shutdown()
        self._written.close()
        self.at_desk(self.desk.close)


def _settle(done: asyncio.Future[Saved], reply: Saved | Exception) -> None:
    """Tell somebody what became of their answers."""
    if done.cancelled():
        return
    if isinstance(reply, Exception):
        done.set_exception(reply)
    else:
        done.set_result(reply)


# What requests hold.


@dataclass(frozen=True)
class Nothing:
    pass


@dataclass(frozen=True)
class Answers:
    answers: tuple[Given, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.answers) <= MOST_AT_ONCE:
            raise InputError(f"give 1 to {MOST_AT_ONCE} answers at once, not {len(self.answers)}")


@dataclass(frozen=True)
class Which:
    trajectory: int


@dataclass(frozen=True)
class Held:
    trajectories: tuple[int, ...]


@dataclass(frozen=True)
class Pinned:
    trajectory: int
    category: int | None = None  # None: pinned no more
    note: str = ""


@dataclass(frozen=True)
class Guest:
    name: str
    action: str = "invite"  # or "revoke"


class Asked(NamedTuple):
    """What a handler is given."""

    service: Service
    person: Person
    body: object
    request: Request


class Aside(NamedTuple):
    """The rest of what a handler does, for which the desk need not wait."""

    work: Callable[[], object]


# What the addresses give; all of these are at the desk, but for what they put aside.


def about(asked: Asked) -> object:
    """What the page has to know before it can show anything."""
    desk, page = asked.service.desk, asked.service.page
    return {
        "name": asked.person.name,
        "role": asked.person.role,
        "title": page.title,
        "description": page.description,
        "question": page.question,
        "categories": desk.store.scale.categories,
        "frames": desk.drawing.frames,
        "state": desk.drawing.state,
        "action": desk.drawing.action,
        "guidelines": page.guidelines,
        "pins": [
            {"scene": desk.scene(one.trajectory), "category": one.category, "note": one.note}
            for one in desk.book.pins()
        ],
        "run": asked.service.reader is not None,
        "overlap": desk.rules.overlap,
        "lease": desk.rules.lease,
        "version": __version__,
    }


def next_question(asked: Asked) -> object:
    """The next question, or what is being waited for."""
    desk, worker = asked.service.desk, asked.service.worker
    extra = asked.request.query_params.get("extra") == "1"
    question = desk.next(asked.person, extra=extra)
    return {
        "question": question,
        "progress": desk.progress(asked.person.name),
        "purpose": desk.purpose,
        "campaign": _campaign(asked.service) if worker else None,
        "done": question is None and desk.all_answered and (worker is None or worker.state == "finished"),
    }


def _campaign(service: Service) -> dict[str, object]:
    """What an annotator is told of the campaign: whether it works, on what, and how long that took before."""
    worker, reader = service.worker, service.reader
    assert worker is not None
    assert reader is not None
    state, seconds = reader.state(), reader.usual_seconds()
    return {
        "state": worker.state,
        "since": worker.since,
        "words": {"round": f"round {state.round + 1} of {reader.campaign.rounds}" if reader.campaign else ""}.get(
            state.stage, ""
        ),
        "stage": state.stage,
        "usual": seconds,
    }


def mine(asked: Asked) -> object:
    """Own answers, the latest first, without so many (`skip`) of the latest."""
    skip = asked.request.query_params.get("skip", "0")
    if not (skip.isascii() and skip.isdigit() and len(skip) < 10):
        raise InputError(f"skip is a number of answers, not '{skip[:20]}'")
    asked.service.desk.read_log()
    found = asked.service.desk.mine(asked.person.name, int(skip), MINE + 1)
    return {"labels": found[:MINE], "older": len(found) > MINE}


def look(asked: Asked) -> object:
    assert isinstance(asked.body, Which)
    return {"question": asked.service.desk.look_again(asked.person, asked.body.trajectory)}


def hold(asked: Asked) -> object:
    assert isinstance(asked.body, Held)
    asked.service.desk.hold(asked.person, asked.body.trajectories[:MOST_AT_ONCE])
    return {}


def tray(asked: Asked) -> object:
    desk = asked.service.desk
    return {"questions": desk.tray(asked.person), "progress": desk.progress(asked.person.name), "purpose": desk.purpose}


def practice(asked: Asked) -> object:
    return {"questions": asked.service.desk.practice()}


def practised(asked: Asked) -> object:
    assert isinstance(asked.body, Given)
    pin = asked.service.desk.practised(asked.person, asked.body)
    return {"right": pin.category == asked.body.category, "category": pin.category, "note": pin.note}


def show_overview(asked: Asked) -> object:
    work = Work.of(asked.service.desk, asked.person.name)
    return Aside(lambda: asked.service.overviews.of(work))


def settle(asked: Asked) -> object:
    assert isinstance(asked.body, Given)
    return {"own": asked.service.desk.settle(asked.person, asked.body)}


def pin(asked: Asked) -> object:
    assert isinstance(asked.body, Pinned)
    body, desk = asked.body, asked.service.desk
    if body.category is None:
        desk.book.unpin(body.trajectory)
    else:
        desk.pin(Pin(body.trajectory, body.category, body.note))
    return {}


def guests(asked: Asked) -> object:
    """A new personal link, which ends those before it; or the end of all of them."""
    assert isinstance(asked.body, Guest)
    body, book = asked.body, asked.service.desk.book
    if body.action not in ("invite", "revoke"):
        raise InputError("people can be invited and their links revoked")
    if body.name == asked.person.name:
        raise InputError("this is you; start the server again for a new link of your own")
    if body.action == "invite":
        book.add_person(body.name)
        book.revoke(body.name)
        return {"path": f"/in/{book.invite(body.name)}"}
    if body.name not in book.people():
        raise InputError(f"there is nobody called '{body.name}'")
    return {"revoked": book.revoke(body.name)}


def run_view(asked: Asked) -> object:
    service, worker, reader = asked.service, asked.service.worker, asked.service.reader
    if reader is None or worker is None:
        raise Refused(404, "there is no run here, only a label store")
    policies, purpose = reader.policies(service.desk), service.desk.purpose
    told = {
        "campaign": _campaign(service),
        "log": [hidden(line, service.page.hide) for line in worker.lines],
        "problem": hidden(worker.problem, service.page.hide),
        "purpose": purpose,
    }
    frames = service.desk.drawing.frames
    return Aside(lambda: {"run": reader.view(frames, policies, purpose), **told})


Handler = Callable[[Asked], object]


@dataclass(frozen=True)
class Address:
    """One address of the interface."""

    does: Handler
    takes: type = Nothing
    owner: bool = False
    method: str = "GET"


ADDRESSES = {
    "/api/about": Address(about),
    "/api/next": Address(next_question),
    "/api/mine": Address(mine),
    "/api/tray": Address(tray),
    "/api/practice": Address(practice),
    "/api/look": Address(look, Which, method="POST"),
    "/api/hold": Address(hold, Held, method="POST"),
    "/api/practised": Address(practised, Given, method="POST"),
    "/api/overview": Address(show_overview, owner=True),
    "/api/run": Address(run_view, owner=True),
    "/api/settle": Address(settle, Given, owner=True, method="POST"),
    "/api/pin": Address(pin, Pinned, owner=True, method="POST"),
    "/api/people": Address(guests, Guest, owner=True, method="POST"),
}


@dataclass
class Site:
    """The service as an ASGI application."""

    service: Service
    names: Names
    static: dict[str, bytes] = field(default_factory=lambda: load_static())

    @property
    def cookie(self) -> str:
        """Browsers share cookies between the ports of a machine, so its name has the port in it."""
        return f"sidestep-{self.names.port}"

    def app(self) -> ASGIApp:
        routes = [
            Route("/", self.shell),
            Route("/in/{token}", self.enter),
            Route("/report", self.report),
            Route("/static/{name}", self.file),
            Route("/api/label", self.label, methods=["POST"]),
            *(Route(path, self.endpoint(address), methods=[address.method]) for path, address in ADDRESSES.items()),
        ]
        return Guard(Starlette(routes=routes, lifespan=self.lifespan), self.names)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(self.service.watch())
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    def token(self, request: Request) -> str:
        return request.cookies.get(self.cookie, "")

    def endpoint(self, address: Address) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            async def work() -> object:
                body = await read_body(request, address.takes) if address.method == "POST" else Nothing()
                found = self.service.at_desk(self._do, address, request, body)
                return await self.service.call_aside(found.work) if isinstance(found, Aside) else found

            return await self.told(work)

        return answer

    def _do(self, address: Address, request: Request, body: object) -> object:
        return address.does(Asked(self.service, self._known(request, address.owner), body, request))

    def _known(self, request: Request, owner: bool) -> Person:
        person = self.service.who(self.token(request), client_of(request))
        if owner and person.role != "owner":
            raise Refused(403, "only the owner may see this")
        return person

    async def told(self, work: Callable[[], Awaitable[object]]) -> Response:
        """The result as JSON, or why there is none."""
        try:
            return json_response(await work())
        except Refused as refused:
            return json_response({"error": refused.reason}, refused.status)
        except DiskFull:
            return json_response({"error": "there is no space left on the server's disk; nothing was saved"}, 507)
        except InputError as error:
            place = f"{error.place}: " if error.place else ""
            said = hidden(str(error).removeprefix(place), self.service.page.hide)
            return json_response({"error": said}, 400)

    async def label(self, request: Request) -> Response:
        async def work() -> object:
            body = await read_body(request, Answers)
            return await self.service.answer(self.token(request), body.answers, client_of(request))

        return await self.told(work)

    async def enter(self, request: Request) -> Response:
        """A personal link: from now on a cookie says who this is."""
        token = request.path_params["token"]
        try:
            self.service.at_desk(self.service.who, token, client_of(request))
        except Refused as refused:
            return HTMLResponse(self.static["refused.html"], refused.status)
        response = RedirectResponse("/", 303)
        seconds = int(LINK_DAYS * 86400)
        response.set_cookie(
            self.cookie, token, max_age=seconds, httponly=True, samesite="lax", secure=self.service.page.secure
        )
        return response

    async def shell(self, request: Request) -> Response:
        try:
            self.service.at_desk(self.service.who, self.token(request), client_of(request))
        except Refused as refused:
            return HTMLResponse(self.static["refused.html"], refused.status)
        return HTMLResponse(self.static["index.html"])

    async def file(self, request: Request) -> Response:
        name = request.path_params["name"]
        content = self.static.get(name)
        if content is None or name.endswith(".html"):
            return json_response({"error": "there is no such file"}, 404)
        tag = f'"{sha256(content).hexdigest()[:16]}"'
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=TYPES[Path(name).suffix], headers=headers)

    async def report(self, request: Request) -> Response:
        """The run's report, for the owner; no script of it runs."""

        def read() -> str:
            reader = self.service.reader
            if reader is None or not reader.run.has("report.html"):
                raise Refused(404, "there is no report yet")
            return hidden((reader.run.path / "report.html").read_text(encoding="utf-8"), self.service.page.hide)

        try:
            self.service.at_desk(self._known, request, True)
            content = await self.service.call_aside(read)
            return HTMLResponse(content, headers={"content-security-policy": REPORT_POLICY})
        except Refused as refused:
            return json_response({"error": refused.reason}, refused.status)


async def read_body(request: Request, record: type[T]) -> T:
    """The body of a request as this record; its length was announced and is not believed."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > LARGEST_BODY:
            raise Refused(413, f"a request has at most {LARGEST_BODY:,} bytes")
    try:
        data = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Refused(400, "expected JSON") from None
    try:
        return from_json(record, data, "the request")
    except (TypeError, OverflowError, RecursionError):
        raise Refused(400, "the request holds what no page sends") from None


def client_of(request: Request) -> str:
    return request.client.host if request.client else "?"


def json_response(content: object, status: int = 200) -> Response:
    text = json.dumps(plain(content), separators=(",", ":"), allow_nan=False)
    return Response(text, status, media_type="application/json")


def plain(value: object) -> object:
    """Records as JSON; numbers that are not finite are left out, since JSON has none."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Scene):
        return value.as_json
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def hidden(text: str, paths: tuple[str, ...]) -> str:
    """The text without the paths of this machine."""
    for path in paths:
        text = text.replace(path, "…")
    return text


def load_static() -> dict[str, bytes]:
    """Every file of the page, by name: nothing else can be asked for."""
    folder = files("sidestep.serve") / "static"
    return {file.name: file.read_bytes() for file in folder.iterdir() if Path(file.name).suffix in TYPES}
