"""The page on which people label, asked over HTTP: who is let in, what is handed out, what is written or refused."""

import hmac
import json
import socket

import numpy as np
import pytest
from run_helpers import write_run
from serve_helpers import BASE, PORT, QUESTIONS, Clock, Guest, invite, make_store, page
from starlette.testclient import TestClient
from store_helpers import random_trajectories

from sidestep.cli import serve as cli_serve
from sidestep.cli.arguments import arguments_of
from sidestep.cli.commands import Serve
from sidestep.cli.main import main
from sidestep.core.errors import DiskFull, InputError
from sidestep.labels.copies import blind_copies
from sidestep.labels.store import Store
from sidestep.labels.votes import agreement
from sidestep.serve.app import ADDRESSES, MINE, Site, load_static
from sidestep.serve.book import Pin, open_book
from sidestep.serve.desk import REPEAT_AFTER, TRAY, Given, Rules
from sidestep.serve.guard import LARGEST_BODY, PER_PERSON, PER_STRANGER, Buckets, Guard, Names
from sidestep.serve.guidelines import markdown_html
from sidestep.serve.scenes import Drawing
from sidestep.serve.server import Link, Serving, bound_socket, prepare


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "walks.store")


@pytest.fixture
def site(store):
    with page(store) as found:
        yield found


# Who is let in.


def test_a_link_lets_its_person_in_and_a_cookie_keeps_them(site):
    service, client, _, _ = site
    token = invite(service, "ann")
    answer = client.get(f"/in/{token}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert all(part in cookie for part in (f"sidestep-{PORT}={token}", "HttpOnly", "SameSite=lax"))
    assert Guest(client, token).get("/api/about").json()["name"] == "ann"
    assert Guest(client, token).get("/").status_code == 200


def test_nothing_is_told_without_a_good_link(site):
    service, client, _, _ = site
    for path, address in ADDRESSES.items():
        for token in ("", "x" * 32, "\u00e9"):
            cookies = {"cookie": f"sidestep-{PORT}={token}".encode()}
            body = (
                {"json": {}, "headers": {"origin": BASE, **cookies}}
                if address.method == "POST"
                else {"headers": cookies}
            )
            assert client.request(address.method, path, **body).status_code in (400, 401, 429), path
        service.strangers._left.clear()
    assert (
        client.get("/").status_code
        == client.get("/in/nonsense").status_code
        == client.get("/report").status_code
        == 401
    )
    headers = {"origin": BASE}
    answer = client.post("/api/label", json={"answers": [{"trajectory": 1, "category": 0}]}, headers=headers)
    assert answer.status_code == 401


def test_links_end_when_they_expire_or_are_revoked(store):
    clock = Clock()
    with page(store, clock=clock) as (service, client, owner, _):
        ann, ben = (Guest(client, invite(service, name, days=1.0)) for name in ("ann", "ben"))
        assert ann.get("/api/next").status_code == 200
        assert owner.post("/api/people", {"name": "ann", "action": "revoke"}).json() == {"revoked": 1}
        assert (ann.get("/api/next").status_code, ben.get("/api/next").status_code) == (401, 200)
        clock.now += 1.01 * 86400
        assert ben.get("/api/next").status_code == 401
        assert ben.get(f"/in/{next(iter(ben.cookies.values()))}").status_code == 401
        path = owner.post("/api/people", {"name": "ben", "action": "invite"}).json()["path"]
        assert client.get(path).status_code == 303


def test_a_new_link_ends_the_one_before(site):
    _, client, owner, make = site
    ann = make("ann")
    path = owner.post("/api/people", {"name": "ann"}).json()["path"]
    assert ann.get("/api/next").status_code == 401
    assert client.get(path).status_code == 303


def test_secrets_are_compared_in_constant_time_and_all_of_them(site, monkeypatch):
    service, client, _, _ = site
    token, compared = invite(service, "ann"), []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda one, other: compared.append(one) or compare(one, other))
    for given in (token, "x" * 32):
        compared.clear()
        client.get(f"/in/{given}")
        assert len(compared) == 2  # ann's and the owner's, whether the first of them fits or none


