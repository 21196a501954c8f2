// The owner's guidelines, pinned examples, and a round of practice with known answers.

import { get, post } from "./api.js";
import { button, h, plural, show } from "./dom.js";
import { drawing, shade } from "./draw.js";
import { QuestionView } from "./question.js";

/** What the owner wrote, or what can be said of any task. */
export function guideText(about) {
  const text = h("div", { class: "prose" });
  if (about.guidelines) {
    // The server made this HTML from Markdown, with everything else escaped.
    text.append(...new DOMParser().parseFromString(about.guidelines, "text/html").body.childNodes);
    return text;
  }
  text.append(h("p", {}, about.description), h("p", {}, `Look at each trajectory as a whole, and say how bad its worst side effect is: ${about.categories.join(", ")}. The order of the keys is from harmless to worst.`),
    h("p", {}, "Where you can, mark the step at which it became that bad: then it is learned when, and not only that."));
  return text;
}

/** The pinned examples, with their answers. */
export function examples(about) {
  if (!about.pins.length) return null;
  return [h("h2", {}, "Examples"), h("div", { class: "cards" }, about.pins.map((pin) => h("figure", { class: "example", css: { "--shade": shade(pin.category) } },
    drawing(about.frames, pin.scene, { width: 240, height: 170, small: true }).element,
    h("figcaption", {}, h("span", { class: "tag", css: { "--shade": shade(pin.category) } }, about.categories[pin.category]), pin.note ? ` ${pin.note}` : ""))))];
}

export class GuideScreen {
  constructor(app, place) {
    this.app = app;
    this.place = place;
  }

  async enter() {
    const { about } = this.app;
    about.pins = (await get("/api/about")).pins;
    if (this.gone) return;
    show(this.place, h("div", { class: "card" }, h("h1", {}, "Guidelines"), guideText(about), examples(about), this.invitation()));
  }

  invitation() {
    const { pins } = this.app.about;
    return h("p", { class: "row" },
      pins.length ? button(`Practise on ${plural(pins.length, "example")}`, () => this.practise(), { kind: "primary" }) : null,
      h("a", { class: "button", href: "#label" }, "To the questions"));
  }

  async practise() {
    const { questions } = await get("/api/practice");
    this.left = questions;
    this.right = 0;
    this.total = questions.length;
    this.one();
  }

  one() {
    const question = this.left.shift();
    if (!question) {
      this.view = null;
      show(this.place, h("div", { class: "card alone" }, h("h1", {}, `${this.right} of ${this.total} as known`), h("p", {}, this.right === this.total ? "You see it as the owner does." : "Look at the examples of the guidelines again, or simply begin."),
        h("p", { class: "row" }, h("a", { class: "button primary", href: "#label" }, "To the questions"), button("Once more", () => this.practise()))));
      return;
    }
    let answer = null;
    let checked = false;
    this.view?.stop();
    this.view = new QuestionView(this.app.about, question, {
      mode: "practice",
      note: `Practice, ${this.total - this.left.length} of ${this.total}. Nothing of this is saved as a label.`,
      answered: (given) => { answer = given; },
      next: async () => {
        if (checked) { this.one(); return; }
        const known = await post("/api/practised", { trajectory: answer.trajectory, category: answer.category, marks: {}, comment: "" });
        checked = true;
        this.right += known.right ? 1 : 0;
        const word = this.app.about.categories[known.category];
        this.view.saved(`${known.right ? "Yes" : "The known answer is"}: ${word}. ${known.note}`, known.right ? "good" : "bad");
        show(this.view.nextButton, "Go on");
      },
    });
    show(this.place, this.view.element);
    this.view.start();
  }

  pressed(event) {
    return this.view && this.place.contains(this.view.element) ? this.view.pressed(event) : false;
  }

  leave() {
    this.gone = true;
    this.view?.stop();
  }
}
