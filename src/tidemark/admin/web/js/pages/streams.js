// All streams: what they hold, how far they go, who follows them.

import { at, put } from "../api.js";
import { openForm } from "../forms.js";
import { bytes, count, shownName } from "../format.js";
import { to } from "../routes.js";
import { badge, button, empty, figure, heading, link, sheet } from "../ui.js";
import { longList } from "./lists.js";
import { hostField } from "./queues.js";

export function openStreams(page) {
  const declare = () => declareStream(page);
  const manyHosts = (page.shell.vhosts?.length ?? 0) !== 1 && !page.vhost;
  const list = longList(page, {
    path: page.scoped("/streams"),
    label: "Streams",
    regex: false,
    key: (one) => `${one.vhost}\n${one.name}`,
    none: empty("No stream yet", "A stream keeps its messages when they were read; with a key, the newest of each key.", button("Make a stream", declare, { kind: "primary" })),
    columns: [
      manyHosts && { name: "vhost", label: "Virtual host", of: (one) => one.vhost, sort: "vhost", class: "quiet-cell" },
      { name: "name", label: "Name", of: (one) => [one.vhost, one.name], cell: ([vhost, name]) => link(to("streams", vhost, name), shownName(name)), sort: "name", class: "name-cell" },
      { name: "key", label: "Key", of: (one) => one.key, cell: (key) => badge(key || "none", key && key !== "none" ? "accent" : "") },
      { name: "live", label: "Messages", title: "each key once, and those without a key", of: (one) => one.live, cell: figure(count), number: true, sort: "live" },
      { name: "bytes", label: "Bytes", of: (one) => one.live_bytes, cell: bytes, number: true, sort: "live_bytes" },
      { name: "held", label: "Kept of the past", class: "wide-cell", title: "superseded messages that snapshots, pins or the history keep", of: (one) => [one.held, one.held_bytes], cell: ([number, size]) => (number ? `${count(number)} · ${bytes(size)}` : "–"), number: true, sort: "held_bytes" },
      { name: "boundary", label: "Up to sequence", of: (one) => one.boundary, cell: figure(count), number: true, sort: "boundary" },
      { name: "shards", label: "Shards", of: (one) => one.shards, cell: figure(count), number: true, sort: "shards" },
      { name: "marks", label: "Marks", of: (one) => one.marks, cell: figure(count), number: true, sort: "marks" },
      { name: "pins", label: "Pins", of: (one) => one.pins, cell: figure(count), number: true, sort: "pins" },
      { name: "consumers", label: "Consumers", of: (one) => one.consumers, cell: figure(count), number: true, sort: "consumers" },
    ].filter(Boolean),
  });
  page.show(
    heading("Streams", { actions: [button("Make a stream", declare, { kind: "primary", icon: "plus", shortcut: "n" })] }),
    sheet("Streams", list.toolbar, list.node, list.pager));
}

function declareStream(page) {
  openForm("Make a stream", {
    action: "Make it",
    fields: [
      hostField(page),
      { name: "name", label: "Name", required: true },
      { name: "key", label: "Key of a message", kind: "select", value: "routing-key", options: [["routing-key", "its routing key"], ["message-id", "its message id"], ["none", "none: everything is kept, in order"], ["log", "keys are kept, nothing is ever buried"]] },
      { name: "shards", label: "Shards", kind: "number", value: 1, min: 1, narrow: true },
      { name: "age", label: "Keep messages for", placeholder: "for ever; or 7D, 12h, 30m", narrow: true },
      { name: "history", label: "Keep replaced versions for (s)", kind: "number", value: 0, min: 0, narrow: true, hint: "So far back the time slider reaches." },
    ],
    submit: async ({ vhost, name, key, shards, age, history }) => {
      const given = { "x-stream-key": key, "x-stream-shards": shards || 1 };
      if (age) given["x-max-age"] = age;
      if (history) given["x-stream-history"] = history * 1000;
      await put(`/streams${at(vhost, name)}`, { arguments: given });
      location.hash = to("streams", vhost, name);
    },
  });
}