def test_only_hashes_of_secrets_are_kept(site, store):
    service = site[0]
    token = invite(service, "ann")
    kept = b"".join(file.read_bytes() for file in store.parent.iterdir())
    assert token.encode() not in kept


def test_what_is_for_the_owner_is_for_the_owner(site):
    _, _, owner, make = site
    ann = make("ann")
    for path, address in ADDRESSES.items():
        if address.owner and address.method == "GET":
            assert ann.get(path).status_code == 403
    assert ann.post("/api/people", {"name": "eve"}).status_code == 403
    assert ann.post("/api/settle", {"trajectory": 1, "category": 0}).status_code == 403
    assert ann.post("/api/pin", {"trajectory": 1, "category": 0}).status_code == 403
    assert ann.get("/report").status_code == 403
    assert owner.get("/api/overview").status_code == 200


@pytest.mark.parametrize("name", ["", " ann", "<script>", "a" * 41, "a\nb", "../x", "owner"])
def test_odd_names_are_refused(site, name):
    assert site[2].post("/api/people", {"name": name}).status_code == 400


# From where, how often, with how much.


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1:1", "", f"a@localhost:{PORT}", "[", f"10.0.0.1:{PORT}"]
)
def test_other_hosts_are_refused(site, host):
    assert site[2].get("/api/about", host=host).status_code == 421


def test_names_of_a_server_that_others_reach():
    names = Names(80, anywhere=True, address="https://label.example.org", hosts=("lab7",))
    assert all(map(names.is_ours, ("label.example.org", "lab7", "lab7:80", "10.0.0.7", "[fe80::1]:80", "localhost")))
    assert not any(map(names.is_ours, ("example.org", "lab7:81", "lab7.evil.example", "10.0.0.7.evil.example")))
    assert names.is_own_origin("https://label.example.org", "label.example.org")
    assert not names.is_own_origin("https://evil.example", "label.example.org")
    assert not names.is_own_origin("null", "lab7")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", f"http://localhost:{PORT}", f"https://127.0.0.1:{PORT}"]
)
def test_other_origins_change_nothing(site, store, origin):
    owner = site[2]
    trajectory = owner.next()["scene"]["trajectory"]
    assert (
        owner.post("/api/label", {"answers": [{"trajectory": trajectory, "category": 1}]}, origin=origin).status_code
        == 403
    )
    with Store.open(store) as opened:
        assert opened.log() == []


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"\xff\xfe", {}, 400),
        (b"[" * 50_000, {}, 400),
        (b'{"answers": []}', {}, 400),
        (b'{"answers": [{}]}', {}, 400),
        (b'{"answers": [{"trajectory": "1"}]}', {}, 400),
        (b'{"answers": [{"trajectory": 1e400}]}', {}, 400),
        (b'{"answers": [{"trajectory": true, "category": 0}]}', {}, 400),
        (b'{"answers": [{"trajectory": 99999999999999999999, "category": 0}]}', {}, 400),
        (b'{"answers": [{"trajectory": 1, "category": 3}]}', {}, 400),
        (b'{"answers": [{"trajectory": 1, "category": -1}]}', {}, 400),
        (b'{"answers": [{"trajectory": 0, "category": 0}]}', {}, 400),
        (b'{"answers": [{"trajectory": 29, "category": 0}]}', {}, 400),  # not handed to this person
        (b'{"answers": [{"trajectory": 1, "category": 1, "marks": {"severe": 1}}]}', {}, 400),
        (b'{"answers": [{"trajectory": 1, "category": 1, "marks": {"mild": 99}}]}', {}, 400),
        (b'{"answers": [{"trajectory": 1, "category": 1, "marks": {"none": 1}}]}', {}, 400),
        (b'{"answers": [{"trajectory": 1, "category": 1, "comment": "\\u0000"}]}', {}, 400),
        (json.dumps({"answers": [{"trajectory": 1, "comment": "x" * 2001}]}).encode(), {}, 400),
        (json.dumps({"answers": [{"trajectory": 1}] * 101}).encode(), {}, 400),
        (b"x" * (LARGEST_BODY + 1), {}, 413),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {"content-type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_bad_requests_are_refused_and_write_nothing(site, store, content, headers, status):
    _, client, owner, _ = site
    owner.next()
    headers = {"content-type": "application/json", "origin": BASE, "cookie": owner._cookie} | headers
    answer = client.post("/api/label", content=content, headers=headers)
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    with Store.open(store) as opened:
        assert opened.log() == []


def test_a_body_longer_than_it_says_or_of_no_length_is_refused(site):
    _, client, owner, _ = site
    headers = {"content-type": "application/json", "origin": BASE, "cookie": owner._cookie}
    answer = {"answers": [{"trajectory": owner.next()["scene"]["trajectory"], "category": 0}]}
    long = json.dumps(answer).encode() + b" " * LARGEST_BODY  # good but for its size
    assert client.post("/api/label", content=iter([long]), headers=headers).status_code == 411
    assert client.post("/api/label", content=long, headers=headers | {"content-length": "10"}).status_code == 413
    assert client.post("/api/label", content=long[:-100], headers=headers).status_code == 200


@pytest.fixture
def guarded():
    """The outermost layer alone, around nothing that may be asked."""

    async def inner(scope, receive, send):
        raise AssertionError("nobody was to be asked")

    return TestClient(Guard(inner, Names(PORT)), base_url=BASE)


def test_a_body_that_says_it_is_too_large_is_not_read(guarded):
    headers = {"content-type": "application/json", "origin": BASE}
    assert guarded.post("/", content=b"x" * (LARGEST_BODY + 1), headers=headers).status_code == 413


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/index.html",
        "/static/walks.store",
        "/walks.store",
        "/static/",
    ],
)
def test_paths_lead_nowhere_else(site, path):
    assert site[2].get(path).status_code in (401, 404)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(guarded, method):
    assert guarded.request(method, "/api/about").status_code == 405


