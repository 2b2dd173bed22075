// One stream: its messages at any moment that is still kept, the marks of those who follow it, pins and their cost.

import { at, del, post, put } from "../api.js";
import { fill, h } from "../dom.js";
import { openForm } from "../forms.js";
import { bytes, count, duration, moment, plural, shownName } from "../format.js";
import { to } from "../routes.js";
import { table } from "../table.js";
import { ask, badge, button, card, empty, factList, figure, heading, link, state, tabs } from "../ui.js";
import { openMessages } from "./browse.js";
import { openPublish } from "./messages.js";

const TABS = [["messages", "Messages"], ["marks", "Marks"], ["pins", "Pins and snapshots"], ["takeovers", "Takeover table"], ["facts", "Facts"]];

export function openStream(page) {
  const [vhost, name, tab = "messages"] = page.params;
  const path = `/streams${at(vhost, name)}`;
  const note = h("span", { class: "badges" });
  const body = h("div", { class: "stack" });
  const numbers = h("div", { class: "counts" });
  page.show(
    heading(shownName(name), {
      above: [link("#/streams", "Streams"), " in ", vhost],
      note,
      actions: [
        button("Publish", () => openPublish(page, { vhost, exchange: "", key: name, fixedKey: true }), { kind: "primary" }),
        button("Pin now", () => openPin(page, path), { icon: "pin" }),
        link(to("queues", vhost, name), "As a queue", { class: "button" }),
        button("Delete", remove, { kind: "danger" }),
      ],
    }),
    numbers,
    tabs("Views of the stream", TABS.map(([word, text]) => [word, word === "messages" ? to("streams", vhost, name) : to("streams", vhost, name, word), text]), tab),
    body);

  const view = { messages: openMessages, marks: openMarks, pins: openPins, takeovers: openTakeovers, facts: openFacts }[tab] ?? openMessages;
  const heard = view(page, path, body) ?? (() => {});

  page.watch(path, (one) => {
    fill(note, badge(one.key && one.key !== "none" ? `key: ${one.key}` : "key: only as put", "accent", one.key === "none" ? "A put of the client brings its own key; what is published over AMQP has none." : null), one.shards > 1 ? badge(plural(one.shards, "shard")) : null, one.policy ? badge(one.policy, "accent", `policy: ${one.policy}`) : null);
    const word = (number, one) => (number === 1 ? one : `${one}s`);
    const entry = (value, words, href) => h(href ? "a" : "span", { class: "count", href }, h("b", null, value), ` ${words}`);
    fill(numbers,
      entry(count(one.live), word(one.live, one.key && one.key !== "none" ? "key" : "message")), entry(bytes(one.live_bytes), "live"),
      entry(count(one.held), "kept of the past"), entry(count(one.tombstones), word(one.tombstones, "tombstone")),
      entry(count(one.boundary), "last sequence"), entry(count(one.marks), word(one.marks, "mark"), to("streams", vhost, name, "marks")), entry(count(one.pins), word(one.pins, "pin"), to("streams", vhost, name, "pins")));
    heard(one);
  });

  async function remove() {
    if (!(await ask(`Delete ${shownName(name)}?`, "The stream with all that is in it, its marks and its pins are gone then. They do not come back.", { typed: name }))) return;
    page.act(() => del(path), `${shownName(name)} is deleted.`, "#/streams");
  }
}

// Marks -----------------------------------------------------------------------------------------------------

