// A message body as people can read it: JSON in colour and indented, text as it is, other bytes as a hex table.

import { fill, h } from "./dom.js";
import { bytes } from "./format.js";

const SHOWN = 200_000;

/** `encoding` is "string" or "base64", as the API says. */
export function viewer(value, encoding, size) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const forms = [];
  if (encoding === "base64") {
    forms.push(["Hex", () => h("pre", { class: "value hex", tabindex: "0" }, hexTable(text))], ["Base64", () => h("pre", { class: "value", tabindex: "0" }, text)]);
  } else {
    if (isJson(text)) forms.push(["JSON", () => h("pre", { class: "value json", tabindex: "0" }, pretty(text))]);
    forms.push(["Text", () => h("pre", { class: "value", tabindex: "0" }, text.slice(0, SHOWN))]);
  }
  const box = h("div");
  const choose = (index) => {
    fill(box, forms[index][1]());
    [...choice.children].forEach((one, number) => one.setAttribute("aria-pressed", String(number === index)));
  };
  const choice = h("div", { class: "segments small", role: "group", "aria-label": "How to show the value" }, forms.map(([name], index) => h("button", { type: "button", on: { click: () => choose(index) } }, name)));
  choose(0);
  const copy = h("button", { type: "button", class: "button small", on: { click: async () => {
    await navigator.clipboard?.writeText(text);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  } } }, "Copy");
  return h("div", { class: "viewer" }, h("div", { class: "viewer-head" }, choice, h("span", { class: "muted" }, bytes(size ?? text.length)), copy), box);
}

/** One line of it, for a table. */
export function glimpse(value, encoding, letters = 120) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  if (encoding === "base64") return `${bytes(Math.floor((text.length * 3) / 4))} of binary data`;
  const flat = text.replace(/\s+/g, " ");
  return flat.length > letters ? `${flat.slice(0, letters)}…` : flat;
}

function isJson(text) {
  if (text.length > SHOWN || !/^\s*[[{"]/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

const TOKEN = /"(?:\\.|[^"\\])*"|-?\d[\d.eE+-]*|true|false|null|[{}[\],:]/g;

/** The text, set anew token by token: numbers keep all their digits, and a name that comes twice is seen twice. */
function pretty(text) {
  const parts = [];
  let depth = 0;
  const line = () => parts.push(`\n${"  ".repeat(depth)}`);
  const tokens = text.match(TOKEN);
  tokens.forEach((token, index) => {
    const next = tokens[index + 1];
    if (token === "{" || token === "[") {
      parts.push(token);
      if (next === "}" || next === "]") return;
      depth += 1;
      line();
    } else if (token === "}" || token === "]") {
      if (tokens[index - 1] !== "{" && tokens[index - 1] !== "[") {
        depth -= 1;
        line();
      }
      parts.push(token);
    } else if (token === ",") {
      parts.push(token);
      line();
    } else if (token === ":") {
      parts.push(": ");
    } else {
      const kind = token[0] === '"' ? (next === ":" ? "name" : "string") : /[-\d]/.test(token[0]) ? "number" : token === "null" ? "null" : "boolean";
      parts.push(h("span", { class: `j-${kind}` }, token));
    }
  });
  return parts;
}

function hexTable(text) {
  let raw;
  try {
    raw = atob(text.slice(0, 8192 * 2));
  } catch {
    return text;
  }
  const lines = [];
  for (let place = 0; place < Math.min(raw.length, 4096); place += 16) {
    const part = [...raw.slice(place, place + 16)].map((sign) => sign.charCodeAt(0));
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const signs = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${place.toString(16).padStart(6, "0")}  ${hex}  ${signs}`);
  }
  if (raw.length > 4096) lines.push("…");
  return lines.join("\n");
}
