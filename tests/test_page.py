"""The page in a real browser: labels by keys, marks, undo, reload, tray, phone, dark, two people, an expired link, and
a whole campaign answered up to its certificate. With SIDESTEP_SHOTS=folder the main states are photographed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from browser_helpers import DESKTOP, PHONE, chromium, needs_browser, shot
from serve_helpers import invite, listening, make_store

import sidestep
from sidestep.labels.store import Store
from sidestep.serve.book import Pin
from sidestep.serve.desk import Rules

pytestmark = needs_browser
AXE = Path(os.environ.get("SIDESTEP_AXE", Path(__file__).parents[1] / ".ci/axe/node_modules/axe-core/axe.min.js"))
PATIENCE = 180.0  # seconds until something on the page must have happened, on a busy machine
MIDDLE = """const box = document.querySelector(arguments[0]).getBoundingClientRect();
return [box.x + box.width / 2, box.y + box.height / 2]"""
ENTER, LEFT, HOME, END = "Enter", "ArrowLeft", "Home", "End"


def until(driver, script, *given):
    """What the script gives, once that is true."""
    deadline = time.monotonic() + PATIENCE
    while True:
        inner = f"(function () {{ {script} }}).apply(null, arguments)"
        plain = "typeof found === 'object' ? Boolean(found) : found"
        whole = f"try {{ const found = {inner}; return {plain}; }} catch {{ return null; }}"
        found = driver.execute_script(whole, *given)
        if found:
            return found
        assert time.monotonic() < deadline, f"the page never got to: {script}\n{text(driver)[:800]}"
        time.sleep(0.05)


def text(driver):
    return driver.execute_script("return document.body.innerText")


def press(driver, *keys):
    """Real key presses, as the browser's own protocol sends them."""
    for key in keys:
        shift = 8 if key.startswith("Shift+") else 0
        key = key.removeprefix("Shift+")
        code = (
            f"Digit{key}" if key.isdigit() else "Space" if key == " " else f"Key{key.upper()}" if len(key) == 1 else key
        )
        typed = {" ": " ", ENTER: "\r"}.get(key, key if len(key) == 1 else "")
        event = {"key": key, "code": code, "modifiers": shift, **({"text": typed} if typed and not shift else {})}
        driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", **event})
        driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyUp", "key": key, "code": code})


def at(driver):
    """The trajectory in front of the person."""
    return until(driver, "return page.screen.view.scene.trajectory")


def saved(driver, words):
    until(driver, "return document.querySelector('.state')?.textContent.startsWith(arguments[0])", words)


def click(driver, words):
    """The button with these words."""
    find = "[...document.querySelectorAll('button')].find((one) => one.textContent === arguments[0])"
    driver.execute_script(f"{find}.click()", words)


def labels(path):
    with Store.open(path) as store:
        return [(label.trajectory, label.category, dict(label.marks), label.comment) for label in store.log()]


def complaints(driver):
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture(scope="module")
def browser():
    with chromium(DESKTOP) as driver:
        yield driver


@pytest.fixture
def desk(tmp_path, browser):
    """(store, driver, service, address) with the owner at the page."""
    path = make_store(tmp_path / "walks.store", steps=20)
    guidelines = "<h1>What to look for</h1><p>Does it wander off?</p>"
    with listening(path, rules=Rules(checks=0), guidelines=guidelines) as (service, address):
        browser.delete_all_cookies()
        browser.get(f"{address}/in/{invite(service, 'owner', 'owner')}")
        at(browser)
        yield path, browser, service, address
        browser.get("about:blank")