function openMarks(page, path, body) {
  const rows = table("Marks", [
    { name: "consumer", label: "Consumer", of: (one) => one.consumer, cell: shownName, class: "name-cell" },
    { name: "state", label: "State", of: (one) => [one.expired, one.registered, one.behind], cell: ([expired, registered, behind]) => (expired ? state("lease ended", "bad") : behind ? state("behind", "warn") : registered ? state("up to date", "good") : state("at the end", "quiet")) },
    { name: "sequence", label: "At sequence", of: (one) => one.sequence, cell: figure(count), number: true },
    { name: "keys", label: "Behind, in keys", title: "how many different keys it has still to read", of: (one) => one.keys_behind ?? null, cell: figure(count), number: true },
    { name: "behind", label: "Behind, in sequences", of: (one) => one.behind, cell: figure(count), number: true },
    { name: "rate", label: "Speed", of: (one) => one.rate ?? null, cell: (value) => (value === null ? "–" : `${count(Math.round(value))} keys/s`), number: true },
    { name: "eta", label: "Caught up in", of: (one) => [one.eta_s ?? null, one.behind], cell: ([eta, behind]) => (!behind ? "now" : eta === null ? "unknown" : duration(eta * 1000)), number: true },
    { name: "lease", label: "Lease until", of: (one) => one.lease_until_ms, cell: (ms) => (ms ? moment(ms) : "no lease") },
    { name: "act", label: "", of: () => 0, cell: (_, one) => [button("Reset", () => reset(one), { kind: "small" }), button("Forget", () => forget(one), { kind: "small" })], class: "actions-cell" },
  ], { key: (one) => one.consumer, none: empty("No consumer has a mark here", "A consumer that follows the stream under a name has one; it goes on behind it when it comes back.") });
  body.append(card("Marks", h("p", { class: "hint" }, "A mark says up to where a consumer has finished. What it is behind counts each key once, because it reads only the newest of each."), rows.node));
  page.watch(`${path}/marks`, (list) => rows.show(list), (words) => rows.fail(words));

  const reset = (one) => openForm(`Send ${shownName(one.consumer)} elsewhere`, {
    action: "Reset",
    intro: "It goes on behind this sequence when it asks next. 0 is the beginning: it reads everything again.",
    fields: [{ name: "sequence", label: "Sequence", kind: "number", value: 0, min: 0, required: true }],
    submit: async ({ sequence }) => {
      await put(`${path}/marks${at(one.consumer)}`, { sequence });
      page.refresh();
    },
  });
  const forget = async (one) => {
    if (!(await ask(`Forget ${shownName(one.consumer)}?`, "Its mark is removed, and deletes no longer wait for it. If it comes back it begins at the beginning.", { confirm: "Forget" }))) return;
    page.act(() => del(`${path}/marks${at(one.consumer)}`), "Forgotten.");
  };
}

// Pins ------------------------------------------------------------------------------------------------------

export function openPin(page, path, sequence = null) {
  openForm("Pin the stream", {
    action: "Pin",
    intro: sequence === null ? "What the stream holds now can be read byte for byte until the pin is released or its lease ends." : `The stream as it was at sequence ${count(sequence)} can be read until the pin is released or its lease ends.`,
    fields: [
      { name: "name", label: "Name", required: true },
      { name: "lease", label: "Lease (minutes)", kind: "number", value: 60, min: 1, narrow: true },
    ],
    submit: async ({ name, lease }) => {
      const wanted = { name, lease_ms: (lease || 60) * 60_000 };
      if (sequence !== null) wanted.at = sequence;
      await post(`${path}/pins`, wanted);
      page.refresh();
    },
  });
}

