// The main screen: one question after the other, and what to do while there is none.

import { get, post, save } from "./api.js";
import { button, duration, fact, h, number, percent, plural, show } from "./dom.js";
import { examples, guideText } from "./guide.js";
import { QuestionView } from "./question.js";

const POLL = 2000; // milliseconds between two looks for new questions

export class LabelScreen {
  constructor(app, place, rest) {
    this.app = app;
    this.place = place;
    this.wanted = Number(rest[0]) || 0; // a trajectory to look at again
  }

  async enter() {
    if (this.wanted) await this.look(this.wanted);
    else await this.ask();
  }

  leave() {
    this.gone = true;
    clearTimeout(this.timer);
    clearInterval(this.keeping);
    this.view?.stop();
  }

  async ask(extra = false) {
    this.extra = extra;
    clearTimeout(this.timer);
    const found = await get(`/api/next${extra ? "?extra=1" : ""}`);
    if (this.gone) return;
    this.app.tellProgress(found.progress, found.purpose);
    if (found.question) this.present(found.question);
    else this.wait(found);
  }

  async look(trajectory) {
    const { question } = await post("/api/look", { trajectory });
    if (!this.gone) this.present(question, true);
  }

  present(question, again = false) {
    this.view?.stop();
    this.again = again;
    const { about } = this.app;
    const note = question.skipped ? "You could not tell before, and nobody else has answered it. If in doubt, choose the worse one." : again ? "You answered this before. What you change is saved at once." : "";
    this.view = new QuestionView(this.app.about, question, {
      note,
      answered: (answer) => this.answered(answer),
      next: () => this.next(),
      back: () => this.back(),
    });
    if (again && this.app.about.role === "owner" && question.own && question.own.category !== null) this.view.element.querySelector(".answer").append(this.pin(question));
    show(this.place, this.view.element);
    if (about.guidelines || about.pins.length) this.view.element.append(this.guide());
    this.view.start();
    if (question.own) this.view.saved(this.words(question.own), "good");
    clearInterval(this.keeping);
    const trajectory = question.scene.trajectory;
    this.keeping = setInterval(() => { if (!document.hidden) post("/api/hold", { trajectories: [trajectory] }).catch(() => {}); }, this.app.about.lease * 400);
  }

  /** The guidelines beside the question, folded away until they are wanted. */
  guide() {
    const folded = h("details", { class: "guide", open: localStorage.getItem("sidestep-guide") === "open", ontoggle: (event) => localStorage.setItem("sidestep-guide", event.target.open ? "open" : "folded") },
      h("summary", {}, "Guidelines"), guideText(this.app.about), examples(this.app.about));
    return folded;
  }

  /** For the owner: an answer as an example for all. */
  pin({ scene }) {
    const pinned = this.app.about.pins.some((one) => one.scene.trajectory === scene.trajectory);
    const words = pinned ? "Pinned as an example; take it off" : "Pin as an example";
    return h("p", { class: "row" }, button(words, async () => {
      try {
        const body = pinned ? { trajectory: scene.trajectory } : { trajectory: scene.trajectory, category: this.view.category, note: this.view.comment };
        await post("/api/pin", body);
        this.app.about.pins = (await get("/api/about")).pins;
        await this.look(scene.trajectory);
      } catch (error) { this.app.failed(error); }
    }, { kind: "quiet", title: "Your label and comment stand below the guidelines, and serve practice and blind checks" }));
  }

  answered(answer) {
    this.view.saved("Saving …");
    save([answer]);
    this.dirty = true;
    if (localStorage.getItem("sidestep-advance") === "yes" && !this.again && !Object.keys(answer.marks).length) {
      clearTimeout(this.advancing);
      this.advancing = setTimeout(() => this.next(), 350);
    }
  }

  /** The words of what was answered. */
  words(own) {
    const label = own.category === null ? "cannot tell" : this.app.about.categories[own.category];
    const marks = Object.entries(own.marks).map(([name, step]) => `${name} from step ${step}`);
    return `Saved: ${[label, ...marks].join(", ")}`;
  }

  saving(event) {
    const trajectory = this.view?.scene.trajectory;
    if (event.state === "saved") {
      const own = event.saved.find((one) => one.trajectory === trajectory);
      if (own) this.view.saved(this.words(own), "good");
      if (this.nextWanted) this.next();
    } else if (event.state === "unreachable") this.view?.saved("Not saved yet; it is kept here and sent again", "bad");
    else if (event.state === "refused") { this.view?.saved(event.reason, "bad"); this.nextWanted = false; }
  }

  /** Enter: to the next question, once this one is saved. */
  next() {
    clearTimeout(this.advancing);
    if (this.view.words && document.activeElement === this.view.words) this.view.words.blur();
    if (this.view.state.textContent === "Saving …") { this.nextWanted = true; return; }
    this.nextWanted = false;
    if (location.hash.startsWith("#label/")) { history.replaceState(null, "", "#label"); this.wanted = 0; }
    this.ask().catch((error) => this.app.failed(error));
  }

  /** The answer before this one. */
  async back() {
    const now = this.view?.scene.trajectory;
    try {
      if (!this.history || this.dirty) {
        this.history = [];
        this.dirty = false;
      }
      let place = this.history.indexOf(now);
      if (place + 1 >= this.history.length) {
        const { labels } = await get(`/api/mine?skip=${this.history.length}`);
        this.history.push(...labels.map((one) => one.trajectory));
        place = this.history.indexOf(now);
      }
      const before = this.history[place + 1];
      if (before !== undefined) await this.look(before);
    } catch (error) {
      this.app.failed(error);
    }
  }

