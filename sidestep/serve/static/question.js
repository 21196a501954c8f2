// One trajectory: its drawing played, its steps in words, and the answer to it. Used to label, to practise, to look again.

import { button, h, key, number, s, say, show } from "./dom.js";
import { drawing, shade } from "./draw.js";
import { Player, SPEEDS } from "./player.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");

const ICONS = {
  first: "M5 4v12M16 4 8 10l8 6z",
  back: "M14 4 6 10l8 6z",
  play: "M6 3.5v13l10-6.5z",
  pause: "M5 4h4v12H5zM11 4h4v12h-4z",
  on: "M6 4l8 6-8 6z",
  last: "M15 4v12M4 4l8 6-8 6z",
};
const icon = (name) => s("svg", { viewBox: "0 0 20 20", class: "icon", "aria-hidden": "true" }, s("path", { d: ICONS[name] }));

function told(column, value) {
  if (column.options.length) return column.options[value] ?? String(value);
  return number(value, 4);
}

export class QuestionView {
  /** `answered(answer)` is called at every change; `settings` say what else there is. */
  constructor(about, question, { answered, next, back, heading, note, mode = "label" }) {
    Object.assign(this, { about, question, answered, next, back, mode });
    this.scene = question.scene;
    const own = question.own;
    this.category = own ? own.category : undefined;
    this.marks = { ...(own?.marks ?? {}) };
    this.comment = own?.comment ?? "";
    this.player = new Player(this.scene.length, () => this.moved());
    this.stage = h("div", { class: "canvas" });
    this.values = h("dl", { class: "values" });
    this.where = h("output", { class: "where" });
    this.element = h("div", { class: `desk${this.comment ? " commenting" : ""}` },
      h("section", { class: "stage", "aria-label": "The trajectory" }, this.stage, this.transport(), this.timeline()),
      h("section", { class: "answer", "aria-label": "Your answer" }, h("h1", {}, heading ?? about.question), note ? h("p", { class: "note" }, note) : null, this.panel()),
      h("section", { class: "told", "aria-label": "This step in words" }, h("h2", {}, "This step"), this.values),
    );
    this.resized = () => { clearTimeout(this.later); this.later = setTimeout(() => this.draw(), 120); };
    addEventListener("resize", this.resized);
  }

  /** Once it is in the page and has a size. */
  start() {
    this.draw();
    this.refresh();
    if (!calm.matches && localStorage.getItem("sidestep-autoplay") !== "no" && !this.question.own) this.player.play();
  }

  stop() {
    this.player.playing = false;
    removeEventListener("resize", this.resized);
  }

  draw() {
    const width = Math.max(260, this.stage.clientWidth);
    const phone = innerWidth < 760;
    const whole = this.stage.parentElement;
    const others = whole.offsetHeight - this.stage.offsetHeight; // controls and timeline
    const above = whole.getBoundingClientRect().top + scrollY;
    const room = phone ? innerHeight * 0.33 : innerHeight - above - others - 24;
    const timed = this.about.frames.every((frame) => frame.kind === "time");
    const height = Math.max(phone ? 190 : 260, Math.min(room, 720)) * (timed && phone ? 1.15 : 1);
    const { views, element } = drawing(this.about.frames, this.scene, { width, height });
    this.views = views;
    show(this.stage, element);
    this.moved();
    this.flag();
  }

  // Time.

  transport() {
    const control = (name, words, hint, onclick) => h("button", { type: "button", class: `control ${name.endsWith(" ") ? "roomy" : ""}`, "aria-label": words, title: `${words} (${hint})`, onclick }, icon(name.trim()));
    this.playButton = control("play", "Play", "Space", () => this.player.toggle());
    this.speed = h("select", { class: "speed", "aria-label": "Speed", title: "Speed (- and +)", onchange: (event) => this.player.setSpeed(Number(event.target.value)) },
      SPEEDS.map((speed) => h("option", { value: speed }, `${speed}×`)));
    return h("div", { class: "transport" },
      control("first ", "To the first step", "Home", () => this.player.move(-this.player.length)),
      control("back", "One step back", "←", () => this.player.move(-1)),
      this.playButton,
      control("on", "One step on", "→", () => this.player.move(1)),
      control("last ", "To the last step", "End", () => this.player.move(this.player.length)),
      this.speed,
      this.where,
    );
  }