function openPins(page, path, body) {
  const [vhost, name] = page.params;
  const most = { bytes: 0 };
  const rows = table("Pins", [
    { name: "name", label: "Pin", of: (one) => one.name, cell: shownName, class: "name-cell" },
    { name: "sequence", label: "At sequence", of: (one) => one.sequence, cell: (sequence) => link(`${to("streams", vhost, name)}?at=${sequence}`, count(sequence)), number: true },
    { name: "lease", label: "Lease until", of: (one) => one.lease_until_ms, cell: (ms) => (ms ? moment(ms) : "for ever") },
    { name: "messages", label: "Messages kept", title: "versions that were replaced since and are there only for it", of: (one) => one.messages_kept, cell: figure(count), number: true },
    { name: "bytes", label: "What it costs", of: (one) => [one.bytes_kept, most.bytes], cell: ([size, largest]) => costBar(size, largest), number: true },
    { name: "act", label: "", of: () => 0, cell: (_, one) => [link(`${to("streams", vhost, name)}?since=${one.sequence}`, "Compare with now", { class: "button small" }), button("Release", () => release(one), { kind: "small" })], class: "actions-cell" },
  ], { key: (one) => one.name, none: empty("Nothing is pinned", "A pin is a snapshot with a name: it can be read again and again while the stream goes on.", button("Pin now", () => openPin(page, path), { kind: "primary" })) });
  const open = table("Snapshots", [
    { name: "sequence", label: "At sequence", of: (one) => one.sequence, cell: (sequence) => link(`${to("streams", vhost, name)}?at=${sequence}`, count(sequence)), number: true },
    { name: "kind", label: "What it is", of: (one) => [one.kind, one.name ?? ""], cell: ([kind, word]) => ({ open: "a reader", pin: `the pin ${shownName(word)}`, history: "the oldest moment that is kept", now: "now" })[kind] ?? kind, class: "wide-cell" },
    { name: "when", label: "Last read", of: (one) => one.used_ms ?? null, cell: (ms) => moment(ms) },
  ], { key: (one) => `${one.kind} ${one.sequence} ${one.name ?? ""}`, none: empty("No snapshot is open", "A reader has one open while it reads.") });
  body.append(card("Pins", rows.node), card("Moments that can be looked at", open.node));
  page.watch(`${path}/pins`, (list) => {
    most.bytes = Math.max(1, ...list.map((one) => one.bytes_kept ?? 0));
    rows.show(list);
  }, (words) => rows.fail(words));
  page.watch(`${path}/snapshots`, (list) => open.show(list), (words) => open.fail(words));

  const release = async (one) => {
    if (!(await ask(`Release ${shownName(one.name)}?`, `The ${bytes(one.bytes_kept)} that only it keeps are given back; what it showed cannot be read any more.`, { confirm: "Release" }))) return;
    page.act(() => del(`${path}/pins${at(one.name)}`), "Released.");
  };
}

function costBar(size, largest) {
  const bar = h("i");
  bar.style.width = `${Math.round((100 * (size ?? 0)) / (largest || 1))}%`;
  return h("span", { class: "cost" }, h("span", { class: "cost-bar", "aria-hidden": "true" }, bar), bytes(size));
}

// The rest --------------------------------------------------------------------------------------------------

function openTakeovers(page, _path, body) {
  const rows = table("Takeover table", [
    { name: "history", label: "History", of: (one) => one.history, cell: (text) => h("code", null, text), class: "wide-cell" },
    { name: "first", label: "From sequence", of: (one) => (typeof one.first === "object" && one.first !== null ? one.first.journal : one.first), cell: figure(count), number: true },
  ], { key: (one) => one.history, none: empty("One history only", "Nobody has taken over since the stream was made.") });
  body.append(card("Takeover table", h("p", { class: "hint" }, "Every start of a broker and every takeover begins a new history. A position is a pair of history and sequence, so a reader that was on a branch that is gone is told so."), rows.node));
  page.watch("/histories", (list) => rows.show(list), (words) => rows.fail(words));
}

function openFacts(_page, _path, body) {
  const facts = factList("Facts of the stream");
  body.append(card("Facts", facts.node));
  return (one) => facts.show([
    ["Virtual host", one.vhost],
    ["Key", one.key || "none"],
    ["Shards", count(one.shards)],
    ["Live messages", count(one.live)],
    ["Live bytes", bytes(one.live_bytes)],
    ["Tombstones", count(one.tombstones)],
    ["Kept of the past", `${count(one.held)} · ${bytes(one.held_bytes)}`],
    ["First sequence", count(one.first_seq)],
    ["Last sequence", count(one.last_seq)],
    ["Snapshots are taken at", count(one.boundary)],
    ["Oldest snapshot at", count(one.oldest_snapshot)],
    ["Ended up to", count(one.floor)],
    ["Deletes told from", count(one.purged)],
    ["Index in memory", bytes(one.memory_bytes)],
    ["Published since the start", count(one.published)],
    ["Open snapshots", count(one.snapshots)],
    ["Registered consumers", count(one.registered)],
    ["Consumers now", count(one.consumers)],
    ["History", h("code", null, one.history ?? "–")],
    ["Node", one.node ?? "–"],
    ...Object.entries(one.arguments ?? {}).map(([key, value]) => [h("code", null, key), typeof value === "object" ? JSON.stringify(value) : String(value)]),
  ]);
}
