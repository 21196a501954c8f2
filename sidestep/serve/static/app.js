// The page: who is here, what they see, and what the keys do.

import { begin, flush, get, onSaving, spread, unsent } from "./api.js";
import { button, byId, h, key, plural, say, show } from "./dom.js";
import { GuideScreen } from "./guide.js";
import { LabelScreen } from "./label.js";
import { MineScreen } from "./mine.js";
import { OverviewScreen } from "./overview.js";
import { RunScreen } from "./run.js";
import { TrayScreen } from "./tray.js";

const SCREENS = {
  label: { words: "Label", hint: "L", make: LabelScreen },
  tray: { words: "Tray", hint: "T", make: TrayScreen },
  mine: { words: "My labels", hint: "H", make: MineScreen },
  guide: { words: "Guidelines", hint: "G", make: GuideScreen },
  overview: { words: "Overview", hint: "O", make: OverviewScreen, owner: true },
  run: { words: "Run", hint: "R", make: RunScreen, owner: true, run: true },
};
const THEMES = ["auto", "light", "dark"];

class App {
  constructor(about) {
    this.about = about;
    this.progress = null;
    this.screen = null;
    this.header();
    this.settings();
    this.theme(localStorage.getItem("sidestep-theme") ?? "auto");
    addEventListener("hashchange", () => this.route());
    addEventListener("keydown", (event) => this.pressed(event));
    addEventListener("beforeunload", (event) => { if (unsent()) event.preventDefault(); });
    addEventListener("online", () => flush());
    onSaving((event) => this.saving(event));
    this.route();
  }

  screens() {
    return Object.entries(SCREENS).filter(([, one]) => (!one.owner || this.about.role === "owner") && (!one.run || this.about.run));
  }

  header() {
    this.bar = h("div", { class: "bar", role: "progressbar", "aria-label": "Questions answered", "aria-valuemin": 0 }, h("span", {}));
    this.count = h("span", { class: "count" });
    this.purpose = h("span", { class: "purpose" });
    this.nav = h("nav", { "aria-label": "Pages" }, this.screens().map(([name, one]) => h("a", { href: `#${name}`, "data-screen": name, title: `${one.words} (${one.hint})` }, one.words)));
    show(byId("top"),
      h("div", { class: "brand" }, h("strong", {}, this.about.title), h("span", { class: "who" }, this.about.name)),
      h("div", { class: "progress" }, this.bar, h("div", { class: "line" }, this.count, this.purpose)),
      this.nav,
      h("div", { class: "tools" }, button("Keys and settings", () => byId("keys").showModal(), { hint: "?", kind: "quiet" })),
    );
  }

  /** How far the questions of now are. */
  tellProgress(progress, purpose = this.toldPurpose) {
    this.progress = progress;
    this.toldPurpose = purpose;
    const { questions, answered } = progress;
    this.bar.firstChild.style.setProperty("--part", String(questions ? answered / questions : 0));
    this.bar.setAttribute("aria-valuemax", questions);
    this.bar.setAttribute("aria-valuenow", answered);
    this.count.textContent = questions ? `${answered} of ${plural(questions, "question")} answered` : "no questions now";
    this.purpose.textContent = purposeWords(purpose);
    const left = questions - answered;
    document.title = left ? `${left} left · ${this.about.title}` : `${this.about.title} · Sidestep`;
  }