  timeline() {
    const last = this.player.last;
    this.scrub = h("input", { type: "range", class: "scrub", min: 0, max: last, value: 0, step: 1, "aria-label": "Step", oninput: (event) => { this.player.pause(); this.player.go(Number(event.target.value)); } });
    if (last === 0) this.scrub.disabled = true;
    const lanes = this.mode === "label" && last > 0 ? this.about.categories.slice(1).map((name, index) => this.lane(name, index + 1)) : [];
    return h("div", { class: "timeline" }, this.scrub, lanes);
  }

  /** A strip on which one severity is marked: click where it was reached, click the mark to take it away. */
  lane(name, category) {
    const flag = h("span", { class: "mark", css: { "--shade": shade(category) } });
    const strip = h("button", { type: "button", class: "strip", onclick: (event) => this.clicked(event, strip, name, category) }, flag);
    strip.dataset.mark = name;
    this.lanes = { ...(this.lanes ?? {}), [name]: { strip, flag, category } };
    return h("div", { class: "lane" }, h("span", { class: "lane-name", css: { "--shade": shade(category) } }, name), strip);
  }

  clicked(event, strip, name, category) {
    let step = this.player.step;
    if (event.detail > 0) {
      const box = strip.getBoundingClientRect();
      const part = (event.clientX - box.left - 9) / (box.width - 18);
      step = Math.round(Math.max(0, Math.min(1, part)) * this.player.last);
      const near = Math.max(1, Math.round((9 / (box.width - 18)) * this.player.last));
      if (name in this.marks && Math.abs(this.marks[name] - step) <= near) return this.unmark(name);
    }
    this.player.pause();
    this.player.go(step);
    this.mark(category, step);
  }

  moved() {
    const { player } = this;
    for (const view of this.views ?? []) view.at(player.moment);
    const step = player.step;
    if (Number(this.scrub.value) !== step) this.scrub.value = step;
    this.scrub.setAttribute("aria-valuetext", `step ${step} of ${player.last}`);
    this.where.textContent = `step ${step} / ${player.last}`;
    if (this.playing !== player.playing) {
      this.playing = player.playing;
      show(this.playButton, icon(player.playing ? "pause" : "play"));
      this.playButton.setAttribute("aria-label", player.playing ? "Pause" : "Play");
    }
    if (this.speed.value !== String(player.speed)) this.speed.value = String(player.speed);
    if (this.shown !== step) { this.shown = step; this.tell(step); }
  }

  tell(step) {
    const { about, scene } = this;
    const line = (name, value, kind) => h("div", { class: kind }, h("dt", {}, name), h("dd", {}, value));
    let total = 0;
    for (let i = 0; i <= step; i += 1) total += scene.reward[i];
    show(this.values,
      about.state.map((column, index) => line(column.name, told(column, scene.state[index][step]))),
      about.action.map((column, index) => line(column.name, told(column, scene.action[index][step]), "action")),
      line("reward", `${number(scene.reward[step], 4)}, so far ${number(total, 4)}`, "reward"),
    );
  }

  // The answer.

  panel() {
    const names = this.about.categories;
    this.choices = names.map((name, index) => h("button", {
      type: "button", class: "choice", css: { "--shade": shade(index) }, "aria-pressed": "false", onclick: () => this.choose(index),
    }, key(String(index + 1)), h("span", {}, name)));
    this.skip = h("button", { type: "button", class: "choice unsure", "aria-pressed": "false", onclick: () => this.choose(null) }, key("S"), h("span", {}, "Cannot tell"));
    this.state = h("p", { class: "state" });
    this.nextButton = button(this.mode === "practice" ? "Check" : "Next", () => this.next(), { hint: "Enter", kind: "primary next" });
    this.backButton = this.back ? button("Undo", () => this.back(), { hint: "U", kind: "quiet", title: "Back to what you answered before, to change it" }) : null;
    this.wordsButton = this.mode === "label" ? button("Comment", () => { this.element.classList.add("commenting"); this.words.focus(); }, { kind: "quiet words" }) : null;
    this.words = h("textarea", { rows: 2, maxlength: 2000, placeholder: "Comment (optional)", "aria-label": "Comment", onchange: () => this.commented() });
    this.words.value = this.comment;
    this.written = h("div", { class: "comment" }, this.words);
    return [
      h("div", { class: "choices", role: "group", "aria-label": "Label" }, this.choices, this.mode === "label" ? this.skip : null),
      this.state,
      this.mode === "label" ? this.written : null,
      h("div", { class: "row end" }, this.backButton, this.wordsButton, this.nextButton),
    ];
  }

