// Line charts of the last minutes, as SVG. Numbers come once a second; where none comes the last one still holds.

import { fill, h, s, setText } from "./dom.js";
import { moment, short } from "./format.js";

const KEPT_MS = 600_000;
const HEIGHT = 188;
const LEFT = 46;
const BOTTOM = 20;
const TOP = 8;
const SPANS = [[60_000, "1 min"], [300_000, "5 min"], [600_000, "10 min"]];

let span = Number(localStorage.getItem("tidemark.span")) || 60_000;
const drawn = new Set();
setInterval(() => drawn.forEach((chart) => (chart.node.isConnected ? chart.draw() : chart.seen && drawn.delete(chart))), 1000);

/** How much of the past all charts show. */
export function spanChoice() {
  return h("div", { class: "segments", role: "group", "aria-label": "How much of the past the charts show" }, SPANS.map(([ms, text]) =>
    h("button", { type: "button", "aria-pressed": String(ms === span), on: { click: (event) => {
      span = ms;
      localStorage.setItem("tidemark.span", String(ms));
      for (const one of event.currentTarget.parentNode.children) one.setAttribute("aria-pressed", String(one === event.currentTarget));
      drawn.forEach((chart) => chart.draw());
    } } }, text)));
}

/** A step of 1, 2 or 5 times a power of ten, so that about four lines cross the chart. */
function niceStep(top) {
  const raw = top / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw);
}

