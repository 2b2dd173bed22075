// Looking into a stream: pages of messages by key and sequence, at any moment that is still kept, or what changed since another one.

import { withQuery } from "../api.js";
import { append, fill, h, icon, setText } from "../dom.js";
import { bytes, count, moment, shownName } from "../format.js";
import { table } from "../table.js";
import { badge, button, card, empty } from "../ui.js";
import { glimpse } from "../viewer.js";
import { comparison } from "./compare.js";
import { openKey, openMessage } from "./item.js";
import { openPin } from "./stream.js";

const LIMIT = 50;
const SLIDE_MS = 120;
/** Before this there is everything. */
const END = Number.MAX_SAFE_INTEGER;

export function openMessages(page, path, body) {
  const { at = "", at_ms = "", since = "", since_ms = "", until = "", key: named = "", how: meant = "key", from: begun = "" } = page.query;
  const asked = { at, at_ms, since, since_ms, until, key: named, how: meant, newest: page.query.order !== "oldest", from: begun };
  /** Where the pages before this one began, for the way back. */
  const trail = [];
  let bounds = { oldest: 0, end: 0, purged: 0, keyed: true };
  let pins = [];
  /** What was shown last, and where its next page begins. */
  let last = null;
  let next = null;
  let live = true;
  const comparing = () => asked.since !== "" || asked.since_ms !== "";

  // The slider: from the oldest moment that can be shown to now.
  const slider = h("input", { type: "range", min: 0, max: 1, value: 1, step: 1, "aria-label": "As of which sequence", class: "slider" });
  const ticks = h("div", { class: "ticks" });
  const ends = h("div", { class: "slide-ends hint" }, h("span"), h("span"));
  const when = h("output", { class: "slider-when", "aria-live": "polite" });
  const sequence = h("input", { type: "number", min: 0, placeholder: "now", "aria-label": "As of sequence", class: "narrow-input" });
  const time = h("input", { type: "datetime-local", step: "1", "aria-label": "As of time" });
  const now = button("Now", () => change({ at: "", at_ms: "" }), { kind: "small", icon: "clock" });
  const keep = button("Pin this moment", () => openPin(page, path, asked.at === "" ? null : Number(asked.at)), { kind: "small", icon: "pin" });
  const compare = button("Compare", () => change(comparing() ? { since: "", since_ms: "" } : { since: String(earliest()), since_ms: "" }), { kind: "small", icon: "compare" });
  const difference = comparison(page, path, { choose: (values) => change(values), turn });
  const tight = h("p", { class: "hint" });
  let sliding = 0;
  slider.addEventListener("input", () => {
    setText(when, words(Number(slider.value), null));
    clearTimeout(sliding);
    sliding = setTimeout(() => change(Number(slider.value) >= bounds.end ? { at: "", at_ms: "" } : { at: slider.value, at_ms: "" }), SLIDE_MS);
  });
  sequence.addEventListener("change", () => change({ at: sequence.value, at_ms: "" }));
  time.addEventListener("change", () => change({ at: "", at_ms: time.value ? String(new Date(time.value).getTime()) : "" }));

  // The filter.
  const key = h("input", { type: "search", placeholder: "Key", "aria-label": "Key", value: asked.key, spellcheck: "false", autocomplete: "off" });
  const how = h("select", { "aria-label": "How the key is meant", on: { change: () => change({ how: how.value, key: key.value }) } }, [["key", "is exactly"], ["prefix", "begins with"]].map(([value, text]) => h("option", { value, selected: value === asked.how }, text)));
  const order = h("select", { "aria-label": "Order", on: { change: () => change({ newest: order.value === "newest", from: "" }) } }, [["newest", "Newest first"], ["oldest", "Oldest first"]].map(([value, text]) => h("option", { value, selected: (value === "newest") === asked.newest }, text)));
  const from = h("input", { type: "number", min: 0, placeholder: "any", "aria-label": "From sequence", class: "narrow-input", value: asked.from, on: { change: () => change({ from: from.value }) } });
  let typing = 0;
  key.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => change({ key: key.value }), 250);
  });

  const rows = table("Messages", [
    { name: "sequence", label: "Sequence", of: (one) => one.sequence, cell: (value, one) => h("button", { type: "button", class: "link", "aria-label": `Open the message at sequence ${value}`, on: { click: () => openMessage(page, path, one) } }, count(value)), number: true },
    { name: "time", label: "Time", of: (one) => one.timestamp, cell: (ms) => moment(ms, true), class: "time-cell" },
    { name: "key", label: "Key", of: (one) => one.key, cell: (text, one) => (text === null || text === undefined ? h("span", { class: "muted" }, "none") : h("button", { type: "button", class: "link", title: "The past of this key", on: { click: () => openKey(page, path, one) } }, shownName(text))), class: "name-cell" },
    { name: "value", label: "Value", of: (one) => [one.tombstone, glimpse(one.value, one.encoding)], cell: ([gone, text]) => (gone ? badge("deleted", "bad") : h("code", { class: "glimpse" }, text)), class: "value-cell" },
    { name: "size", label: "Size", of: (one) => one.bytes, cell: bytes, number: true },
  ], { key: (one) => String(one.sequence), none: empty("Nothing here", "The stream holds no message like that at this moment.") });
  const back = button("Newer", () => turn(-1), { kind: "small", icon: "left" });
  const forth = button("Older", () => turn(1), { kind: "small" });
  forth.append(icon("right"));
  const where = h("span", { class: "muted" });
  const messages = card("Messages",
    h("div", { class: "toolbar", role: "search" }, h("label", { class: "inline" }, "Key", how), key, order, h("label", { class: "inline" }, asked.newest ? "Before" : "After", from)),
    rows.node,
    h("div", { class: "pager" }, where, h("span", { class: "pager-steps" }, back, forth)));
  // The messages, or what changed.
  const below = h("div");
  append(body, [
    card("As of", { actions: [compare, now, keep] },
      h("div", { class: "slide" }, slider, ticks),
      ends,
      h("div", { class: "toolbar" }, when, h("span", { class: "grow" }), h("label", { class: "inline" }, "Sequence", sequence), h("label", { class: "inline" }, "Time", time)),
      difference.row,
      tight),
    below,
  ]);

  const address = () => {
    if (comparing()) {
      const to = asked.until === "" ? { to: asked.at, to_ms: asked.at_ms } : { to: asked.until };
      return withQuery(`${path}/diff`, { from: asked.since, from_ms: asked.since_ms, ...to, after: asked.from, limit: LIMIT });
    }
    const place = asked.from === "" ? {} : asked.newest ? { before: asked.from } : { after: asked.from };
    if (asked.newest && asked.from === "") place.before = END;
    return withQuery(`${path}/messages`, { at: asked.at, at_ms: asked.at_ms, [asked.how]: asked.key, limit: LIMIT, ...place });
  };

  function change(values, step = false) {
    Object.assign(asked, values);
    if (!step) {
      trail.length = 0;
      asked.until = "";
      if (!("from" in values)) asked.from = "";
    }
    // The earlier moment goes along when the later one is moved in front of it.
    if (asked.since !== "" && asked.at !== "" && Number(asked.since) > Number(asked.at)) asked.since = asked.at;
    from.value = comparing() ? "" : asked.from;
    setText(back.lastChild, asked.newest ? "Newer" : "Older");
    setText(forth.firstChild, asked.newest ? "Older" : "Newer");
    from.parentNode.firstChild.textContent = asked.newest ? "Before" : "After";
    page.remember({ at: asked.at, at_ms: asked.at_ms, since: asked.since, since_ms: asked.since_ms, until: asked.until, key: asked.key, how: asked.how === "key" ? "" : asked.how, order: asked.newest ? "" : "oldest", from: asked.from });
    live = asked.at === "" && asked.at_ms === "";
    drawMode();
    watch.change(address());
  }

  function turn(step) {
    if (step > 0 && next !== null) {
      trail.push(asked.from);
      // All pages of a comparison are between the same two moments.
      change(comparing() ? { from: String(next), since: String(last.from), since_ms: "", until: String(last.to) } : { from: String(next) }, true);
    } else if (step < 0 && trail.length) {
      change({ from: trail.pop() }, true);
    }
  }

  /** The earliest moment that two can be compared from: exactly, if there is one. */
  const earliest = () => (bounds.oldest < bounds.end ? bounds.oldest : Math.min(bounds.purged, bounds.end));

  function drawMode() {
    const on = comparing();
    const wanted = on ? difference.card : messages;
    if (below.firstChild !== wanted) fill(below, wanted);
    compare.setAttribute("aria-pressed", String(on));
    difference.bound(on, { oldest: Math.min(earliest(), Number(asked.since || earliest())), end: asked.at === "" ? bounds.end : Number(asked.at) });
  }

  const words = (value, ms) => (value >= bounds.end && live ? `Now: sequence ${count(value)}` : `As it was at sequence ${count(value)}${ms ? `, ${moment(ms)}` : ""}`);

  live = asked.at === "" && asked.at_ms === "";
  drawMode();
  const watch = page.watch(address(), (found) => {
    last = found;
    if (comparing()) {
      next = found.next ?? null;
      difference.show(found, { keyed: bounds.keyed, first: !trail.length, kept: pins.map((one) => one.sequence) });
      showMoment(found.to, null);
      return;
    }
    next = (asked.newest ? found.previous : found.next) ?? null;
    rows.show(asked.newest ? [...found.items].reverse() : found.items);
    back.disabled = !trail.length;
    forth.disabled = next === null;
    setText(where, found.items.length ? `${count(found.items.length)} messages from sequence ${count(Math.min(...found.items.map((one) => one.sequence)))} to ${count(Math.max(...found.items.map((one) => one.sequence)))}` : "");
    showMoment(found.at ?? bounds.end, found.at_ms);
  }, (problem) => (comparing() ? difference.fail(problem) : rows.fail(problem)));

  function showMoment(shown, ms) {
    setText(when, words(shown, ms));
    if (document.activeElement !== slider) slider.value = String(live ? bounds.end : shown);
    if (document.activeElement !== sequence) sequence.value = live ? "" : String(shown);
    if (document.activeElement !== time && !(comparing() && asked.at_ms)) time.value = live || !ms ? "" : moment(ms).replace(" ", "T");
    now.disabled = live;
  }

  page.watch(`${path}/pins`, (list) => drawTicks(list), () => {});

  function drawTicks(list = pins) {
    pins = list;
    const width = Math.max(1, bounds.end - bounds.oldest);
    fill(ticks, pins.filter((one) => one.sequence >= bounds.oldest && one.sequence <= bounds.end).slice(0, 20).map((one) => {
      const tick = h("button", { type: "button", class: "tick", title: `Pin ${shownName(one.name)}, sequence ${count(one.sequence)}`, "aria-label": `As of the pin ${shownName(one.name)}`, on: { click: () => change({ at: String(one.sequence), at_ms: "" }) } }, icon("pin"));
      tick.style.left = `${(100 * (one.sequence - bounds.oldest)) / width}%`;
      return tick;
    }));
  }

  return (one) => {
    const oldest = Math.max(0, Math.min(one.oldest_snapshot ?? 0, ...pins.map((pin) => pin.sequence)));
    bounds = { oldest, end: one.boundary ?? one.last_seq ?? 0, purged: one.purged ?? 0, keyed: one.key !== "log" };
    slider.min = String(oldest);
    slider.max = String(Math.max(bounds.end, oldest));
    slider.disabled = bounds.end <= oldest;
    if (live && document.activeElement !== slider) slider.value = slider.max;
    if (live) setText(when, words(bounds.end, null));
    ends.hidden = slider.disabled;
    setText(ends.firstChild, slider.disabled ? "" : `the oldest that is kept: ${count(oldest)}`);
    setText(ends.lastChild, slider.disabled ? "" : `now: ${count(bounds.end)}`);
    setText(tight, slider.disabled ? "There is nothing to slide over: this stream keeps no replaced versions. Give it a history (x-stream-history, in ms), or pin a moment to come back to it." : "");
    drawMode();
    drawTicks();
  };
}