  choose(category) {
    this.category = category;
    for (const name of Object.keys(this.marks)) {
      if (category === null || this.about.categories.indexOf(name) > category) delete this.marks[name];
    }
    this.changed();
  }

  /** Press a key at the step: this severity was reached here. */
  mark(category, step = this.player.step) {
    const names = this.about.categories;
    this.marks[names[category]] = step;
    for (let other = 1; other < names.length; other += 1) {
      const name = names[other];
      if (!(name in this.marks)) continue;
      if (other < category && this.marks[name] > step) this.marks[name] = step;
      if (other > category && this.marks[name] < step) this.marks[name] = step;
    }
    if (!(this.category >= category)) this.category = category;
    this.changed();
  }

  unmark(name) {
    delete this.marks[name];
    this.changed();
  }

  /** M marks what was chosen, or the mildest severity that is not marked yet. */
  markHere() {
    const names = this.about.categories;
    let category = this.category > 0 ? this.category : 1;
    if (this.category > 0 && names[this.category] in this.marks) {
      category = names.findIndex((name, index) => index > 0 && index <= this.category && !(name in this.marks));
      if (category < 0) category = this.category;
    }
    this.mark(category);
  }

  commented() {
    this.comment = this.words.value;
    if (this.category !== undefined) this.changed();
  }

  changed() {
    this.refresh();
    this.answered({ trajectory: this.scene.trajectory, category: this.category, marks: { ...this.marks }, comment: this.comment });
  }

  refresh() {
    this.choices.forEach((choice, index) => choice.setAttribute("aria-pressed", String(this.category === index)));
    this.skip.setAttribute("aria-pressed", String(this.category === null));
    this.nextButton.disabled = this.category === undefined;
    this.flag();
  }

  flag() {
    const names = this.about.categories;
    const marks = Object.entries(this.marks).map(([name, step]) => ({ name, step, category: names.indexOf(name) }));
    for (const view of this.views ?? []) view.mark(marks);
    for (const [name, { strip, flag }] of Object.entries(this.lanes ?? {})) {
      const step = this.marks[name];
      flag.hidden = step === undefined;
      if (step !== undefined) flag.style.setProperty("--at", String(step / Math.max(1, this.player.last)));
      const now = step === undefined ? "not marked" : `marked at step ${step}`;
      strip.setAttribute("aria-label", `Where it became ${name}: ${now}. Press Enter to mark this step.`);
      strip.title = step === undefined ? `Click where it became ${name}` : `${name} from step ${step}; click the mark to take it away`;
    }
  }

  /** What is known of the answer: saving, saved, or why not. */
  saved(text, kind) {
    this.state.className = `state ${kind ?? ""}`;
    this.state.textContent = text;
    this.state.title = text;
  }

  /** Whether the key was for this view. */
  pressed(event) {
    const { player } = this;
    const digit = /^(?:Digit|Numpad)([1-9])$/.exec(event.code)?.[1];
    if (digit && Number(digit) <= this.about.categories.length && !event.altKey && !event.ctrlKey && !event.metaKey) {
      const category = Number(digit) - 1;
      if (!event.shiftKey) this.choose(category);
      else if (category > 0 && this.mode === "label") this.mark(category);
      else return false;
      return true;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    const jump = event.shiftKey ? 10 : 1;
    const keys = {
      " ": () => player.toggle(),
      ArrowLeft: () => player.move(-jump),
      ArrowRight: () => player.move(jump),
      Home: () => player.move(-player.length),
      End: () => player.move(player.length),
      "-": () => { player.faster(-1); say(`speed ${player.speed}×`); },
      "+": () => { player.faster(1); say(`speed ${player.speed}×`); },
      "=": () => { player.faster(1); say(`speed ${player.speed}×`); },
      Enter: () => { if (!this.nextButton.disabled) this.next(); },
      ...(this.mode === "label" ? {
        s: () => this.choose(null),
        m: () => this.markHere(),
        x: () => { this.marks = {}; if (this.category !== undefined) this.changed(); },
        c: () => this.words.focus(),
        u: () => this.back?.(),
        Backspace: () => this.back?.(),
      } : {}),
    };
    const act = keys[event.key] ?? keys[event.key.toLowerCase()];
    if (!act) return false;
    act();
    return true;
  }
}