def test_label_by_keys_mark_undo_and_reload(desk):
    path, driver, _, _ = desk
    first = at(driver)
    press(driver, " ", HOME)
    until(driver, "return !page.screen.view.player.playing")
    press(driver, "Shift+ArrowRight", "ArrowRight", LEFT)
    assert driver.execute_script("return page.screen.view.player.step") == 10
    assert "step 10 / 19" in text(driver)
    assert "place[x]" in text(driver)
    press(driver, "Shift+2")
    saved(driver, "Saved: mild, mild from step 10")
    press(driver, END, "Shift+3")
    saved(driver, "Saved: severe, mild from step 10, severe from step 19")
    until(driver, "return document.body.innerText.includes('1 of 30 questions answered')")
    shot(driver, "desktop-labelled")
    driver.refresh()
    press_after = at(driver)
    assert press_after != first  # what was answered is answered; the next one is there at once
    press(driver, "1")
    saved(driver, "Saved: none")
    press(driver, ENTER)
    until(driver, "return page.screen.view.scene.trajectory !== arguments[0]", press_after)
    press(driver, "u")
    until(driver, "return page.screen.view.scene.trajectory === arguments[0]", press_after)
    press(driver, "2")
    saved(driver, "Saved: mild")
    press(driver, "u")
    until(driver, "return page.screen.view.scene.trajectory === arguments[0]", first)
    press(driver, "s")
    saved(driver, "Saved: cannot tell")
    log = labels(path)
    assert log[-1] == (first, None, {}, None)
    assert (first, 2, {"mild": 10, "severe": 19}, None) in log
    assert [label[1] for label in log if label[0] == press_after] == [0, 1]
    assert complaints(driver) == []


def test_marks_by_clicking_and_a_comment(desk):
    path, driver, _, _ = desk
    trajectory = at(driver)
    driver.execute_script("document.querySelector('[data-mark=severe]').scrollIntoView({block: 'center'})")
    x, y = driver.execute_script(MIDDLE, "[data-mark=severe]")
    for kind in ("mousePressed", "mouseReleased"):
        click = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
        driver.execute_cdp_cmd("Input.dispatchMouseEvent", click)
    saved(driver, "Saved: severe, severe from step")
    press(driver, "c")
    driver.execute_cdp_cmd("Input.insertText", {"text": "<img src=x onerror=alert(1)> 3 s too late"})
    press(driver, "Escape")
    until(driver, "return page.screen.view.comment.length > 0")
    deadline = time.monotonic() + PATIENCE
    while labels(path)[-1][3] is None and time.monotonic() < deadline:
        time.sleep(0.05)
    (number, category, marks, comment) = labels(path)[-1]
    assert (number, category, comment) == (trajectory, 2, "<img src=x onerror=alert(1)> 3 s too late")
    assert marks["severe"] in (9, 10)
    driver.execute_script("location.hash = 'mine'")
    until(driver, "return document.body.innerText.includes('onerror')")
    assert driver.execute_script("return document.querySelectorAll('main img').length") == 0


def test_names_of_annotators_are_text(desk):
    path, driver, _, _ = desk
    name = "<img src=x onerror=alert(1)>"  # the page gives nobody such a name, but a file that was imported may
    with Store.open(path) as store:
        store.label([1], [1], annotator=name)
        store.label([1], [2], annotator="ann")
    press(driver, "o")
    until(
        driver, "return document.querySelector('.settle svg') && document.body.innerText.includes(arguments[0])", name
    )
    assert driver.execute_script("return document.querySelectorAll('main img').length") == 0
    assert complaints(driver) == []


def test_a_server_that_goes_away_loses_no_answer(tmp_path, browser):
    path = make_store(tmp_path / "walks.store", steps=20)
    with listening(path) as (service, address):
        token = invite(service, "owner", "owner")
        browser.get(f"{address}/in/{token}")
        first = at(browser)
    port = int(address.rpartition(":")[2])
    press(browser, "3")
    until(browser, "return document.querySelector('.state').textContent.includes('sent again')")
    assert labels(path) == []
    with listening(path, port=port):
        saved(browser, "Saved: severe")
        assert [label[:2] for label in labels(path)] == [(first, 2)]
        browser.get("about:blank")


def test_a_tray_is_all_none_but_these(desk):
    path, driver, _, _ = desk
    press(driver, "t")
    until(driver, "return document.querySelectorAll('.tray-card').length === 12")
    press(driver, "ArrowRight", "2", "ArrowRight", "3", "ArrowRight", "s")
    until(driver, "return document.querySelectorAll('.picked').length === 3")
    shown = driver.execute_script("return page.screen.questions.map((one) => one.scene.trajectory)")
    shot(driver, "desktop-tray")
    press(driver, ENTER)
    until(driver, "return page.screen.questions[0].scene.trajectory !== arguments[0]", shown[0])
    given = {trajectory: category for trajectory, category, _, _ in labels(path)}
    assert given == {one: {1: 1, 2: 2}.get(place, 0) for place, one in enumerate(shown) if place != 3}


