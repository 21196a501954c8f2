// Trajectories as SVG: a path on a plane, a walk on a map, a line over time. What is around them comes as data.

import { h, s } from "./dom.js";

export const shade = (category) => (category === null || category === undefined || category < 0 ? "var(--unknown)" : `var(--c${category % 5})`);

/** Round numbers between two ends, some four of them. */
export function ticks(low, high, wanted = 4) {
  const rough = (high - low) / wanted;
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(10)));
  return found;
}

const label = (value) => Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 4 });
const path = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function extent(points, axis, given) {
  const values = points.flatMap((one) => one[axis]);
  let low = given ? given.low : Infinity;
  let high = given ? given.high : -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  if (!(high > low)) { low -= 1; high += 1; }
  return [low, high];
}

/** One view of trajectories. `paths`: [{x, y}]; the first can be played. */
export class View {
  constructor(frame, paths, { width = 520, height = 420, small = false, name = "" } = {}) {
    this.frame = frame;
    this.small = small;
    this.paths = paths;
    this._axes(width, height);
    this.svg = s("svg", { viewBox: `0 0 ${this.width.toFixed(1)} ${this.height.toFixed(1)}`, width: Math.round(this.width), height: Math.round(this.height), class: `view ${frame.kind}${small ? " small" : ""}`, role: "img", "aria-label": name || frame.title });
    this._ground();
    this.lines = s("g");
    this.played = s("path", { class: "played" });
    this.flags = s("g");
    this.cursor = frame.kind === "time" ? s("line", { class: "cursor", y1: this.top, y2: this.height - this.bottom }) : null;
    this.dot = s("circle", { class: "dot", r: small ? 3.5 : 7 });
    this.svg.append(this.lines, this.played, this.flags, ...(this.cursor ? [this.cursor] : []), this.dot);
    this._trail();
  }

  _axes(width, height) {
    const { frame, small } = this;
    this.left = small ? 4 : frame.kind === "map" ? 6 : 44;
    this.right = small ? 4 : 12;
    this.top = small ? 4 : frame.kind === "time" ? 24 : 10;
    this.bottom = small ? 4 : frame.kind === "map" ? 6 : frame.kind === "time" ? 24 : 34;
    let xs, ys;
    if (frame.kind === "map") {
      xs = [-0.5, frame.cells.rows[0].length - 0.5];
      ys = [frame.cells.rows.length - 0.5, -0.5];
    } else {
      xs = extent(this.paths, "x", frame.x_range);
      ys = extent(this.paths, "y", frame.y_range);
    }
    let inner = [width - this.left - this.right, height - this.top - this.bottom];
    if (frame.kind !== "time") {
      const unit = Math.min(inner[0] / Math.abs(xs[1] - xs[0]), inner[1] / Math.abs(ys[1] - ys[0]));
      inner = [unit * Math.abs(xs[1] - xs[0]), unit * Math.abs(ys[1] - ys[0])];
      this.unit = unit;
    }
    this.width = inner[0] + this.left + this.right;
    this.height = inner[1] + this.top + this.bottom;
    this.xs = xs;
    this.ys = ys;
    this.x = (value) => this.left + ((value - xs[0]) / (xs[1] - xs[0])) * inner[0];
    this.y = (value) => this.top + (1 - (value - ys[0]) / (ys[1] - ys[0])) * inner[1];
  }

  _ground() {
    const { frame, svg } = this;
    if (frame.kind === "map") this._cells();
    else if (!this.small) this._grid();
    else {
      if (frame.kind === "time" && this.height < 100) svg.append(s("text", { class: "title faint", x: this.left + 4, y: this.top + 11 }, frame.y_label));
      svg.append(s("rect", { class: "edge", x: this.left, y: this.top, width: this.width - this.left - this.right, height: this.height - this.top - this.bottom }));
    }
    if (frame.band) {
      const [high, low] = [this.y(frame.band.high), this.y(frame.band.low)];
      svg.append(s("rect", { class: "band", x: this.left, y: high, width: this.width - this.left - this.right, height: low - high }));
    }
    if (frame.limit !== null) {
      svg.append(s("line", { class: "limit", x1: this.left, x2: this.width - this.right, y1: this.y(frame.limit), y2: this.y(frame.limit) }));
    }
    for (const zone of frame.zones) {
      const [x, y] = [this.x(zone.x.low), this.y(zone.y.high)];
      const [width, height] = [this.x(zone.x.high) - x, this.y(zone.y.low) - y];
      svg.append(s("rect", { class: "zone", x, y, width, height }));
      if (!this.small) svg.append(s("text", { class: "zone-name", x: x + width / 2, y: y - 5 }, zone.name));
    }
    for (const spot of frame.spots) svg.append(this._spot(spot));
  }

