// For the owner: how far the work is, who does it and how well, where people disagree, who may come in.

import { get, post } from "./api.js";
import { button, duration, fact, h, number, percent, plural, renew, say, show, table } from "./dom.js";
import { drawing, shade } from "./draw.js";
import { needWords } from "./run.js";
import { WatchScreen } from "./watch.js";

const POLL = 5000;

/** Krippendorff's alpha in words. */
function alphaWords(alpha) {
  if (alpha === null) return "not known yet";
  const word = alpha >= 0.8 ? "reliable" : alpha >= 0.667 ? "tentative" : "poor";
  return `${alpha.toFixed(2)} (${word})`;
}

export class OverviewScreen extends WatchScreen {
  constructor(app, place) {
    super(app, place, POLL);
  }

  async enter() {
    this.parts = { numbers: h("section", { class: "card" }), people: h("section", { class: "card" }), agreement: h("section", { class: "card" }), disagreements: h("section", { class: "card" }) };
    show(this.place, h("div", { class: "screen" }, h("h1", { class: "hidden" }, "Overview"), this.parts.numbers, this.parts.people, this.invitation(), this.parts.agreement, this.parts.disagreements));
    await this.refresh();
  }

  async look() {
    return { found: await get("/api/overview"), run: this.app.about.run ? await get("/api/run") : null };
  }

  told({ found, run }) {
    const { parts } = this;
    const counts = Object.entries(found.counts);
    const labelled = counts.reduce((sum, [, count]) => sum + count, 0);
    show(parts.numbers, h("h2", {}, "Progress"),
      h("dl", { class: "facts" },
        fact("present questions", `${found.answered} of ${found.questions} answered`),
        fact("trajectories with a label", labelled),
        fact("people per question", found.overlap),
        ...(run?.run.budget ? [fact("labels to learn from, asked for so far", `${run.run.labels} of ${run.run.budget}`)] : []),
        ...(run?.run.need ? [fact("labels until the audit can be decided", needWords(run.run.need, run.run.audits))] : []),
      ),
      h("div", { class: "shares", role: "img", "aria-label": counts.map(([name, count]) => `${count} ${name}`).join(", ") }, counts.map(([name, count], index) => (count ? h("span", { css: { "--shade": shade(index), "--share": String(count) } }, `${name} ${count}`) : null))),
    );
    renew(parts.people, h("h2", {}, "People"), table(
      ["name", "labels", "cannot tell", "time per label", "same answer again", "known answers right", "link", ""],
      found.people.map((one) => [
        one.name, number(one.labels), number(one.cannot_tell), one.seconds === null ? "–" : duration(one.seconds),
        one.repeats ? `${one.repeats_same} of ${one.repeats}` : "–", one.planted ? `${one.planted_right} of ${one.planted}` : "–",
        one.links ? `until ${new Date(one.expires * 1000).toLocaleDateString()}` : "none",
        one.role === "owner" ? "" : h("span", { class: "row fixed" },
          button("New link", () => this.invite(one.name), { kind: "quiet", "aria-label": `New link for ${one.name}` }),
          one.links ? button("Revoke", () => this.revoke(one.name), { kind: "quiet", "aria-label": `Revoke the link of ${one.name}` }) : null),
      ]), "People"));
    renew(parts.agreement, h("h2", {}, "Agreement"), ...this.agreement(found.agreement));
    const open = found.disagreements.filter((one) => !one.settled);
    const state = JSON.stringify(found.disagreements);
    if (state !== this.disagreeing) {
      this.disagreeing = state;
      show(parts.disagreements, h("h2", {}, "Disagreements"),
        found.disagreements.length ? h("p", { class: "soft" }, `${plural(open.length, "trajectory", "trajectories")} to settle. Choose what counts; open one to play it.`) : h("p", { class: "soft" }, "There are none."),
        h("div", { class: "cards wide" }, found.disagreements.map((one) => this.disagreement(one))));
    }
  }

