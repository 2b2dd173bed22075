// Looking into a stream: pages of messages by key and sequence, at any moment that is still kept, and the past of one key.

import { get, withQuery } from "../api.js";
import { append, fill, h, icon, setText } from "../dom.js";
import { bytes, count, moment, shownName } from "../format.js";
import { table } from "../table.js";
import { badge, button, card, dialog, empty, factList, link, notice, skeleton, state } from "../ui.js";
import { glimpse, viewer } from "../viewer.js";
import { openPin } from "./stream.js";

const LIMIT = 50;
const SLIDE_MS = 120;
/** Before this there is everything. */
const END = Number.MAX_SAFE_INTEGER;

export function openMessages(page, path, body) {
  const asked = { at: page.query.at ?? "", at_ms: page.query.at_ms ?? "", key: page.query.key ?? "", how: page.query.how ?? "key", newest: page.query.order !== "oldest", from: page.query.from ?? "" };
  /** Where the pages before this one began, for the way back. */
  const trail = [];
  let bounds = { oldest: 0, end: 0 };
  let next = null;
  let live = true;

  // The slider: from the oldest moment that can be shown to now.
  const slider = h("input", { type: "range", min: 0, max: 1, value: 1, step: 1, "aria-label": "As of which sequence", class: "slider" });
  const ticks = h("div", { class: "ticks" });
  const ends = h("div", { class: "slide-ends hint" }, h("span"), h("span"));
  const when = h("output", { class: "slider-when", "aria-live": "polite" });
  const sequence = h("input", { type: "number", min: 0, placeholder: "now", "aria-label": "As of sequence", class: "narrow-input" });
  const time = h("input", { type: "datetime-local", step: "1", "aria-label": "As of time" });
  const now = button("Now", () => change({ at: "", at_ms: "" }), { kind: "small", icon: "clock" });
  const keep = button("Pin this moment", () => openPin(page, path, asked.at === "" ? null : Number(asked.at)), { kind: "small", icon: "pin" });
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
  append(body, [
    card("As of", { actions: [now, keep] },
      h("div", { class: "slide" }, slider, ticks),
      ends,
      h("div", { class: "toolbar" }, when, h("span", { class: "grow" }), h("label", { class: "inline" }, "Sequence", sequence), h("label", { class: "inline" }, "Time", time)),
      tight),
    card("Messages",
      h("div", { class: "toolbar", role: "search" }, h("label", { class: "inline" }, "Key", how), key, order, h("label", { class: "inline" }, asked.newest ? "Before" : "After", from)),
      rows.node,
      h("div", { class: "pager" }, where, h("span", { class: "pager-steps" }, back, forth))),
  ]);

  const address = () => {
    const place = asked.from === "" ? {} : asked.newest ? { before: asked.from } : { after: asked.from };
    if (asked.newest && asked.from === "") place.before = END;
    return withQuery(`${path}/messages`, { at: asked.at, at_ms: asked.at_ms, [asked.how]: asked.key, limit: LIMIT, ...place });
  };

  function change(values, step = false) {
    Object.assign(asked, values);
    if (!step) {
      trail.length = 0;
      if (!("from" in values)) asked.from = "";
    }
    from.value = asked.from;
    setText(back.lastChild, asked.newest ? "Newer" : "Older");
    setText(forth.firstChild, asked.newest ? "Older" : "Newer");
    from.parentNode.firstChild.textContent = asked.newest ? "Before" : "After";
    page.remember({ at: asked.at, at_ms: asked.at_ms, key: asked.key, how: asked.how === "key" ? "" : asked.how, order: asked.newest ? "" : "oldest", from: asked.from });
    live = asked.at === "" && asked.at_ms === "";
    watch.change(address());
  }

  function turn(step) {
    if (step > 0 && next !== null) {
      trail.push(asked.from);
      change({ from: String(next) }, true);
    } else if (step < 0 && trail.length) {
      change({ from: trail.pop() }, true);
    }
  }

  const words = (value, ms) => (value >= bounds.end && live ? `Now: sequence ${count(value)}` : `As it was at sequence ${count(value)}${ms ? `, ${moment(ms)}` : ""}`);

  live = asked.at === "" && asked.at_ms === "";
  const watch = page.watch(address(), (found) => {
    next = (asked.newest ? found.previous : found.next) ?? null;
    rows.show(asked.newest ? [...found.items].reverse() : found.items);
    back.disabled = !trail.length;
    forth.disabled = next === null;
    setText(where, found.items.length ? `${count(found.items.length)} messages from sequence ${count(Math.min(...found.items.map((one) => one.sequence)))} to ${count(Math.max(...found.items.map((one) => one.sequence)))}` : "");
    const shown = found.at ?? bounds.end;
    setText(when, words(shown, found.at_ms));
    if (document.activeElement !== slider) slider.value = String(live ? bounds.end : shown);
    if (document.activeElement !== sequence) sequence.value = live ? "" : String(shown);
    if (document.activeElement !== time) time.value = live || !found.at_ms ? "" : moment(found.at_ms).replace(" ", "T");
    now.disabled = live;
  }, (problem) => rows.fail(problem));

  page.watch(`${path}/pins`, (list) => drawTicks(list), () => {});

  let pins = [];
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
    bounds = { oldest, end: one.boundary ?? one.last_seq ?? 0 };
    slider.min = String(oldest);
    slider.max = String(Math.max(bounds.end, oldest));
    slider.disabled = bounds.end <= oldest;
    if (live && document.activeElement !== slider) slider.value = slider.max;
    if (live) setText(when, words(bounds.end, null));
    setText(ends.firstChild, slider.disabled ? "" : `the oldest that is kept: ${count(oldest)}`);
    setText(ends.lastChild, slider.disabled ? "" : `now: ${count(bounds.end)}`);
    setText(tight, slider.disabled ? "There is nothing to slide over: this stream keeps no replaced versions. Give it a history (x-stream-history, in ms), or pin a moment to come back to it." : "");
    drawTicks();
  };
}