export class Chart {
  /** lines: [{ name, label }]; `format` makes words of a value; `whole`: there are no halves. */
  constructor(title, lines, format = short, whole = false) {
    this.title = title;
    this.lines = lines.map((line, index) => ({ ...line, tone: line.tone ?? index + 1, points: [] }));
    this.format = format;
    this.whole = whole;
    this.hover = null;
    this.seen = false;
    this.width = 0;
    this.svg = s("svg", { class: "chart", role: "img", height: HEIGHT });
    this.legend = h("ul", { class: "legend" });
    this.values = this.lines.map((line) => {
      const value = h("b");
      this.legend.append(h("li", null, h("i", { class: `swatch tone-${line.tone}`, "aria-hidden": "true" }), h("span", null, line.label), value));
      return value;
    });
    this.when = h("span", { class: "chart-when muted" });
    this.node = h("div", { class: "chart-box" }, this.svg, h("div", { class: "chart-foot" }, this.legend, this.when));
    new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width && width !== this.width) {
        this.width = width;
        this.draw();
      }
    }).observe(this.node);
    this.svg.addEventListener("pointermove", (event) => {
      this.hover = event.clientX - this.svg.getBoundingClientRect().left;
      this.draw();
    });
    this.svg.addEventListener("pointerleave", () => {
      this.hover = null;
      this.draw();
    });
    drawn.add(this);
  }

  /** What was before we came: name → [[ms, value], …], oldest first. */
  seed(past) {
    for (const line of this.lines) {
      const first = line.points[0]?.[0] ?? Infinity;
      line.points.unshift(...(past[line.name] ?? []).filter(([at]) => at < first));
    }
    this.draw();
  }

  add(at, values) {
    for (const line of this.lines) {
      const value = values[line.name];
      if (value === undefined || value === null || Number.isNaN(Number(value))) continue;
      const last = line.points[line.points.length - 1];
      // A value that held for a while and then changed changed just now, not all the time since.
      if (last && at - last[0] > 1500 && last[1] !== value) line.points.push([at - 1000, last[1]]);
      line.points.push([at, Number(value)]);
      while (line.points.length && line.points[0][0] < at - KEPT_MS) line.points.shift();
    }
    this.draw();
  }

  draw() {
    if (!this.width || !this.node.isConnected) return;
    this.seen = true;
    const now = Date.now();
    const from = now - span;
    const width = this.width - LEFT - 6;
    const height = HEIGHT - TOP - BOTTOM;
    const inside = this.lines.map(({ points }) => {
      const first = points.findIndex(([at]) => at >= from);
      const shown = first < 0 ? points.slice(-1) : points.slice(Math.max(0, first - 1));
      return shown.length ? [...shown, [now, shown[shown.length - 1][1]]] : shown;
    });
    const most = Math.max(1, ...inside.flatMap((points) => points.map(([, value]) => value)));
    const step = this.whole ? Math.max(1, niceStep(most)) : niceStep(most);
    const top = Math.ceil((most * 1.02) / step) * step;
    const x = (at) => LEFT + (width * (Math.max(at, from) - from)) / span;
    const y = (value) => TOP + height * (1 - value / top);
    const parts = [];
    for (let tick = 0; tick <= top + step / 2; tick += step) {
      parts.push(s("line", { class: "grid", x1: LEFT, x2: LEFT + width, y1: y(tick), y2: y(tick) }));
      parts.push(s("text", { class: "axis", x: LEFT - 8, y: y(tick) + 3.5, "text-anchor": "end" }, step < 1 ? tick.toFixed(1) : short(tick)));
    }
    const minutes = span / 60_000;
    for (const part of this.width < 420 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]) {
      const back = (1 - part) * minutes;
      const words = back === 0 ? "now" : back < 1 ? `−${Math.round(back * 60)} s` : `−${+back.toFixed(1)} min`;
      parts.push(s("text", { class: "axis", x: LEFT + width * part, y: HEIGHT - 4, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, words));
    }
    inside.forEach((points, index) => {
      if (points.length < 2) return;
      const path = points.map(([at, value], number) => `${number ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      const tone = this.lines[index].tone;
      parts.push(s("path", { class: `area tone-${tone}`, d: `${path}L${x(now).toFixed(1)} ${y(0)}L${x(points[0][0]).toFixed(1)} ${y(0)}Z` }));
      parts.push(s("path", { class: `line tone-${tone}`, d: path }));
    });
    if (!inside.some((points) => points.length)) {
      parts.push(s("text", { class: "axis", x: LEFT + width / 2, y: TOP + height / 2, "text-anchor": "middle" }, "no numbers yet"));
    }
    let asked = null;
    if (this.hover !== null && this.hover >= LEFT) {
      asked = from + ((this.hover - LEFT) / width) * span;
      parts.push(s("line", { class: "cross", x1: this.hover, x2: this.hover, y1: TOP, y2: TOP + height }));
    }
    const valueAt = (points, at) => {
      let found = null;
      for (const point of points) if (at === null || point[0] <= at) found = point[1];
      return found;
    };
    const words = this.lines.map((line) => valueAt(line.points, asked));
    words.forEach((value, index) => setText(this.values[index], value === null ? "–" : this.format(value)));
    setText(this.when, asked === null ? "" : moment(asked).slice(11));
    this.svg.setAttribute("width", this.width);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.svg.setAttribute("aria-label", `${this.title}: ${this.lines.map((line, index) => `${line.label} ${words[index] === null ? "unknown" : this.format(words[index])}`).join(", ")}`);
    fill(this.svg, parts);
  }
}

/** The past of a counter as the API tells it: totals at moments, newest first → rates, oldest first. */
export function ratesOf(stats, names) {
  const past = {};
  for (const name of names) {
    const samples = [...(stats?.[`${name}_details`]?.samples ?? [])].sort((a, b) => a.timestamp - b.timestamp);
    past[name] = samples.slice(1).map((one, index) => [one.timestamp, Math.max(0, ((one.sample - samples[index].sample) * 1000) / Math.max(1, one.timestamp - samples[index].timestamp))]);
  }
  return past;
}

/** The past of a level, likewise. */
export function levelsOf(levels, names) {
  const past = {};
  for (const name of names) {
    past[name] = [...(levels?.[`${name}_details`]?.samples ?? [])].sort((a, b) => a.timestamp - b.timestamp).map((one) => [one.timestamp, one.sample]);
  }
  return past;
}

/** Rates now: as the API says, or else by what was counted since we looked last. */
export class Rates {
  constructor() {
    this.last = null;
  }

  of(stats, names) {
    const now = Date.now();
    const found = {};
    for (const name of names) {
      const told = stats?.[`${name}_details`]?.rate;
      const total = stats?.[name];
      if (told !== undefined) found[name] = told;
      else if (total === undefined) found[name] = 0;
      else if (this.last && now > this.last.at) found[name] = Math.max(0, ((total - (this.last.stats?.[name] ?? total)) * 1000) / (now - this.last.at));
    }
    this.last = { at: now, stats };
    return found;
  }
}
