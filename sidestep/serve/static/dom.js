// Elements from JavaScript. Text is text: nothing that a person typed is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "css") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

export const h = (tag, props, ...children) => filled(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => filled(document.createElementNS(SVG, tag), props, children);

export const byId = (id) => document.getElementById(id);

/** Replace what a place holds. */
export function show(place, ...children) {
  place.replaceChildren(...children.flat(4).filter((child) => child !== null && child !== undefined && child !== false));
  return place;
}

/** Tell something in the corner of the page, and to screen readers. */
let silence;
export function say(text, kind = "") {
  const place = byId("said");
  place.className = kind;
  place.textContent = text;
  clearTimeout(silence);
  silence = setTimeout(() => { place.textContent = ""; place.className = ""; }, kind === "bad" ? 8000 : 3500);
}

export const key = (text) => h("kbd", {}, text);

/** A button with its key, if it has one. */
export function button(text, onclick, { hint, kind = "", ...props } = {}) {
  return h("button", { type: "button", class: kind, onclick, ...props }, h("span", {}, text), hint ? key(hint) : null);
}

export const number = (value, digits = 3) => {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 6 });
};

export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(value > 0.999 || value < 0.001 ? 0 : 1)} %`);

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds);
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")} min`;
}

export const plural = (count, one, more) => `${count.toLocaleString("en")} ${count === 1 ? one : (more ?? `${one}s`)}`;

/** A figure with its name, in a list of facts. */
export const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

/** Show something anew, and leave the keyboard and the scroll bars where they were. */
export function renew(place, ...children) {
  const name = place.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  const scrolled = [...place.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  show(place, ...children);
  place.querySelectorAll(".scroll").forEach((one, index) => { one.scrollLeft = scrolled[index] ?? 0; });
  if (name) [...place.querySelectorAll("[aria-label]")].find((one) => one.getAttribute("aria-label") === name)?.focus({ preventScroll: true });
}

/** A table that scrolls by itself where it is wider than the page; the first cell of a row is its name. */
export function table(heads, rows, caption) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, h("table", {},
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, index) => (index ? h("td", {}, cell) : h("th", { scope: "row" }, cell))))))));
}