  _spot(spot) {
    const [x, y, r] = [this.x(spot.x), this.y(spot.y), this.small ? 3 : 6];
    if (spot.meaning === "start") return s("rect", { class: "spot", x: x - r, y: y - r, width: 2 * r, height: 2 * r }, s("title", {}, "start"));
    const points = Array.from({ length: 10 }, (_, index) => {
      const [angle, reach] = [(index * Math.PI) / 5 - Math.PI / 2, index % 2 ? r * 0.6 : r * 1.6];
      return `${(x + reach * Math.cos(angle)).toFixed(1)},${(y + reach * Math.sin(angle)).toFixed(1)}`;
    });
    return s("polygon", { class: "spot", points: points.join(" ") }, s("title", {}, "goal"));
  }

  _cells() {
    const { frame, unit } = this;
    frame.cells.rows.forEach((row, y) => {
      [...row].forEach((cell, x) => {
        const tone = frame.cells.tones[cell] ?? 0;
        const at = { x: this.x(x - 0.5), y: this.y(y - 0.5), width: unit, height: unit };
        this.svg.append(s("rect", { class: `cell tone${tone}`, ...at }));
        if (frame.cells.letters.includes(cell) && !this.small) {
          this.svg.append(s("text", { class: "letter", x: this.x(x), y: this.y(y) + unit * 0.14, "font-size": Math.min(unit * 0.45, 20) }, cell));
        }
      });
    });
  }

  _grid() {
    const { frame, svg } = this;
    for (const value of ticks(...this.xs, this.width < 420 ? 4 : 6)) {
      if (frame.whole && !Number.isInteger(value)) continue;
      const x = this.x(value);
      svg.append(s("line", { class: "grid", x1: x, x2: x, y1: this.top, y2: this.height - this.bottom }));
      svg.append(s("text", { class: "tick", x, y: this.height - this.bottom + 14 }, label(value)));
    }
    for (const value of ticks(...this.ys, frame.kind === "time" ? 3 : 5)) {
      const y = this.y(value);
      svg.append(s("line", { class: "grid", x1: this.left, x2: this.width - this.right, y1: y, y2: y }));
      svg.append(s("text", { class: "tick side", x: this.left - 6, y: y + 4 }, label(value)));
    }
    if (frame.kind === "time") svg.append(s("text", { class: "title", x: this.left, y: 14 }, frame.title.replace(/, over time$/, "")));
    else {
      svg.append(s("text", { class: "axis", x: (this.left + this.width - this.right) / 2, y: this.height - 4 }, frame.x_label));
      svg.append(s("text", { class: "axis", x: 11, y: this.height / 2, transform: `rotate(-90 11 ${this.height / 2})` }, frame.y_label));
    }
  }

  place(index, step) {
    const { x, y } = this.paths[index];
    return [this.x(x[step]), this.y(y[step])];
  }

  _trail() {
    this.paths.forEach((one, index) => {
      const points = one.x.map((_, step) => this.place(index, step));
      const stroke = one.category === undefined ? null : shade(one.category);
      this.lines.append(s("path", { class: "trail", d: path(points), ...(stroke ? { css: { stroke } } : {}) })); // as a style, which the class does not override
    });
    this.points = this.paths.length ? this.paths[0].x.map((_, step) => this.place(0, step)) : [];
  }

