// What I have answered, the latest first; each answer can be looked at again, changed, or taken back.

import { get, save } from "./api.js";
import { button, h, say, show } from "./dom.js";
import { shade } from "./draw.js";

export class MineScreen {
  constructor(app, place) {
    this.app = app;
    this.place = place;
  }

  async enter() {
    const { labels, older } = await get("/api/mine");
    if (this.gone) return;
    this.shown = labels.length;
    this.list = h("ul", { class: "list" }, labels.map((own) => this.line(own)));
    this.more = h("p", {}, button("Show older answers", () => this.older().catch((error) => this.app.failed(error))));
    this.more.hidden = !older;
    show(this.place, h("div", { class: "card" },
      h("h1", {}, "My labels"),
      h("p", { class: "soft" }, labels.length ? "The latest answer first. Open one to see it again and to change it." : "You have not labelled anything yet."),
      this.list, this.more,
    ));
  }

  async older() {
    const { labels, older } = await get(`/api/mine?skip=${this.shown}`);
    this.shown += labels.length;
    this.list.append(...labels.map((own) => this.line(own)));
    this.more.hidden = !older;
  }

  line(own) {
    const { categories } = this.app.about;
    const word = own.category === null ? "cannot tell" : categories[own.category];
    const marks = Object.entries(own.marks).map(([name, step]) => `${name} from step ${step}`).join(", ");
    const time = own.time ? new Date(own.time).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : "";
    return h("li", {},
      h("a", { href: `#label/${own.trajectory}` }, `Trajectory ${own.trajectory}`),
      h("span", { class: "tag", css: { "--shade": own.category === null ? "var(--unknown)" : shade(own.category) } }, word),
      h("span", { class: "soft grow" }, [marks, own.comment].filter(Boolean).join(" · ")),
      h("time", { class: "soft" }, time),
      own.category === null ? null : button("Take back", () => this.takeBack(own), { kind: "quiet", "aria-label": `Take back the label of trajectory ${own.trajectory}` }),
    );
  }

  async takeBack(own) {
    await save([{ trajectory: own.trajectory, category: null, marks: {}, comment: "" }]);
    say(`The label of trajectory ${own.trajectory} is taken back; the question is open again`);
    await this.enter();
  }

  leave() { this.gone = true; }
}
