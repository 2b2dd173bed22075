// Elements from data. Text becomes text nodes and nothing else: no name of a queue can ever be markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: h("a", { href, class, on: { click } }, "text", another). */
export const h = (tag, props, ...children) => furnish(document.createElement(tag), props, children);

/** An SVG element. */
export const s = (tag, props, ...children) => furnish(document.createElementNS(SVG, tag), props, children);

function furnish(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

/** Put these children in place of those it has. Who was on one of them with the keyboard is on the one that took its place. */
export function fill(element, ...children) {
  const held = element.contains(document.activeElement) && document.activeElement !== element ? signOf(document.activeElement) : null;
  element.replaceChildren();
  append(element, children);
  if (held !== null) [...element.querySelectorAll(STOPS)].find((one) => signOf(one) === held)?.focus({ preventScroll: true });
  return element;
}

const STOPS = "a[href], button, summary, [tabindex]";
/** What an element that can have the focus is, whatever numbers it shows now. */
const signOf = (one) => [one.tagName, one.getAttribute("href") ?? one.getAttribute("aria-label") ?? one.textContent].join(" ");

/** Change the text only if it differs, so that a selection survives. */
export function setText(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

let numbers = 0;
export const freshId = (word = "id") => `${word}-${++numbers}`;

const ICONS = {
  overview: "M3 12h4l3-8 4 16 3-8h4",
  queues: "M4 6h16M4 12h16M4 18h10",
  exchanges: "M4 7h11l-3-3M20 17H9l3 3",
  connections: "M9 8V4m6 4V4M7 8h10v4a5 5 0 0 1-10 0zm5 9v4",
  channels: "M4 8c4 0 4 8 8 8s4-8 8-8M4 16c4 0 4-8 8-8",
  streams: "M3 8c3-3 6-3 9 0s6 3 9 0M3 13c3-3 6-3 9 0s6 3 9 0M3 18c3-3 6-3 9 0s6 3 9 0",
  cluster: "M12 8a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM5 22a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM19 22a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM10.600 7.600 6.400 16.400M13.400 7.600l4.200 8.800",
  pipelines: "M4 5h5v5H4zM15 14h5v5h-5zM9 7.500h3.500v9H15",
  users: "M12 11a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM4.500 21c.5-4 3.500-6 7.500-6s7 2 7.500 6",
  vhosts: "M12 3 3 7.500l9 4.500 9-4.500zM3 12l9 4.500 9-4.500M3 16.500 12 21l9-4.500",
  policies: "M12 3l8 3v6c0 4.500-3.300 7.700-8 9-4.700-1.300-8-4.500-8-9V6zM9 12l2.200 2.200L15.500 10",
  limits: "M4 18a8 8 0 1 1 16 0M12 18l4-6",
  definitions: "M8 4c-3 0-1 6-4 8 3 2 1 8 4 8M16 4c3 0 1 6 4 8-3 2-1 8-4 8",
  menu: "M4 6h16M4 12h16M4 18h16",
  close: "M6 6l12 12M18 6 6 18",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2",
  moon: "M20 14.500A8.500 8.500 0 1 1 9.500 4a7 7 0 0 0 10.500 10.500Z",
  system: "M3 4h18v12H3zM8 21h8M12 16v5",
  help: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18ZM9.800 9.500a2.300 2.300 0 1 1 3.500 2c-.9.6-1.300 1-1.300 2M12 16.500v.2",
  out: "M14 4h5v16h-5M4 12h11M11 8l4 4-4 4",
  plus: "M12 5v14M5 12h14",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14ZM16 16l5 5",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  pin: "M9 3h6l-1 7 3 3H7l3-3zM12 13v8",
  clock: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18ZM12 7v5l3.500 2",
  compare: "M9 4H4v16h5M15 4h5v16h-5M12 2v20",
  warning: "M12 4 2.500 20h19zM12 10v4M12 17v.5",
};

/** A small drawing in the colour of the text around it; it says nothing that the words beside it do not. */
export const icon = (name) =>
  s("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" }, s("path", { d: ICONS[name] }));