def test_every_answer_tells_the_browser_what_it_may_do(site):
    _, client, owner, _ = site
    for answer in (
        owner.get("/"),
        owner.get("/api/about"),
        client.get("/in/x"),
        client.get("/api/about"),
        owner.get("/static/app.js"),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers
    assert owner.get("/api/about").headers["cache-control"] == "no-store"


def test_nobody_may_ask_too_often(site):
    service, client, owner, _ = site
    service.people.rate = 0.0
    statuses = [owner.get("/api/mine").status_code for _ in range(int(PER_PERSON[1]) + 2)]
    assert statuses.count(200) == int(PER_PERSON[1])
    assert statuses[-1] == 429
    service.strangers.rate = 0.0
    statuses = [client.get("/in/guess").status_code for _ in range(int(PER_STRANGER[1]) + 2)]
    assert (statuses[0], statuses[-1]) == (401, 429)


def test_a_bucket_refills():
    now = [0.0]
    bucket = Buckets(2.0, 3.0, clock=lambda: now[0])
    assert [bucket.take("a") for _ in range(4)] == [True, True, True, False]
    assert bucket.take("b")
    now[0] += 0.5
    assert [bucket.take("a"), bucket.take("a")] == [True, False]


def test_paths_of_the_machine_do_not_leave_it(store, monkeypatch):
    with page(store, hide=(str(store.parent),)) as (service, _, owner, _):

        def fail(*given, **more):
            raise InputError(f"cannot read {store}", place=str(store))

        monkeypatch.setattr(service.desk, "next", fail)
        said = owner.get("/api/next")
        assert said.status_code == 400
        assert said.json() == {"error": "cannot read …/walks.store"}


def test_a_full_disk_is_told_and_nothing_is_acknowledged(site, monkeypatch):
    service, _, owner, _ = site
    trajectory = owner.next()["scene"]["trajectory"]

    def full(*given, **more):
        raise DiskFull(str(service.desk.store.path))

    monkeypatch.setattr(service._written, "label", full)
    answer = owner.label(trajectory, 0)
    assert answer.status_code == 507
    assert "walks.store" not in answer.text


# Questions and answers.


def test_an_answer_is_in_the_store_when_it_is_acknowledged(site, store):
    owner = site[2]
    question = owner.next()
    scene = question["scene"]
    assert len(scene["views"][0]["x"]) == scene["length"] == len(scene["reward"])
    saved = owner.label(scene["trajectory"], 2, {"mild": 1, "severe": 3}, " too <b>fast</b> ").json()["saved"]
    with Store.open(store) as opened:
        (label,) = opened.log()
    assert (label.trajectory, label.category, label.annotator) == (scene["trajectory"], 2, "owner")
    assert (dict(label.marks), label.comment) == ({"mild": 1, "severe": 3}, "too <b>fast</b>")
    assert saved[0]["comment"] == "too <b>fast</b>"
    assert owner.next()["scene"]["trajectory"] != scene["trajectory"]


def test_the_drawing_and_the_words_are_those_of_the_store(site, store):
    owner = site[2]
    about, scene = owner.get("/api/about").json(), owner.next()["scene"]
    with Store.open(store) as opened:
        one = opened.get(scene["trajectory"])
    assert [column["name"] for column in about["state"]] == ["place[x]", "place[y]", "step"]
    np.testing.assert_allclose(np.array(scene["state"]).T, one.states[0], rtol=1e-4)
    np.testing.assert_allclose(scene["views"][0]["x"], one.states[0, :, 0], rtol=1e-4)
    assert about["frames"][0]["kind"] == "plane"


def test_the_same_answer_twice_is_one_label_and_a_change_is_another(site, store):
    owner = site[2]
    trajectory = owner.next()["scene"]["trajectory"]
    for category in (1, 1, 2, 2, None, None):
        assert owner.label(trajectory, category).json()["saved"][0]["category"] == category
    with Store.open(store) as opened:
        assert [label.category for label in opened.log()] == [1, 2, None]
    assert owner.get("/api/mine").json()["labels"][0]["category"] is None


def test_an_answer_is_told_with_how_far_the_questions_are(site):
    owner = site[2]
    told = owner.label(owner.next()["scene"]["trajectory"], 0).json()
    assert told["progress"] == owner.get("/api/next").json()["progress"]
    assert told["progress"]["answered"] == 1


def test_every_own_answer_can_be_found_again(tmp_path):
    with page(make_store(tmp_path / "many.store", count=MINE + 5), rules=Rules(checks=0)) as (service, _, owner, _):
        asked = []
        while question := owner.next():
            asked.append(question["scene"]["trajectory"])
            owner.label(asked[-1], 0)
            service.people._left.clear()  # nobody is this fast
        first, rest = (owner.get(f"/api/mine?skip={skip}").json() for skip in (0, MINE))
        assert (first["older"], rest["older"]) == (True, False)
        assert [one["trajectory"] for one in first["labels"] + rest["labels"]] == asked[::-1]
        assert owner.get("/api/mine?skip=-1").status_code == owner.get("/api/mine?skip=x").status_code == 400


def test_what_the_only_annotator_cannot_tell_is_left_and_may_be_answered_later(store):
    with page(store, rules=Rules(checks=0)) as (_, _, owner, _):
        first = owner.next()["scene"]["trajectory"]
        owner.label(first, 0)
        assert owner.get("/api/next").json()["progress"]["answered"] == 1
        owner.label(first, None)
        left = {"questions": QUESTIONS, "answered": 1, "own": 0, "skipped": 1}
        assert owner.get("/api/next").json()["progress"] == left
        for _ in range(QUESTIONS - 1):
            owner.label(owner.next()["scene"]["trajectory"], 0)
        assert owner.get("/api/next").json()["done"]
        owner.label(first, 1)
        assert owner.get("/api/next").json()["progress"]["skipped"] == 0


def test_what_one_cannot_tell_goes_to_another_who_is_there(store):
    clock = Clock()
    with page(store, rules=Rules(checks=0), clock=clock) as (service, _, _, make):
        ann, ben = make("ann"), make("ben")
        of_ann, of_ben = (one.next()["scene"]["trajectory"] for one in (ann, ben))
        ann.label(of_ann, None)
        assert ann.get("/api/next").json()["progress"]["answered"] == 0
        ben.label(of_ben, 0)
        assert ben.next()["scene"]["trajectory"] == of_ann
        for _ in range(QUESTIONS - 2):
            question = ann.next()
            assert not question["skipped"]
            ann.label(question["scene"]["trajectory"], 0)
        assert ann.next() is None  # ben has the last one in front of him
        clock.now += 301
        assert service.at_desk(service._answered)  # ben has gone


def test_people_get_different_questions_and_an_expired_lease_goes_to_somebody_else(store):
    clock = Clock()
    with page(store, clock=clock) as (_, _, owner, make):
        ann, ben = make("ann"), make("ben")
        of_ann = ann.next()["scene"]["trajectory"]
        assert ann.next()["scene"]["trajectory"] == of_ann  # a reload gives the same one
        assert ben.next()["scene"]["trajectory"] != of_ann
        clock.now += 200
        assert ann.post("/api/hold", {"trajectories": [of_ann]}).status_code == 200
        clock.now += 200
        assert owner.next()["scene"]["trajectory"] != of_ann
        clock.now += 301
        taken = [make(f"guest{number}").next()["scene"]["trajectory"] for number in range(4)]
        assert of_ann in taken
        assert ann.label(of_ann, 1).status_code == 200  # late, and not lost


def test_overlap_asks_as_many_people_and_nobody_twice(store):
    with page(store, rules=Rules(overlap=2)) as (service, _, _, make):
        people = [make(name) for name in ("ann", "ben", "cat")]
        for person in people:
            while question := person.next():
                person.label(question["scene"]["trajectory"], 0)
        votes = [set(one) for one in service.desk.votes.values()]
        assert len(votes) == QUESTIONS
        assert all(len(one) == 2 for one in votes)


def test_people_do_not_see_what_others_said(site):
    _, _, owner, make = site
    ann, ben = make("ann"), make("ben")
    trajectory = ann.next()["scene"]["trajectory"]
    ann.label(trajectory, 2, comment="hush")
    assert "hush" not in ben.get("/api/mine").text + ben.get("/api/about").text + ben.get("/api/next").text
    assert ben.post("/api/look", {"trajectory": trajectory}).status_code == 400
    assert ben.label(trajectory, 0).status_code == 400
    assert owner.post("/api/look", {"trajectory": trajectory}).json()["question"]["own"] is None


def test_labels_of_other_processes_are_seen(site, store):
    owner = site[2]
    first = owner.next()["scene"]["trajectory"]
    with Store.open(store) as opened:
        opened.label([first], [0], annotator="import")
        opened.add(random_trajectories(3, seed=9), policy="later")
    found = owner.get("/api/next").json()
    assert found["question"]["scene"]["trajectory"] != first
    assert found["progress"]["questions"] == QUESTIONS + 3


def test_everything_survives_the_end_of_the_server(store):
    with page(store) as (service, _, _, _):
        token = invite(service, "ann")
    with page(store) as (_, client, _, _):
        ann = Guest(client, token)
        held = ann.next()["scene"]["trajectory"]
        ann.label(held, 1)
        waiting = ann.next()["scene"]["trajectory"]
    with page(store) as (_, client, _, make):
        ann = Guest(client, token)
        assert ann.get("/api/mine").json()["labels"][0]["category"] == 1
        assert make("ben").next()["scene"]["trajectory"] != waiting
        assert ann.next()["scene"]["trajectory"] == waiting


def test_a_tray_holds_questions_that_look_alike(site, store):
    owner = site[2]
    questions = owner.get("/api/tray").json()["questions"]
    assert len(questions) == TRAY
    ends = np.array([[q["scene"]["views"][0]["x"][-1], q["scene"]["views"][0]["y"][-1]] for q in questions])
    with Store.open(store) as opened:
        _, everything = opened.everything()
    assert ends.std(axis=0).sum() < np.asarray(everything.states)[:, -1, :2].std(axis=0).sum()
    answers = [{"trajectory": q["scene"]["trajectory"], "category": 0} for q in questions]
    assert len(owner.post("/api/label", {"answers": answers}).json()["saved"]) == TRAY
    with Store.open(store) as opened:
        assert len(opened.log()) == TRAY


def test_a_tray_does_not_show_what_is_asked_twice(tmp_path):
    path = make_store(tmp_path / "walks.store")
    with Store.open(path) as store:
        copied = list(range(1, 9))
        store.add(blind_copies(store.get(copied), np.ones(8, int), 0), policy="uniform")
    with page(path) as (_, _, owner, _):
        for size in (TRAY, TRAY, None):
            questions = owner.get("/api/tray").json()["questions"]
            paths = {tuple(question["scene"]["views"][0]["x"]) for question in questions}
            assert len(paths) == len(questions) == (size or len(questions))
            answers = [{"trajectory": question["scene"]["trajectory"], "category": 0} for question in questions]
            assert owner.post("/api/label", {"answers": answers}).status_code == 200


def test_one_bad_answer_of_several_people_does_not_hold_up_the_others(site):
    service, _, _, make = site
    ann, ben = make("ann"), make("ben")
    first, second = (one.next()["scene"]["trajectory"] for one in (ann, ben))
    desk = service.desk

    def together():
        people = [desk.book.who(next(iter(one.cookies.values()))) for one in (ann, ben)]
        return desk.answer([(people[0], Given(first, 7)), (people[1], Given(second, 1))])

    refused, kept = service.at_desk(together)
    assert isinstance(refused, InputError)
    assert kept.category == 1


def test_answers_that_come_twice_at_once_are_one_label_and_the_last_word_counts(site, store):
    service, _, _, make = site
    ann = make("ann")
    trajectory = ann.next()["scene"]["trajectory"]
    desk = service.desk

    def said(*categories):
        person = desk.book.who(next(iter(ann.cookies.values())))
        return desk.answer([(person, Given(trajectory, category)) for category in categories])

    for categories in ((1, 1), (1, 1), (2, 1)):
        replies = service.at_desk(said, *categories)
        assert [reply.category for reply in replies] == [1, 1]
    with Store.open(store) as opened:
        assert [label.category for label in opened.log()] == [1, 2, 1]


# Checks, practice, guidelines.


def test_blind_checks_are_notes_and_never_labels(store):
    rules = Rules(checks=REPEAT_AFTER + 5)
    with page(store, rules=rules) as (service, _, owner, make):
        owner.next()
        service.at_desk(service.desk.pin, Pin(QUESTIONS, 2, "see how it runs away"))
        ann = make("ann")
        shapes, seen = set(), []
        for _ in range(rules.checks + 2):
            question = ann.next()
            shapes.add(json.dumps({name: type(value).__name__ for name, value in question.items()}))
            seen.append(question["scene"]["trajectory"])
            ann.label(seen[-1], 0)
        assert QUESTIONS in seen  # the pinned one came as any other
        assert len(shapes) == 1
        for _ in range(3):  # while there is nothing else
            question = ann.next(extra=True)
            ann.label(question["scene"]["trajectory"], 1)
        labels = [label for label in service.desk.log if label.annotator == "ann"]
        assert {label.category for label in labels} == {0}
        assert QUESTIONS not in {label.trajectory for label in labels}
        (line,) = [one for one in owner.get("/api/overview").json()["people"] if one["name"] == "ann"]
        assert (line["planted"], line["planted_right"]) == (1, 0)
        assert line["repeats"] >= 2
        assert line["repeats_same"] == 0


def test_practice_tells_the_known_answer_after_the_own(site):
    _, _, owner, make = site
    assert owner.post("/api/pin", {"trajectory": 3, "category": 1, "note": "just so"}).status_code == 200
    ann = make("ann")
    (question,) = ann.get("/api/practice").json()["questions"]
    assert "just so" not in json.dumps(question)
    known = ann.post("/api/practised", {"trajectory": 3, "category": 2}).json()
    assert known == {"right": False, "category": 1, "note": "just so"}
    assert ann.post("/api/practised", {"trajectory": 4, "category": 2}).status_code == 400
    assert owner.post("/api/pin", {"trajectory": 3}).status_code == 200
    assert ann.get("/api/about").json()["pins"] == []


@pytest.mark.parametrize(
    ("text", "never"),
    [
        ("<script>alert(1)</script>", "<script"),
        ("[x](javascript:alert(1))", "href"),
        ("[x](data:text/html,hi)", "href"),
        ('<img src=x onerror="alert(1)">', "<img"),
        ("![x](http://evil.example/x.png)", "<img"),
        ("[x](vbscript:x)", "href"),
    ],
)
def test_guidelines_can_only_be_read(text, never):
    assert never not in markdown_html(text)


def test_guidelines_are_markdown():
    html = markdown_html("# Rules\n\n- *mild*: a **little**\n\n|a|b|\n|-|-|\n|1|2|\n\n[more](https://example.org)")
    assert all(part in html for part in ("<h1>", "<em>mild</em>", "<table>", 'rel="noopener noreferrer"'))


# For the owner.


def test_the_overview_tells_how_far_people_agree(store):
    with page(store, rules=Rules(overlap=2)) as (service, _, owner, make):
        ann, ben = make("ann"), make("ben")
        rng = np.random.default_rng(0)
        for _ in range(20):
            for person in (ann, ben):
                trajectory = person.next()["scene"]["trajectory"]
                person.label(trajectory, int(rng.choice(3, p=[0.6, 0.2, 0.2])) if person is ben else trajectory % 3)
        found = owner.get("/api/overview").json()
        expected = agreement(service.desk.log, 3)
        assert found["agreement"]["trajectories"] == expected.trajectories == 20
        assert found["agreement"]["alpha"] == pytest.approx(expected.alpha)
        (pair,) = found["agreement"]["pairs"]
        assert (pair["first"], pair["second"], pair["alpha"]) == ("ann", "ben", pytest.approx(expected.alpha))
        assert set(found["agreement"]["categories"]) == {"none", "mild", "severe"}
        assert found["answered"] == 20
        first = found["disagreements"][0]
        assert len(set(first["votes"].values())) > 1
        assert owner.post("/api/settle", {"trajectory": first["trajectory"], "category": 2}).status_code == 200
        assert service.desk.category(first["trajectory"]) == 2
        with Store.open(store) as opened:
            assert opened.categories()[first["trajectory"]] == 2
        again = {one["trajectory"]: one["settled"] for one in owner.get("/api/overview").json()["disagreements"]}
        assert again[first["trajectory"]]
        people = {one["name"]: one for one in found["people"]}
        assert people["ann"]["labels"] == 20
        assert people["ann"]["seconds"] is not None


def test_a_host_that_others_reach_needs_personal_links(store):
    with pytest.raises(InputError, match="--annotators"):
        prepare(Serving(store, host="0.0.0.0"))


def test_answers_are_not_held_back_and_nobody_is_let_in_before_all_is_ready():
    with bound_socket("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP  # by which asyncio knows to turn off Nagle's algorithm
        with socket.socket() as early, pytest.raises(ConnectionRefusedError):
            early.connect(bound.getsockname())


OPTIONS = {
    "port": "--port 0",
    "host": "--host 0.0.0.0 --annotators ann",
    "address": "--address https://label.example.org",
    "annotators": "--annotators ann,ben",
    "overlap": "--annotators ann --overlap 2",
    "lease": "--lease 60",
    "checks": "--checks 0",
    "guidelines": "--guidelines rules.md",
    "question": "--question What?",
    "plane": "--plane place[x],step",
    "model": "--model walker.py:Walker",
}


def test_every_option_of_serve_is_handed_on_or_refused(store, monkeypatch, capsys):
    asked = []

    def listen(serving, tell):
        asked.append(serving)
        tell([Link("owner", "http://here/in/x")], "http://here")

    monkeypatch.setattr(cli_serve, "serve_page", listen)
    assert {one.name for one in arguments_of(Serve)} == {*OPTIONS, "place", "trust", "quiet"}
    assert main(["serve", str(store)]) == 0
    assert "secrets" in capsys.readouterr().err
    for name, words in OPTIONS.items():
        assert main(["serve", str(store), "--quiet", *words.split()]) == 0
        changed = asked[-1].rules if name in ("overlap", "lease", "checks") else asked[-1]
        usual = asked[0].rules if name in ("overlap", "lease", "checks") else asked[0]
        assert getattr(changed, name) != getattr(usual, name)
    assert "secrets" not in capsys.readouterr().err
    for words in ("--trust", "--overlap 2", "--address nonsense"):
        assert main(["serve", str(store), *words.split()]) == 2
        assert "sidestep:" in capsys.readouterr().err
    assert main(["serve", str(store.with_name("nothing"))]) == 2


def test_a_plane_by_choice_and_lines_of_the_rest(store):
    with Store.open(store) as opened:
        chosen, usual = Drawing(opened.model, plane="place[x],place[y]"), Drawing(opened.model)
        with pytest.raises(InputError, match="two entries"):
            Drawing(opened.model, plane="place[x],nothing")
    assert [frame.kind for frame in chosen.frames] == ["plane", "time"]
    assert [frame.y_label for frame in usual.frames] == ["place[x]", "place[y]", "step"]


def test_a_file_that_is_not_a_book_is_left_alone(store):
    beside = store.with_name(store.name + ".page")
    beside.write_text("my notes")
    with pytest.raises(InputError, match="labelling page"):
        open_book(store)
    assert beside.read_text() == "my notes"


def test_the_page_is_light():
    static = load_static()
    assert sum(map(len, static.values())) < 150_000
    html = static["index.html"].decode()
    assert "http://" not in html
    assert "https://" not in html
    assert not any(word in html for word in ("<style", "onclick", "style="))


def test_a_run_with_a_rule_is_shown_and_its_report_without_scripts_or_paths(tmp_path):
    run = write_run(tmp_path)
    service, reader = prepare(Serving(run, trust=True))
    try:
        assert reader is not None
        with TestClient(Site(service, Names(PORT)).app(), base_url=BASE) as client:
            owner, ann = Guest(client, invite(service, "owner", "owner")), Guest(client, invite(service, "ann"))
            found = owner.get("/api/run").json()
            report = owner.get("/report")
            assert ann.get("/api/run").status_code == ann.get("/report").status_code == 403
    finally:
        service.close()
    shown = found["run"]
    assert (shown["people"], shown["certified"], shown["model"]) == (False, True, "yard.py:yard")
    assert len(shown["rounds"]) >= 1
    assert shown["result"]["labels_used"] == json.loads((run / "result.json").read_text())["labels_used"]
    assert shown["frames"][0]["kind"] == "map"
    assert shown["policies"][-1]["rollouts"]
    assert "sandbox" in report.headers["content-security-policy"]
    assert str(tmp_path) not in report.text + json.dumps(found)
