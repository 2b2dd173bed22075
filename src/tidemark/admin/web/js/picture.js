// Pictures of what leads where: layers of boxes with lines between them, as SVG. Beside one another where there is room,
// below one another where there is none. A box may be a link, so the keyboard gets there, too.

import { fill, h, s } from "./dom.js";

const TITLE = 20;
const LINE = 16;
const PAD = 11;
const GAP = 14;
const ROOM = { wide: 92, down: 46 };

export class Picture {
  constructor(label, { narrow = 560, boxWidth = 190 } = {}) {
    this.label = label;
    this.narrow = narrow;
    this.boxWidth = boxWidth;
    this.given = null;
    this.sign = "";
    this.svg = s("svg", { class: "picture", role: "group", "aria-label": label });
    this.node = h("div", { class: "picture-box", tabindex: "0", role: "region", "aria-label": label }, this.svg);
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  /** layers: [[{ id, title, lines: [text], tone, href }]], edges: [{ from, to, label, tone, moving, dashed }] */
  show(layers, edges) {
    this.given = { layers: layers.filter((layer) => layer.length), edges };
    this.draw();
  }

  draw() {
    const width = this.node.clientWidth;
    if (!this.given || !width) return;
    const sign = JSON.stringify([width, this.given]);
    if (sign === this.sign) return;
    this.sign = sign;
    const boxes = new Map();
    const down = width < this.narrow;
    const { layers, edges } = down ? this.given : passed(this.given);
    const size = down ? this.below(layers, boxes, width) : this.beside(layers, boxes, width);
    const lines = edges.filter((edge) => boxes.has(edge.from) && boxes.has(edge.to));
    this.svg.setAttribute("width", size.width);
    this.svg.setAttribute("height", size.height);
    this.svg.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
    // Labels of lines lie on top of all lines, so that none is crossed out.
    fill(this.svg, lines.map((edge) => this.edge(edge, boxes, size.down)), lines.map((edge) => this.words(edge, boxes, size.down)), [...boxes.values()].map((box) => this.box(box)));
  }

  height(box) {
    if (box.passage) return LINE;
    return PAD * 2 + TITLE - 4 + (box.lines?.length ?? 0) * LINE;
  }

  beside(layers, boxes, width) {
    const wide = Math.min(this.boxWidth + 90, Math.max(120, (width - ROOM.wide * (layers.length - 1) - 4) / layers.length));
    const room = layers.length > 1 ? Math.max(ROOM.wide, Math.min(360, (width - wide * layers.length) / (layers.length - 1))) : 0;
    const heights = layers.map((layer) => layer.reduce((sum, box) => sum + this.height(box) + GAP, -GAP));
    const height = Math.max(...heights, 0) + 4;
    layers.forEach((layer, column) => {
      let y = 2 + (height - 4 - heights[column]) / 2;
      for (const box of layer) {
        boxes.set(box.id, { ...box, x: 2 + column * (wide + room), y, w: wide - 4, h: this.height(box) });
        y += this.height(box) + GAP;
      }
    });
    return { width: Math.max(width, layers.length * wide + (layers.length - 1) * room), height, down: false };
  }

  below(layers, boxes, width) {
    let y = 2;
    let widest = width;
    layers.forEach((layer) => {
      // Many in one layer stand in a column, a few beside one another.
      const beside = layer.length * 104 <= width;
      const w = beside ? Math.min(this.boxWidth + 60, (width - GAP * (layer.length - 1)) / layer.length) : Math.min(width - 24, this.boxWidth + 60);
      const tall = Math.max(...layer.map((box) => this.height(box)));
      layer.forEach((box, index) => {
        const x = beside ? (width - (w * layer.length + GAP * (layer.length - 1))) / 2 + index * (w + GAP) : 24;
        boxes.set(box.id, { ...box, x: x + 1, y, w: w - 2, h: this.height(box), indented: !beside });
        if (!beside) y += this.height(box) + 8;
      });
      y += beside ? tall + ROOM.down : ROOM.down - 8;
      widest = Math.max(widest, w);
    });
    return { width: widest, height: y - ROOM.down + 4, down: true };
  }

  ends(edge, boxes, down) {
    const from = boxes.get(edge.from);
    const to = boxes.get(edge.to);
    if (!down) return [from.x + from.w, from.y + from.h / 2, to.x, to.y + to.h / 2];
    if (to.indented) return [Math.min(from.x + 12, 12), from.indented ? from.y + from.h / 2 : from.y + from.h, to.x, to.y + to.h / 2];
    return [from.x + from.w / 2, from.y + from.h, to.x + to.w / 2, to.y];
  }

  edge(edge, boxes, down) {
    const [x1, y1, x2, y2] = this.ends(edge, boxes, down);
    const half = down ? (y2 - y1) / 2 : (x2 - x1) / 2;
    const path = down && boxes.get(edge.to).indented
      ? `M${x1} ${y1}V${y2 - 8}Q${x1} ${y2} ${x1 + 8} ${y2}H${x2}`
      : down ? `M${x1} ${y1}C${x1} ${y1 + half} ${x2} ${y2 - half} ${x2} ${y2}` : `M${x1} ${y1}C${x1 + half} ${y1} ${x2 - half} ${y2} ${x2} ${y2}`;
    const through = boxes.get(edge.to).passage;
    const tip = through ? "" : down && !boxes.get(edge.to).indented ? `M${x2 - 4} ${y2 - 7}L${x2} ${y2 - 1}L${x2 + 4} ${y2 - 7}` : `M${x2 - 7} ${y2 - 4}L${x2 - 1} ${y2}L${x2 - 7} ${y2 + 4}`;
    const kind = `edge ${edge.tone ?? ""} ${edge.moving ? "moving" : ""} ${edge.dashed ? "dashed" : ""}`;
    return s("g", { class: kind }, s("path", { d: path }), s("path", { class: "tip", d: tip }));
  }

  words(edge, boxes, down) {
    if (!edge.label) return null;
    const [x1, y1, x2, y2] = this.ends(edge, boxes, down);
    const indented = down && boxes.get(edge.to).indented;
    if (indented) return null;
    const room = down ? 160 : x2 - x1 - 20;
    const text = cut(edge.label, Math.max(4, Math.floor(room / 6.4)));
    const part = edge.at ?? 0.5;
    const x = x1 + (x2 - x1) * part;
    const y = y1 + (y2 - y1) * part;
    const w = text.length * 6.4 + 12;
    return s("g", { class: `edge-label ${edge.tone ?? ""}` }, s("title", null, edge.label), s("rect", { x: x - w / 2, y: y - 9, width: w, height: 18, rx: 9 }), s("text", { x, y: y + 3.500, "text-anchor": "middle" }, text));
  }

  box(box) {
    if (box.passage) return s("g", { class: box.passage }, s("path", { d: `M${box.x} ${box.y + box.h / 2}H${box.x + box.w}` }));
    const whole = [box.title, ...(box.lines ?? [])].join(", ");
    const drawing = s("g", { class: `box ${box.tone ?? ""}`, data: { id: box.id } },
      s("title", null, whole),
      s("rect", { x: box.x, y: box.y, width: box.w, height: box.h, rx: 8 }),
      s("rect", { class: "stripe", x: box.x, y: box.y + 6, width: 3, height: box.h - 12, rx: 1.5 }),
      s("text", { class: "box-title", x: box.x + PAD + 2, y: box.y + PAD + 11 }, fitted(box.title, box.w - PAD * 2 - 2, "600 13px")),
      (box.lines ?? []).map((line, index) => s("text", { class: "box-line", x: box.x + PAD + 2, y: box.y + PAD + 11 + LINE * (index + 1) + 1 }, fitted(line, box.w - PAD * 2 - 2, "12px"))));
    return box.href ? s("a", { href: box.href, "aria-label": whole }, drawing) : drawing;
  }
}

/** A line that jumps over a layer gets a passage through it, so that it crosses no box. */
function passed({ layers, edges }) {
  const wider = layers.map((layer) => [...layer]);
  const layerOf = new Map(layers.flatMap((layer, index) => layer.map((box) => [box.id, index])));
  const lines = edges.flatMap((edge) => {
    const [first, last] = [layerOf.get(edge.from), layerOf.get(edge.to)];
    if (first === undefined || last === undefined || last - first < 2) return [edge];
    const stops = [edge.from];
    for (let layer = first + 1; layer < last; layer += 1) {
      const id = `passage ${layer} ${edge.from} ${edge.to}`;
      wider[layer].push({ id, passage: `edge ${edge.tone ?? ""} ${edge.moving ? "moving" : ""} ${edge.dashed ? "dashed" : ""}` });
      stops.push(id);
    }
    stops.push(edge.to);
    return stops.slice(1).map((stop, index) => ({ ...edge, from: stops[index], to: stop, label: index === stops.length - 2 ? edge.label : "" }));
  });
  return { layers: wider, edges: lines };
}

const cut = (text, letters) => (String(text).length > letters ? `${String(text).slice(0, Math.max(1, letters - 1))}…` : String(text));

const ruler = document.createElement("canvas").getContext("2d");

/** As much of the text as fits, in the page's font: its letters are as wide as the reader's system has them. */
function fitted(text, room, font) {
  ruler.font = `${font} ${getComputedStyle(document.body).fontFamily}`;
  const whole = String(text);
  if (ruler.measureText(whole).width <= room) return whole;
  let letters = whole.length - 1;
  while (letters > 1 && ruler.measureText(`${whole.slice(0, letters)}…`).width > room) letters -= 1;
  return `${whole.slice(0, letters)}…`;
}

/** The first of many boxes, and one that says how many more there are. */
export function bounded(boxes, most, href, word) {
  if (boxes.length <= most) return boxes;
  return [...boxes.slice(0, most - 1), { id: `more-${word}`, title: `${boxes.length - most + 1} more ${word}`, tone: "quiet", href }];
}