  theme(name) {
    this.themeNow = THEMES.includes(name) ? name : "auto";
    localStorage.setItem("sidestep-theme", this.themeNow);
    if (this.themeNow === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = this.themeNow;
    this.themes.value = this.themeNow;
  }

  route() {
    const wanted = location.hash.slice(1).split("/");
    const known = this.screens().map(([name]) => name);
    const name = known.includes(wanted[0]) ? wanted[0] : "label";
    this.screen?.leave?.();
    for (const link of this.nav.children) {
      if (link.dataset.screen === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const place = byId("main");
    show(place, h("p", { class: "soft" }, "Loading …"));
    this.screen = new SCREENS[name].make(this, place, wanted.slice(1));
    this.screen.enter().catch((error) => this.failed(error));
  }

  failed(error) {
    if (error.status === 401) {
      show(byId("main"), h("div", { class: "card alone" }, h("h1", {}, "Your link is no longer valid"), h("p", {}, "Ask the owner for a new one. Answers that were not saved yet are kept in this browser.")));
      return;
    }
    if (error.status === undefined) console.error(error);
    say(error.message, "bad");
    if (!error.status) {
      clearTimeout(this.again);
      this.again = setTimeout(() => this.route(), spread(4000));
    }
  }

  saving(event) {
    if (event.state === "unreachable") say(`Not saved yet (${event.reason}); trying again …`, "bad");
    if (event.state === "refused") say(`Not saved: ${event.reason}`, "bad");
    if (event.progress) this.tellProgress(event.progress);
    this.screen?.saving?.(event);
  }

  pressed(event) {
    if (event.defaultPrevented || byId("keys").open) return;
    const typing = event.target.closest?.("textarea, input:not([type=range]), select");
    if (typing) {
      if (event.key === "Escape" || (event.key === "Enter" && (event.ctrlKey || event.metaKey))) typing.blur();
      return;
    }
    const pressable = event.target.closest?.("button, a, summary");
    if (pressable && (event.key === " " || event.key === "Enter") && !pressable.matches(".choice, .tray-card")) return;
    if (this.screen?.pressed?.(event)) {
      event.preventDefault();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "?") byId("keys").showModal();
    const found = this.screens().find(([, one]) => one.hint.toLowerCase() === event.key.toLowerCase());
    if (found) location.hash = found[0];
  }

  settings() {
    const names = this.about.categories;
    const rows = [
      [names.map((_, index) => key(String(index + 1))), `label: ${names.join(", ")}`],
      [key("S"), "cannot tell"],
      [key("Enter"), "next question"],
      [[key("Shift"), key("2"), "…", key(String(names.length))], "mark this step: it became that bad here"],
      [key("M"), "mark this step for the label you chose"],
      [key("X"), "take all marks away"],
      [key("Space"), "play, pause"],
      [[key("←"), key("→")], "one step back, one step on (with Shift: ten)"],
      [[key("Home"), key("End")], "first step, last step"],
      [[key("-"), key("+")], "slower, faster"],
      [key("U"), "back to what you answered before, to change it"],
      [key("C"), "comment (Esc leaves it)"],
      [this.screens().map(([, one]) => key(one.hint)), this.screens().map(([, one]) => one.words.toLowerCase()).join(", ")],
    ];
    const auto = h("input", { type: "checkbox", id: "autoplay", onchange: (event) => localStorage.setItem("sidestep-autoplay", event.target.checked ? "yes" : "no") });
    auto.checked = localStorage.getItem("sidestep-autoplay") !== "no";
    const on = h("input", { type: "checkbox", id: "advance", onchange: (event) => localStorage.setItem("sidestep-advance", event.target.checked ? "yes" : "no") });
    on.checked = localStorage.getItem("sidestep-advance") === "yes";
    this.themes = h("select", { id: "theme", onchange: (event) => this.theme(event.target.value) }, THEMES.map((name) => h("option", { value: name }, name)));
    show(byId("keys"),
      h("h2", { id: "keys-title" }, "Keys and settings"),
      h("p", { class: "setting" }, auto, h("label", { for: "autoplay" }, "Play each trajectory when it comes")),
      h("p", { class: "setting" }, on, h("label", { for: "advance" }, "Go to the next question after a label")),
      h("p", { class: "setting" }, h("label", { for: "theme" }, "Theme"), this.themes),
      h("dl", { class: "keys" }, rows.map(([keys, words]) => h("div", {}, h("dt", {}, keys), h("dd", {}, words)))),
      button("Close", () => byId("keys").close(), { hint: "Esc", kind: "primary" }),
    );
  }
}

/** What the questions are for. */
export function purposeWords(purpose) {
  if (!purpose?.purpose) return "";
  if (purpose.purpose === "audit") return `for audit ${purpose.audit}`;
  if (purpose.purpose === "opinions") return "second opinions, before an audit";
  if (purpose.purpose === "checking") return "to check the best candidates";
  return `to learn from, for round ${purpose.round} of ${purpose.rounds}`;
}

try {
  const about = await get("/api/about");
  begin(about.name);
  window.page = new App(about);
} catch (error) {
  const again = error.status === 0 ? "Trying again …" : "";
  show(byId("main"), h("div", { class: "card alone" }, h("h1", {}, "The page cannot be shown"), h("p", {}, `${error.message}. ${again}`)));
  if (again) setTimeout(() => location.reload(), spread(4000));
}