// One message, one key --------------------------------------------------------------------------------------

function openMessage(page, path, one) {
  const { body } = dialog(`Message ${count(one.sequence)}`, { wide: true });
  body.append(drawItem(one), one.key !== null && one.key !== undefined ? h("footer", { class: "dialog-foot" }, button("The past of this key", () => openKey(page, path, one))) : "");
}

function drawItem(one) {
  const facts = factList("Message");
  facts.show([
    ["Sequence", count(one.sequence)],
    ["Time", moment(one.timestamp, true)],
    ["Key", one.key === null || one.key === undefined ? "none" : h("code", null, shownName(one.key), one.key_encoding === "base64" ? " (base64)" : "")],
    one.superseded_by !== undefined && ["Replaced by", one.superseded_by === null ? "nothing: it is the newest" : count(one.superseded_by)],
    ...Object.entries(one.properties ?? {}).map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)]),
    ...Object.entries(one.headers ?? {}).map(([name, value]) => [`header ${name}`, typeof value === "object" ? JSON.stringify(value) : String(value)]),
  ]);
  return h("div", { class: "message" }, facts.node,
    one.tombstone ? empty("Deleted", "This message says that the key is gone.") : [one.cut ? notice("info", `Only the beginning is shown: the whole value has ${bytes(one.bytes)}.`) : null, viewer(one.value ?? "", one.encoding, one.bytes)]);
}

/** A key may be any bytes: those that are no text are quoted one by one. */
const quotedKey = (one) =>
  one.key_encoding === "base64" ? [...atob(one.key)].map((sign) => `%${sign.charCodeAt(0).toString(16).padStart(2, "0")}`).join("") : encodeURIComponent(one.key);

/** What a key was, newest first, as far as it is still kept. */
async function openKey(page, path, one) {
  const { body } = dialog(`Key ${shownName(one.key)}`, { wide: true });
  fill(body, skeleton(4));
  let found;
  try {
    found = await get(`${path}/keys/${quotedKey(one)}`);
  } catch (error) {
    fill(body, notice("bad", error.message));
    return;
  }
  const all = found.revisions ?? [];
  if (!all.length) {
    fill(body, empty("Nothing is left of it", "No version of this key is kept any more."));
    return;
  }
  fill(body, h("p", { class: "hint" }, all.length === 1 ? "One version is kept: replaced ones go when nobody needs them." : `${count(all.length)} versions are kept, the newest first.`),
    h("ol", { class: "timeline" }, all.map((item, index) => h("li", { class: item.tombstone ? "bad" : index ? "" : "accent" },
      h("details", { open: index === 0 },
        h("summary", null, h("b", null, `Sequence ${count(item.sequence)}`), " ", h("span", { class: "muted" }, moment(item.timestamp, true)), " ", item.tombstone ? badge("deleted", "bad") : item.current ? state("current", "good") : null,
          index && !item.tombstone ? h("code", { class: "glimpse" }, glimpse(item.value, item.encoding, 60)) : null),
        drawItem(item),
        h("p", null, link(`${location.hash.split("?")[0]}?at=${item.sequence}`, "The stream as it was then")))))));
}
