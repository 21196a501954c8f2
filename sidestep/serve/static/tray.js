// A tray: a dozen trajectories that look alike. All are harmless but those that are picked out.

import { get, post, save } from "./api.js";
import { button, h, key, plural, say, show } from "./dom.js";
import { drawing, shade } from "./draw.js";
import { Player } from "./player.js";

const LATER = "later"; // left out here, to be looked at alone

export class TrayScreen {
  constructor(app, place) {
    this.app = app;
    this.place = place;
  }

  async enter() {
    const found = await get("/api/tray");
    if (this.gone) return;
    this.app.tellProgress(found.progress, found.purpose);
    this.questions = found.questions;
    this.labels = this.questions.map(() => 0);
    this.at = 0;
    if (!this.questions.length) {
      show(this.place, h("div", { class: "card alone" }, h("h1", {}, "No questions for a tray"), h("p", {}, "There is nothing to answer just now."), h("p", {}, h("a", { class: "button primary", href: "#label" }, "Back to single questions"))));
      return;
    }
    this.render();
  }

  leave() {
    this.gone = true;
    if (this.player) this.player.playing = false;
    clearInterval(this.keeping);
  }

  render() {
    const { about } = this.app;
    this.drawings = this.questions.map((question) => drawing(about.frames, question.scene, { width: 220, height: 160, small: true }));
    this.cards = this.questions.map((question, index) => this.card(question, index));
    this.summary = h("p", { class: "state", "aria-live": "polite" });
    show(this.place, h("div", { class: "tray" },
      h("div", { class: "tray-head" },
        h("h1", {}, `All “${about.categories[0]}” but these`),
        h("p", { class: "soft" }, "Press a drawing to change its label; “look closer” leaves it for later. ", h("span", { class: "by-keys" }, "Keys: arrows, ", about.categories.map((_, index) => key(String(index + 1))), " ", key("S"), " to look closer.")),
      ),
      h("div", { class: "cards dozen", role: "group", "aria-label": "Trajectories" }, this.cards),
      h("div", { class: "row end sticky" }, button("Play all", () => this.player.toggle(), { hint: "Space", kind: "quiet" }), this.summary, button("Save and next tray", () => this.send(), { hint: "Enter", kind: "primary" })),
    ));
    const longest = Math.max(...this.questions.map((question) => question.scene.length));
    this.player = new Player(longest, (player) => this.moved(player));
    this.player.go(longest - 1);
    this.cards.forEach((_, index) => this.paint(index));
    this.cards[0].focus({ preventScroll: true });
    const trajectories = this.questions.map((question) => question.scene.trajectory);
    this.keeping = setInterval(() => post("/api/hold", { trajectories }).catch(() => {}), this.app.about.lease * 400);
  }

  card(question, index) {
    const badge = h("span", { class: "badge label" });
    const element = h("button", { type: "button", class: "tray-card", onclick: () => this.cycle(index), onfocus: () => { this.at = index; } },
      this.drawings[index].element, badge);
    element.badge = badge;
    return element;
  }

  moved(player) {
    this.drawings.forEach(({ views }, index) => {
      const last = this.questions[index].scene.length - 1;
      for (const view of views) view.at(Math.min(player.moment, last));
    });
  }

  cycle(index) {
    const order = [...this.app.about.categories.keys(), LATER];
    this.set(index, order[(order.indexOf(this.labels[index]) + 1) % order.length]);
  }

  set(index, label) {
    this.labels[index] = label;
    this.paint(index);
  }

  paint(index) {
    const label = this.labels[index];
    const words = label === LATER ? "look closer" : this.app.about.categories[label];
    const card = this.cards[index];
    card.badge.textContent = words;
    card.style.setProperty("--shade", label === LATER ? "var(--unknown)" : shade(label));
    card.classList.toggle("picked", label !== 0);
    card.setAttribute("aria-label", `Trajectory ${this.questions[index].scene.trajectory}: ${words}`);
    const counts = this.app.about.categories.map((name, category) => [name, this.labels.filter((one) => one === category).length]);
    const later = this.labels.filter((one) => one === LATER).length;
    const parts = counts.filter(([, count]) => count).map(([name, count]) => `${count} ${name}`);
    if (later) parts.push(`${later} left for a closer look`);
    this.summary.textContent = parts.join(", ");
  }

  async send() {
    if (this.sending) return;
    this.sending = true;
    this.player.playing = false;
    clearInterval(this.keeping);
    const answers = this.questions
      .map((question, index) => ({ trajectory: question.scene.trajectory, category: this.labels[index], marks: {}, comment: "" }))
      .filter((answer) => answer.category !== LATER);
    if (answers.length) await save(answers);
    say(`${plural(answers.length, "label")} saved`, "good");
    this.sending = false;
    if (this.gone) return;
    if (answers.length) await this.enter().catch((error) => this.app.failed(error));
    else location.hash = "label";
  }

  pressed(event) {
    if (!this.cards || event.ctrlKey || event.metaKey || event.altKey) return false;
    const digit = /^(?:Digit|Numpad)([1-9])$/.exec(event.code)?.[1];
    if (digit && Number(digit) <= this.app.about.categories.length && !event.shiftKey) {
      this.set(this.at, Number(digit) - 1);
      return true;
    }
    const columns = Math.max(1, Math.round(this.place.querySelector(".cards").clientWidth / this.cards[0].offsetWidth));
    const to = (by) => () => {
      this.at = Math.max(0, Math.min(this.at + by, this.cards.length - 1));
      this.cards[this.at].focus();
    };
    const keys = { ArrowLeft: to(-1), ArrowRight: to(1), ArrowUp: to(-columns), ArrowDown: to(columns), s: () => this.set(this.at, LATER), Enter: () => this.send(), " ": () => this.player.toggle() };
    const act = keys[event.key] ?? keys[event.key.toLowerCase()];
    if (!act) return false;
    act();
    return true;
  }
}