  pressed(event) {
    return this.view && this.place.contains(this.view.element) ? this.view.pressed(event) : this.waitingPressed(event);
  }

  // Nothing to answer just now.

  waitingPressed(event) {
    if (event.key === "Enter" && this.meanwhile) { this.meanwhile.click(); return true; }
    if (event.key.toLowerCase() === "u" || event.key === "Backspace") { this.back(); return true; }
    return false;
  }

  wait(found) {
    this.view?.stop();
    this.view = null;
    clearInterval(this.keeping);
    const nobody = !found.campaign && !found.progress.questions;
    const parts = found.done ? this.done(found) : nobody ? [h("h1", {}, "There are no questions yet"), h("p", {}, "They appear here as soon as there are any.")] : this.working(found);
    if (this.place.querySelector(".waiting")?.dataset.kind !== this.kindOf(found)) {
      show(this.place, h("div", { class: "card waiting alone", "data-kind": this.kindOf(found) }, parts));
    } else this.update?.(found);
    this.timer = setTimeout(() => this.poll(), POLL);
  }

  kindOf(found) {
    return found.done ? "done" : `${found.campaign?.state ?? ""}-${found.campaign?.stage ?? ""}-${found.campaign?.words ?? ""}`;
  }

  async poll() {
    if (this.gone) return;
    try {
      await this.ask();
      if (this.view) { document.title = `● ${document.title}`; }
    } catch (error) {
      if (error.status === 401) this.app.failed(error);
      else this.timer = setTimeout(() => this.poll(), POLL * 2);
    }
  }

  working({ campaign, progress }) {
    const waited = h("strong", {});
    const usual = campaign?.usual ? ` A round took up to ${duration(campaign.usual)} so far.` : " The first time takes longest, since everything is compiled.";
    this.update = ({ campaign: now }) => { if (now) waited.textContent = duration(Date.now() / 1000 - now.since); };
    this.update({ campaign });
    const others = progress.questions - progress.answered;
    const titles = {
      working: campaign?.stage === "explore" ? "Sidestep prepares the first questions" : "Thank you. Sidestep is learning from the labels",
      elsewhere: "Another process works on this run",
      failed: "The campaign has stopped",
    };
    const stages = {
      explore: "It looks for trajectories that go to many places.",
      round: `It fits the safety model and plans${campaign?.words ? ` (${campaign.words})` : ""}.`,
      polish: "It plans for the last time, which takes the longest.",
      verify: "It chooses candidates to check.",
      certify: "It prepares the audit: fresh runs of the best policy.",
    };
    this.meanwhile = progress.own > 0 ? button("Check some of my earlier answers meanwhile", () => this.ask(true).catch((error) => this.app.failed(error)), { hint: "Enter", kind: "primary" }) : null;
    return [
      campaign?.state === "failed" ? null : h("div", { class: "pulse", "aria-hidden": "true" }, h("i"), h("i"), h("i")),
      h("h1", {}, others ? "The last questions are with somebody else" : (titles[campaign?.state] ?? "Just a moment")),
      others ? h("p", {}, `${plural(others, "question")} of this batch ${others === 1 ? "is" : "are"} being answered, or can be answered by others only.`) : null,
      campaign?.state === "working" ? h("p", {}, stages[campaign.stage] ?? "", usual, " So far: ", waited, ". New questions appear here by themselves.") : null,
      campaign?.state === "failed" ? h("p", {}, this.app.about.role === "owner" ? "See the log on the page Run for the reason." : "The owner has been told.") : null,
      this.meanwhile ? h("p", {}, this.meanwhile) : null,
      this.meanwhile ? h("p", { class: "soft" }, "You are shown trajectories that you labelled before, without your label. It tells how far labels can be trusted, and changes none of them.") : null,
    ];
  }

  done({ progress }) {
    const owner = this.app.about.role === "owner";
    const parts = [h("h1", {}, progress.own ? "All done. Thank you!" : "All done"), progress.own ? h("p", { class: "soft" }, `You have given ${plural(progress.own, "label")}.`) : null];
    if (owner && this.app.about.run) {
      const result = h("div", {}, h("p", { class: "soft" }, "Reading the result …"));
      this.result(result);
      parts.push(result);
    }
    return parts;
  }

  async result(place) {
    try {
      const { run } = await get("/api/run");
      if (!run.result) return;
      const { result, certified } = run;
      show(place,
        h("div", { class: `certificate ${certified ? "good" : "bad"}` },
          h("h2", {}, certified ? "Certified" : "Not certified"),
          result.reason ? h("p", {}, result.reason) : null,
          h("ul", {}, result.constraints.map((one) => h("li", {}, h("strong", {}, one.text), `: ${percent(one.estimate)} in the audit; with ${percent(result.confidence)} confidence between ${percent(one.lower)} and ${percent(one.upper)}`)))),
        h("dl", { class: "facts" },
          fact("return", `${number(result.returns?.mean, 5)} ± ${number(result.returns?.std, 3)}`),
          fact("labels to learn from", number(result.labels_used)),
          fact("labels for audits", number(result.audit_labels)),
          result.pattern ? fact("the pattern that was learned", result.pattern) : null),
        h("p", { class: "row" }, run.report ? h("a", { class: "button primary", href: "/report", target: "_blank" }, "Open the report") : null, h("a", { class: "button", href: "#run" }, "See the run")),
      );
    } catch (error) {
      this.app.failed(error);
    }
  }
}