def test_two_people_have_their_own_questions(desk):
    path, driver, service, address = desk
    seen = {}
    for name in ("ann", "ben"):
        driver.delete_all_cookies()
        driver.get(f"{address}/in/{invite(service, name)}")
        seen[name] = at(driver)
        assert "Overview" not in text(driver)
        press(driver, "2")
        saved(driver, "Saved: mild")
    assert seen["ann"] != seen["ben"]
    with Store.open(path) as store:
        assert [(label.annotator, label.trajectory) for label in store.log()] == list(seen.items())


def test_an_expired_link_says_so(desk):
    _, driver, service, address = desk
    driver.delete_all_cookies()
    driver.get(f"{address}/in/{invite(service, 'late', days=-1.0)}")
    assert "This link does not work" in text(driver)
    assert "questions" not in text(driver)


def test_guidelines_practice_and_overview(desk):
    _, driver, service, _ = desk
    service.at_desk(service.desk.pin, Pin(3, 1, "It turns twice."))
    press(driver, "g")
    until(driver, "return document.body.innerText.includes('Does it wander off?')")
    until(driver, "return document.querySelector('.example')")
    driver.execute_script(
        "[...document.querySelectorAll('button')].find((one) => one.textContent.startsWith('Practise')).click()"
    )
    until(driver, "return page.screen.view")
    press(driver, "3", ENTER)
    until(
        driver,
        "return document.querySelector('.state').textContent.includes('The known answer is: mild. It turns twice.')",
    )
    press(driver, ENTER)
    until(driver, "return document.body.innerText.includes('0 of 1 as known')")
    press(driver, "o")
    until(driver, "return document.body.innerText.includes('Invite somebody')")
    driver.execute_script("document.getElementById('guest').value = 'cat'")
    click(driver, "Make a link")
    link = until(driver, "return document.querySelector('.link input')?.value")
    shot(driver, "desktop-overview")
    driver.delete_all_cookies()
    driver.get(link)
    until(driver, "return page.about.name === 'cat'")


@pytest.fixture(scope="module")
def axe():
    if not AXE.is_file():
        pytest.skip(f"axe-core is not at {AXE} (npm install --prefix .ci/axe axe-core@4)")
    return AXE.read_text()