  agreement(found) {
    if (!found.trajectories) return [h("p", { class: "soft" }, "Nothing has been labelled by two people yet. Ask for it with --overlap 2.")];
    return [
      h("p", {}, `All say the same of ${percent(found.unanimous)} of ${plural(found.trajectories, "trajectory", "trajectories")} that several people labelled. Krippendorff's alpha: ${alphaWords(found.alpha)}.`),
      h("div", { class: "tables" }, table(["category", "alpha"], Object.entries(found.categories).map(([name, alpha]) => [name, alphaWords(alpha)]), "Agreement by category"),
      table(["pair", "trajectories", "same", "alpha"], found.pairs.map((one) => [`${one.first} and ${one.second}`, one.trajectories, percent(one.same), alphaWords(one.alpha)]), "Agreement by pair")),
    ];
  }

  disagreement(one) {
    const { about } = this.app;
    const place = h("div", { class: "thumb" });
    post("/api/look", { trajectory: one.trajectory }).then(({ question }) => show(place, drawing(about.frames, question.scene, { width: 240, height: 170, small: true }).element)).catch(() => {});
    const votes = Object.entries(one.votes).map(([name, category]) => h("li", {}, `${name}: `, h("span", { class: "tag", css: { "--shade": shade(category) } }, about.categories[category])));
    return h("article", { class: `settle${one.settled ? " settled" : ""}` },
      h("h3", {}, h("a", { href: `#label/${one.trajectory}` }, `Trajectory ${one.trajectory}`), one.settled ? " (settled)" : ""), place, h("ul", {}, votes),
      h("div", { class: "row" }, about.categories.map((name, category) => button(name, () => this.settle(one.trajectory, category), { kind: "quiet", "aria-label": `Settle trajectory ${one.trajectory} as ${name}` })),
        button("Pin", () => this.pin(one), { kind: "quiet", "aria-label": `Pin trajectory ${one.trajectory} as an example` })));
  }

  async settle(trajectory, category) {
    try {
      await post("/api/settle", { trajectory, category, marks: {}, comment: "" });
      say(`Trajectory ${trajectory} is ${this.app.about.categories[category]}`, "good");
      await this.refresh();
    } catch (error) { this.app.failed(error); }
  }

  async pin(one) {
    const own = one.votes[this.app.about.name] ?? Math.max(...Object.values(one.votes));
    try {
      await post("/api/pin", { trajectory: one.trajectory, category: own, note: "" });
      say("Pinned: it is an example of the guidelines now", "good");
    } catch (error) { this.app.failed(error); }
  }

  invitation() {
    const name = h("input", { type: "text", id: "guest", maxlength: 40, autocomplete: "off", placeholder: "ann" });
    this.link = h("div", { class: "link", "aria-live": "polite" });
    const go = () => { if (name.value.trim()) this.invite(name.value.trim()); };
    name.addEventListener("keydown", (event) => { if (event.key === "Enter") go(); });
    return h("section", { class: "card" }, h("h2", {}, "Invite somebody"), h("div", { class: "row" }, h("label", { for: "guest" }, "Name"), name, button("Make a link", go, { kind: "primary" })), this.link);
  }

  async invite(name) {
    try {
      const { path } = await post("/api/people", { name, action: "invite" });
      const url = `${location.origin}${path}`;
      const field = h("input", { type: "text", readonly: true, value: url, "aria-label": `Link for ${name}`, onfocus: (event) => event.target.select() });
      show(this.link, h("p", {}, `The link for ${name}. It is shown this once, and ends any link before it.`), h("div", { class: "row" }, field, button("Copy", () => navigator.clipboard?.writeText(url).then(() => say("Copied", "good")))));
      await this.refresh();
    } catch (error) { this.app.failed(error); }
  }

  async revoke(name) {
    try {
      await post("/api/people", { name, action: "revoke" });
      say(`The link of ${name} no longer works`);
      await this.refresh();
    } catch (error) { this.app.failed(error); }
  }
}