  /** Show the first path up to a moment, which may lie between two steps. */
  at(moment) {
    if (!this.points.length) return;
    const last = this.points.length - 1;
    const step = Math.min(Math.floor(moment), last);
    const [from, to] = [this.points[step], this.points[Math.min(step + 1, last)]];
    const part = moment - step;
    const [x, y] = [from[0] + part * (to[0] - from[0]), from[1] + part * (to[1] - from[1])];
    this.played.setAttribute("d", path([...this.points.slice(0, step + 1), [x, y]]));
    this.dot.setAttribute("cx", x.toFixed(1));
    this.dot.setAttribute("cy", y.toFixed(1));
    if (this.cursor) { this.cursor.setAttribute("x1", x); this.cursor.setAttribute("x2", x); }
  }

  /** Flags where severities were reached: [{step, category, name}]. */
  mark(marks) {
    this.flags.replaceChildren(...marks.map(({ step, category, name }) => {
      const [x, y] = this.points[Math.min(step, this.points.length - 1)];
      return s("g", {}, s("circle", { class: "flag", cx: x, cy: y, r: this.small ? 4 : 9, stroke: shade(category) }), s("title", {}, `${name} from step ${step}`));
    }));
  }
}

/** All views of one trajectory in so much room, played to the end: a plane or map, and lines over time beside or below it. */
export function drawing(frames, scene, { width, height, small = false } = {}) {
  // A small drawing has room for one plane or map, or for some lines over time.
  const shown = !small ? frames : frames[0].kind === "time" ? frames.filter((frame) => frame.kind === "time").slice(0, 4) : frames.slice(0, 1);
  const lines = shown.filter((frame) => frame.kind === "time").length;
  const others = shown.length - lines;
  const beside = !small && width >= 640 && lines > 0 && others > 0; // the plane left, lines over time right of it
  const columns = !small && !beside && width >= 640 && lines > 2 ? 2 : 1;
  const rows = Math.ceil(lines / columns);
  const half = beside ? width / 2 - 6 : width;
  const clamp = (value, low, high) => Math.max(low, Math.min(value, high));
  const line = small ? height / Math.max(rows, 1) : rows ? clamp((others && !beside ? height * 0.4 : height) / rows, 84, 230) : 0;
  const rest = small ? height : Math.max(200, beside ? height : height - rows * line) / Math.max(others, 1);
  const views = shown.map((frame, index) => {
    const timed = frame.kind === "time";
    const size = timed ? { width: half / columns - (columns > 1 ? 6 : 0), height: line } : { width: half, height: rest };
    return new View(frame, [scene.views[index]], { ...size, small, name: `${frame.title}, trajectory ${scene.trajectory}` });
  });
  for (const view of views) view.at(view.points.length - 1);
  const part = (kind) => views.filter((view) => (view.frame.kind === "time") === kind).map((view) => view.svg);
  return { views, element: h("div", { class: `drawing${beside ? " beside" : ""}` }, others ? h("div", {}, part(false)) : null, lines ? h("div", { class: `lines${columns > 1 ? " two" : ""}` }, part(true)) : null) };
}

/** Several trajectories in one picture, coloured by category. */
export function together(frame, index, rollouts, options) {
  const paths = rollouts.map((one) => ({ ...one.points[index], category: one.category }));
  const view = new View(frame, paths, options);
  view.dot.remove();
  return view.svg;
}

/** A line of numbers, one for each round. */
export function chart(title, series, { width = 340, height = 150 } = {}) {
  const values = series.flatMap((one) => one.values.filter((value) => value !== null));
  if (!values.length) return null;
  const longest = Math.max(...series.map((one) => one.values.length));
  const paths = [{ x: [1, Math.max(longest, 2)], y: [Math.min(...values), Math.max(...values)] }];
  const frame = { kind: "time", title, x_label: "", y_label: "", x_range: null, y_range: null, zones: [], spots: [], band: null, limit: null, whole: true };
  const view = new View(frame, paths, { width, height, name: title });
  view.lines.replaceChildren();
  view.dot.remove();
  view.cursor.remove();
  for (const one of series) {
    const points = one.values.map((value, step) => (value === null ? null : [view.x(step + 1), view.y(value)])).filter(Boolean);
    view.lines.append(s("path", { class: `curve${one.dashed ? " dashed" : ""}`, d: path(points), stroke: one.colour ?? "var(--accent)" }));
    for (const [cx, cy] of points) view.lines.append(s("circle", { cx, cy, r: 3, fill: one.colour ?? "var(--accent)" }));
  }
  return view.svg;
}
