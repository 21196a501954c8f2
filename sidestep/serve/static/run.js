// For the owner: a run while it runs, and its answer.

import { get } from "./api.js";
import { duration, fact, h, number, percent, plural, renew, show, table } from "./dom.js";
import { chart, shade, together } from "./draw.js";
import { WatchScreen } from "./watch.js";

const POLL = 2500;

/** What the audit should come to with these annotators, told before its first label. */
export function forecastWords(forecast) {
  const opinions = forecast.opinions > 1 ? `, with up to ${forecast.opinions} opinions on a run that somebody calls costly` : "";
  const provable = forecast.provable?.length ? `; likely to be proven: ${forecast.provable.join(", ")}` : "";
  return `about ${Math.round(forecast.labels)} expected, and a certificate with a chance of ${percent(forecast.certified)}${opinions}${provable}`;
}

/** Labels until the audit can be decided, as a range. */
export function needWords(need, audits = []) {
  const forecast = audits.at(-1)?.status === "open" ? audits.at(-1).design?.forecast : null;
  const expected = forecast ? `; ${forecastWords(forecast)}` : "";
  const more = need.with_costly.map((count, index) => `${count} with ${plural(index + 1, "further bad run")}`);
  return `${need.at_best} if all are clean${more.length ? `, ${more.join(", ")}` : ""}${expected}; at most ${number(need.most)}`;
}

const legend = (names) => h("p", { class: "row" }, names.map((name, index) => h("span", { class: "tag", css: { "--shade": shade(index) } }, name)));

export class RunScreen extends WatchScreen {
  constructor(app, place) {
    super(app, place, POLL);
  }

  async enter() {
    this.parts = Object.fromEntries(["head", "curves", "policies", "rounds", "audits", "log"].map((name) => [name, h("section", { class: "card" })]));
    show(this.place, h("div", { class: "screen" }, Object.values(this.parts)));
    await this.refresh();
  }

  look() {
    return get("/api/run");
  }

  told(found) {
    const said = JSON.stringify([found.run, found.campaign.state, found.problem]);
    if (said !== this.last) { this.last = said; this.show(found); }
    this.head(found);
    const log = found.log.join("\n") || "Nothing yet.";
    if (this.log !== log) { this.log = log; show(this.parts.log, h("h2", {}, "Log"), h("pre", { tabindex: "0" }, log)); }
  }

  head({ run, campaign, problem }) {
    const now = {
      working: run.people && run.stage === "round" ? `learning and planning, ${campaign.words}` : run.stage_words + (campaign.words ? `, ${campaign.words}` : ""),
      waiting: "waiting for labels", finished: "finished", failed: "stopped", elsewhere: "another process works on it", idle: "not running",
    }[campaign.state];
    const busy = campaign.state === "working" ? `for ${duration(Date.now() / 1000 - campaign.since)}` : "";
    const result = run.result;
    show(this.parts.head,
      h("h1", {}, run.model, " ", h("span", { class: "soft" }, run.constraints.join(", "))),
      result ? h("p", {}, h("span", { class: `badge ${run.certified ? "good" : "bad"}` }, run.certified ? "certified" : "not certified"), result.reason ? ` ${result.reason}` : "") : null,
      problem && campaign.state === "failed" ? h("p", { class: "note bad" }, problem) : null,
      h("dl", { class: "facts" },
        fact("now", `${now} ${busy}`),
        fact("labels asked for", `${number(run.labels)}${run.budget ? ` of ${number(run.budget)}` : ""}`),
        fact("rounds", run.rounds.length > run.rounds_planned ? `${run.rounds_planned} and the last planning` : `${run.rounds.length} of ${run.rounds_planned}`),
        run.need ? fact("labels until the audit can be decided", needWords(run.need, run.audits)) : null,
        result ? fact("return", `${number(result.returns?.mean, 5)} ± ${number(result.returns?.std, 3)}`) : null,
        result?.pattern ? fact("the pattern that was learned", result.pattern) : null,
        fact("who labels", run.people ? "people" : "a rule")),
      run.report ? h("p", {}, h("a", { class: "button primary", href: "/report", target: "_blank" }, "Open the report")) : null);
  }

  show({ run }) {
    const names = run.categories;
    const { curves, policies, rounds, audits } = this.parts;
    const have = run.rounds.length > 0;
    curves.hidden = !have;
    rounds.hidden = !have;
    if (have) {
      show(curves, h("h2", {}, "How it goes"), h("div", { class: "charts" },
        chart("return, by round", [{ values: run.rounds.map((one) => one.mean_return) }]),
        chart("side effects; dashed: labelled", names.slice(1).flatMap((_, index) => [
          { values: run.rounds.map((one) => one.predicted?.[index + 1] ?? null), colour: shade(index + 1) },
          { values: run.rounds.map((one) => one.labelled?.[index + 1] ?? null), colour: shade(index + 1), dashed: true }]))), legend(names));
      renew(rounds, h("h2", {}, "Rounds"), table(["round", "labels", "return", ...names.map((name) => `${name} predicted`), "safety model right", "time"],
        run.rounds.map((one) => [one.round + 1, number(one.labels), number(one.mean_return, 4), ...names.map((_, index) => percent(one.predicted?.[index])), percent(one.accuracy), duration(one.seconds)]), "Rounds"));
    }
    policies.hidden = !run.policies.length;
    show(policies, h("h2", {}, "The policies now"), h("div", { class: "charts" }, run.policies.map((policy) => h("figure", {}, run.frames.slice(0, 4).map((frame, index) => together(frame, index, policy.rollouts, { width: 340, height: frame.kind === "time" ? 120 : 260, name: `${policy.words}, ${frame.title}` })), h("figcaption", {}, `${policy.words}, coloured ${policy.judge}`)))), legend(names));
    audits.hidden = !run.audits.length;
    show(audits, h("h2", {}, "Audits"), table(["audit", "state", "runs labelled", "constraint", "observed", "at least", "at most"],
      run.audits.flatMap((audit) => (audit.constraints.length ? audit.constraints : [null]).map((one) => [audit.number, audit.status, number(audit.rollouts), one?.text ?? "–", percent(one?.estimate), percent(one?.lower), percent(one?.upper)])), "Audits"));
  }
}
