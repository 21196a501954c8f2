"""A label store with a page, in this process, without or with a network."""

import contextlib
import socket
import threading
import time

import numpy as np
import uvicorn
from starlette.testclient import TestClient
from store_helpers import SPEC, from_numbers

from sidestep.labels.store import Store
from sidestep.serve.app import Page, Service, Site
from sidestep.serve.book import OWNER, Book, open_book
from sidestep.serve.desk import Desk, Rules
from sidestep.serve.guard import Names
from sidestep.serve.scenes import Drawing

PORT = 8765
BASE = f"http://127.0.0.1:{PORT}"
QUESTIONS = 30
STEPS = 5


def walks(count, time=STEPS, seed=0):
    """Trajectories of the small model that wander off, each of full length."""
    rng = np.random.default_rng(seed)
    numbers = np.zeros((count, time, 5), np.float32)
    numbers[..., :2] = np.cumsum(rng.normal(size=(count, time, 2)), axis=1)
    numbers[..., 2] = np.arange(time)
    numbers[..., 3:] = rng.normal(size=(count, time, 2))
    return from_numbers(numbers, np.full(count, time, np.int32))


def make_store(path, count=QUESTIONS, steps=STEPS):
    with Store.create(path, SPEC) as store:
        store.add(walks(count, steps), policy="uniform")
    return path


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.now = time.time()

    def __call__(self):
        return self.now


def make_service(path, rules=None, clock=None, guidelines="", plane="place[x],place[y]", hide=()):
    with Store.open(path) as store:
        drawing = Drawing(store.model, plane=plane)
    book = open_book(path) if clock is None else Book(path.with_name(path.name + ".page"), clock)
    desk = Desk(Store.open(path), book, drawing, rules or Rules(), whole_store=True)
    return Service(Page("walker", "A small walk.", "How bad was it?", guidelines, tuple(hide)), desk)


def invite(service, name, role="annotator", days=30.0):
    """The secret of a new link."""

    def make():
        service.desk.book.add_person(name, role)
        return service.desk.book.invite(name, days)

    return service.at_desk(make)


class Guest:
    """Somebody at the page, by their link."""

    def __init__(self, client, token):
        self.client = client
        self.cookies = {f"sidestep-{PORT}": token}

    def get(self, path, **headers):
        return self.client.get(path, headers={"cookie": self._cookie, **headers})

    def post(self, path, body, **headers):
        return self.client.post(path, json=body, headers={"cookie": self._cookie, "origin": BASE, **headers})

    @property
    def _cookie(self):
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())

    def next(self, extra=False):
        return self.get(f"/api/next{'?extra=1' if extra else ''}").json()["question"]

    def label(self, trajectory, category, marks=None, comment=""):
        answer = {"trajectory": trajectory, "category": category, "marks": marks or {}, "comment": comment}
        return self.post("/api/label", {"answers": [answer]})


@contextlib.contextmanager
def page(path, **settings):
    """(service, client, owner, make): a page in this process; `make(name)` gives further guests."""
    service = make_service(path, **settings)
    site = Site(service, Names(PORT))
    try:
        with TestClient(site.app(), base_url=BASE, follow_redirects=False) as client:
            owner = Guest(client, invite(service, OWNER, "owner"))
            yield service, client, owner, lambda name: Guest(client, invite(service, name))
    finally:
        service.close()


@contextlib.contextmanager
def listening(path, port=0, **settings):
    """(service, address): the same on a real port of this machine."""
    service = make_service(path, **settings)
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", port))
    port = one.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(Site(service, Names(port)).app(), log_level="error", lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [one]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.02)
        yield service, f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
        service.close()
        one.close()
