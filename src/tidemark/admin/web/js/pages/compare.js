// Two moments of a stream compared: what was added, changed and deleted between them, with what it was before.

import { append, fill, h, icon, setText } from "../dom.js";
import { count, moment, shownName } from "../format.js";
import { table } from "../table.js";
import { badge, button, card, dialog, empty, notice } from "../ui.js";
import { glimpse } from "../viewer.js";
import { drawItem, openKey } from "./item.js";

const TONES = { added: "good", changed: "accent", deleted: "bad", put: "" };
const SLIDE_MS = 120;

/**
 * `choose({since} or {since_ms})` hears which earlier moment is wanted, `turn(step)` which page.
 * Returns the row that chooses the earlier moment, the card with what changed, and who tells them what to show.
 */
export function comparison(page, path, { choose, turn }) {
  const slider = h("input", { type: "range", min: 0, max: 1, value: 0, step: 1, "aria-label": "Since which sequence", class: "slider" });
  const sequence = h("input", { type: "number", min: 0, "aria-label": "Since sequence", class: "narrow-input" });
  const time = h("input", { type: "datetime-local", step: "1", "aria-label": "Since time" });
  const words = h("output", { class: "since-when", "aria-live": "polite" });
  let sliding = 0;
  slider.addEventListener("input", () => {
    setText(words, since(slider.value));
    clearTimeout(sliding);
    sliding = setTimeout(() => choose({ since: slider.value, since_ms: "" }), SLIDE_MS);
  });
  sequence.addEventListener("change", () => choose({ since: sequence.value || "0", since_ms: "" }));
  time.addEventListener("change", () => time.value && choose({ since: "", since_ms: String(new Date(time.value).getTime()) }));
  const row = h("div", { class: "since", hidden: true },
    h("div", { class: "slide" }, slider),
    h("div", { class: "toolbar" }, words, h("span", { class: "grow" }), h("label", { class: "inline" }, "Sequence", sequence), h("label", { class: "inline" }, "Time", time)));

  const summary = h("span", { class: "badges", role: "status" });
  const doubt = h("div");
  const value = (one) => (one === null || one.tombstone ? h("span", { class: "muted" }, "nothing") : h("code", { class: "glimpse" }, glimpse(one.value, one.encoding, 80)));
  const rows = table("Changes", [
    { name: "change", label: "Change", of: (one) => one.change, cell: (word, one) => h("button", { type: "button", class: "link", "aria-label": `Open what was ${word} at sequence ${one.sequence}`, on: { click: () => openChange(one) } }, badge(word, TONES[word])) },
    { name: "key", label: "Key", of: (one) => one.key, cell: (text, one) => (text === null || text === undefined ? h("span", { class: "muted" }, "none") : h("button", { type: "button", class: "link", title: "The past of this key", on: { click: () => openKey(page, path, one) } }, shownName(text))), class: "name-cell" },
    { name: "before", label: "Before", of: (one) => [one.before, one.change], cell: ([was, word]) => (word === "put" ? h("span", { class: "muted" }, "–") : value(was)), class: "value-cell labelled" },
    { name: "after", label: "After", of: (one) => [one.value, one.encoding, one.tombstone], cell: (_, one) => value(one), class: "value-cell labelled" },
    { name: "sequence", label: "At sequence", of: (one) => one.sequence, cell: count, number: true },
    { name: "time", label: "Time", of: (one) => one.timestamp, cell: (ms) => moment(ms, true), class: "time-cell" },
  ], { key: (one) => String(one.sequence), none: empty("Nothing changed", "Between these two moments the stream holds the same.") });
  const back = button("Earlier", () => turn(-1), { kind: "small", icon: "left" });
  const forth = button("Later", () => turn(1), { kind: "small" });
  forth.append(icon("right"));
  const where = h("span", { class: "muted" });
  const whole = card("What changed", { actions: summary }, doubt, rows.node, h("div", { class: "pager" }, where, h("span", { class: "pager-steps" }, back, forth)));

  const since = (from) => `Since sequence ${count(from)}`;

  return {
    row,
    card: whole,
    /** Whether two moments are compared, and how far apart they can be. */
    bound(on, { oldest, end }) {
      row.hidden = !on;
      slider.min = String(oldest);
      slider.max = String(Math.max(oldest, end));
      slider.disabled = end <= oldest;
    },
    show(found, { keyed, first, kept }) {
      rows.show(found.items);
      back.disabled = first;
      forth.disabled = found.next === null;
      setText(words, since(found.from));
      if (document.activeElement !== slider) slider.value = String(found.from);
      if (document.activeElement !== sequence) sequence.value = String(found.from);
      const kinds = Object.keys(TONES).map((word) => [word, found.items.filter((one) => one.change === word).length]).filter(([, number]) => number);
      fill(summary, kinds.map(([word, number]) => badge(`${count(number)} ${word}`, TONES[word])), kinds.length && !(first && found.next === null) ? h("span", { class: "muted" }, "on this page") : null);
      setText(where, `From sequence ${count(found.from)} to ${count(found.to)}`);
      const gone = keyed && !found.exact;
      // The first moment behind it that can still be shown.
      const next = Math.min(...[found.oldest_snapshot, ...kept].filter((one) => one > found.from && one < found.to));
      const sign = gone ? `${found.from} ${next}` : "";
      if (doubt.dataset.sign === sign) return;
      doubt.dataset.sign = sign;
      fill(doubt, gone ? notice("warn", h("b", null, `How the stream was at sequence ${count(found.from)} is not kept any more. `), "What was put and deleted since is shown, but not what it was before. ",
        Number.isFinite(next) ? button(`Compare with ${count(next)}, which is kept`, () => choose({ since: String(next), since_ms: "" }), { kind: "small" }) : null) : null);
    },
    fail(problem) {
      fill(summary);
      fill(doubt);
      doubt.dataset.sign = "";
      setText(where, "");
      setText(words, "");
      back.disabled = forth.disabled = true;
      rows.fail(problem);
    },
  };
}

/** One change in full: how it was, how it became. */
function openChange(one) {
  const { body } = dialog(one.key === null || one.key === undefined ? `Message ${count(one.sequence)}` : `Key ${shownName(one.key)}: ${one.change}`, { wide: true });
  const part = (title, ...children) => h("section", { class: "message" }, h("h3", null, title), children);
  append(body, [
    one.change === "put" ? null : part("Before", one.before === null ? empty("Nothing", "At the first moment there was nothing under this key.") : drawItem(one.before)),
    part("After", drawItem(one)),
  ]);
}