SCREENS = {"label": ".desk", "tray": ".tray-card", "mine": ".list", "guide": ".example", "overview": "table"}
RUN_AXE = "axe.run(document, {resultTypes: ['violations']}).then((result) => arguments[0](result.violations))"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_accessible_names_and_contrast(desk, axe, theme):
    _, driver, service, _ = desk
    service.at_desk(service.desk.pin, Pin(3, 1, "It turns twice."))
    driver.execute_script("page.theme(arguments[0])", theme)
    at(driver)
    press(driver, "2")
    saved(driver, "Saved")
    for screen, ready in SCREENS.items():
        driver.execute_script("location.hash = arguments[0]", screen)
        until(driver, "return document.querySelector(arguments[0])", ready)
        driver.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
        driver.set_script_timeout(PATIENCE)
        found = driver.execute_async_script(RUN_AXE)
        serious = [
            (one["id"], one["nodes"][0]["html"][:150], one["nodes"][0]["failureSummary"][:300])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == [], f"{screen}, {theme}"
    driver.execute_script("page.theme('auto')")


BUTTONS = """return [...document.querySelectorAll('.choice, .next, .control')].filter((one) => one.offsetParent)
.map((one) => one.getBoundingClientRect()).map((box) => [box.width, box.height, box.bottom <= innerHeight])"""


def test_a_phone_in_the_dark_and_how_much_is_loaded(tmp_path):
    path = make_store(tmp_path / "walks.store", steps=20)
    with listening(path) as (service, address), chromium(PHONE, dark=True, touch=True) as driver:
        driver.get(f"{address}/in/{invite(service, 'owner', 'owner')}")
        first = at(driver)
        size = "performance.getEntriesByType(arguments[0]).map((one) => one.transferSize)"
        sizes = [one for kind in ("resource", "navigation") for one in driver.execute_script(f"return {size}", kind)]
        assert 20_000 < sum(sizes) < 150_000
        assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert max(int(part) for part in ground[4:-1].split(",")) < 60  # dark
        buttons = driver.execute_script(BUTTONS)
        assert all(width >= 40 and height >= 40 for width, height, _ in buttons)  # for a thumb
        assert all(inside for _, _, inside in buttons)
        shot(driver, "phone-dark")
        for choice in (".choice:nth-child(2)", ".next"):
            x, y = driver.execute_script(MIDDLE, choice)
            until(driver, "return document.querySelector(arguments[0]).disabled === false", choice)
            driver.execute_cdp_cmd(
                "Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]}
            )
            driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
            if choice != ".next":
                saved(driver, "Saved: mild")
        until(driver, "return page.screen.view.scene.trajectory !== arguments[0]", first)
        assert [label[:2] for label in labels(path)] == [(first, 1)]


GARDENER = """
// Labels days of the greenhouse as the rule of examples/mould.py does, by pressing keys.
const event = (key, code) => new KeyboardEvent("keydown", { key, code, bubbles: true, cancelable: true });
const press = (key, code) => document.dispatchEvent(event(key, code));
let last = null;
setInterval(() => {
  const view = window.page?.screen?.view;
  if (!view) return;
  if (view.category === undefined) {
    const humidity = view.about.state.findIndex((column) => column.name === "humidity");
    let [run, longest] = [0, 0];
    for (const value of view.scene.state[humidity]) {
      run = value >= 1.0 ? run + 1 : 0;
      longest = Math.max(longest, run);
    }
    const category = (longest >= 3) + (longest >= 5);
    press(String(category + 1), `Digit${category + 1}`);
  } else if (view.state.textContent.startsWith("Saved") && view !== last) {
    last = view;
    press("Enter", "Enter");
  }
}, 60);
"""
SMALL = """--people --serve --labels 20 --rounds 1 --explore-share 0.5 --check-share 0.1
--learner hazard --members 1 --units 4 --first-fit 20 --later-fit 10 --round-epochs 2 --searching-rounds 1
--polish-epochs 50 --audits 1 --rollouts 60 --widths 4 --batch 8 --test-batch 16 --quiet --constraint severe<=0.9"""


@pytest.mark.slow
def test_a_greenhouse_campaign_is_answered_in_the_browser_up_to_its_certificate(tmp_path, browser):
    examples = Path(sidestep.__file__).parents[1] / "examples"
    model, run = str(examples / "greenhouse.rddl"), tmp_path / "run"
    command = [sys.executable, "-m", "sidestep", "plan", model, "--out", str(run)]
    environment = os.environ | {"PYTHONPATH": str(examples.parent)}
    with subprocess.Popen([*command, *SMALL.split()], stdout=subprocess.PIPE, text=True, env=environment) as served:
        try:
            link = served.stdout.readline().split()[-1]
            browser.get(link)
            until(browser, "return window.page")
            browser.execute_script(GARDENER)
            deadline = time.monotonic() + 20 * PATIENCE
            while "All done" not in text(browser):
                assert served.poll() is None
                assert time.monotonic() < deadline, text(browser)[:800]
                time.sleep(0.5)
            verdict = until(browser, "return document.querySelector('.certificate h2').textContent")
            shot(browser, "desktop-certificate")
            press(browser, "r")
            until(browser, "return document.body.innerText.includes('The policies now')")
            shot(browser, "desktop-run")
        finally:
            served.terminate()
            status = served.wait(60)
    result = json.loads((run / "result.json").read_text())
    certified = all(one["certified"] for one in result["constraints"])
    assert (status, verdict) == ((0, "Certified") if certified else (1, "Not certified"))
    assert result["audit_labels"] > 0
    assert len({label[0] for label in labels(run / "labels.store")}) >= result["labels_used"] + result["audit_labels"]
