// All queues: search, sort, pages; declare one.

import { at, put } from "../api.js";
import { h } from "../dom.js";
import { openForm } from "../forms.js";
import { count, rate, shownName } from "../format.js";
import { to } from "../routes.js";
import { badge, button, empty, figure, heading, link, sheet, state } from "../ui.js";
import { longList } from "./lists.js";

export const QUEUE_ARGUMENTS = [
  ["x-message-ttl", "number", "Message TTL"],
  ["x-max-length", "number", "Max length"],
  ["x-dead-letter-exchange", "text", "Dead letter exchange"],
  ["x-dead-letter-routing-key", "text", "Dead letter routing key"],
  ["x-expires", "number", "Expires"],
  ["x-max-priority", "number", "Priorities"],
  ["x-max-length-bytes", "number"],
  ["x-overflow", "text"],
  ["x-single-active-consumer", "boolean"],
  ["x-delivery-limit", "number"],
  ["x-stream-key", "text"],
  ["x-stream-shards", "number"],
  ["x-max-age", "text"],
  ["x-stream-history", "number"],
  ["x-group", "text"],
  ["x-cluster-mode", "text"],
  ["x-replicate", "text"],
];

const SHORT = { "x-message-ttl": "TTL", "x-max-length": "Lim", "x-max-length-bytes": "Lim B", "x-dead-letter-exchange": "DLX", "x-dead-letter-routing-key": "DLK", "x-expires": "Exp", "x-max-priority": "Pri", "x-overflow": "Ovfl", "x-single-active-consumer": "SAC", "x-delivery-limit": "DL" };

/** What is special about a queue, in a few letters with words behind them. */
export function features(one) {
  const found = [];
  if (one.type && one.type !== "classic") found.push(badge(one.type, "accent"));
  if (one.durable) found.push(badge("D", "", "durable: it survives a restart"));
  if (one.auto_delete) found.push(badge("AD", "", "auto-delete: it goes with its last consumer"));
  if (one.exclusive) found.push(badge("Excl", "", "exclusive: it belongs to one connection"));
  for (const [name, value] of Object.entries(one.arguments ?? {})) {
    if (name !== "x-queue-type") found.push(badge(SHORT[name] ?? name.replace(/^x-/, ""), "", `${name}: ${JSON.stringify(value)}`));
  }
  if (one.policy) found.push(badge(one.policy, "accent", `policy: ${one.policy}`));
  if (one.operator_policy) found.push(badge(one.operator_policy, "accent", `operator policy: ${one.operator_policy}`));
  return found;
}

const TONES = { running: "good", idle: "quiet", locked: "warn", flow: "warn", down: "bad", stopped: "bad" };
export const queueState = (word) => state(word ?? "running", TONES[word ?? "running"] ?? "quiet");

const speed = (name) => (one) => one.message_stats?.[`${name}_details`]?.rate ?? null;
const sorted = (name) => `message_stats.${name}_details.rate`;

export function openQueues(page) {
  const manyHosts = (page.shell.vhosts?.length ?? 0) !== 1 && !page.vhost;
  const declare = () => declareQueue(page);
  const list = longList(page, {
    path: page.scoped("/queues"),
    label: "Queues",
    key: (one) => `${one.vhost}\n${one.name}`,
    none: empty("No queue is like that", "There is none yet, or your search finds none.", button("Declare a queue", declare, { kind: "primary" })),
    columns: [
      manyHosts && { name: "vhost", label: "Virtual host", of: (one) => one.vhost, sort: "vhost", class: "quiet-cell" },
      { name: "name", label: "Name", of: (one) => [one.vhost, one.name], cell: ([vhost, name]) => link(to("queues", vhost, name), shownName(name)), sort: "name", class: "name-cell" },
      { name: "features", label: "Features", of: ({ type, durable, auto_delete, exclusive, arguments: given, policy, operator_policy }) => ({ type, durable, auto_delete, exclusive, arguments: given, policy, operator_policy }), cell: (one) => h("span", { class: "badges" }, features(one)), class: "wide-cell" },
      { name: "state", label: "State", of: (one) => one.state, cell: queueState, sort: "state" },
      { name: "ready", label: "Ready", of: (one) => one.messages_ready, cell: figure(count), number: true, sort: "messages_ready" },
      { name: "unacked", label: "Unacked", of: (one) => one.messages_unacknowledged, cell: figure(count), number: true, sort: "messages_unacknowledged" },
      { name: "total", label: "Total", of: (one) => one.messages, cell: figure(count), number: true, sort: "messages" },
      { name: "in", label: "In", of: speed("publish"), cell: figure(rate), number: true, sort: sorted("publish") },
      { name: "out", label: "Delivered", of: speed("deliver_get"), cell: figure(rate), number: true, sort: sorted("deliver_get") },
      { name: "ack", label: "Acked", of: speed("ack"), cell: figure(rate), number: true, sort: sorted("ack") },
      { name: "consumers", label: "Consumers", of: (one) => one.consumers, cell: figure(count), number: true, sort: "consumers" },
    ].filter(Boolean),
  });
  page.show(
    heading("Queues", { actions: [button("Declare a queue", declare, { kind: "primary", icon: "plus", shortcut: "n" })] }),
    sheet("Queues", list.toolbar, list.node, list.pager));
}

function declareQueue(page) {
  openForm("Declare a queue", {
    action: "Declare",
    wide: true,
    fields: [
      hostField(page),
      { name: "name", label: "Name", required: true },
      { name: "type", label: "Type", kind: "select", options: [["classic", "Classic: messages go when they are acknowledged"], ["stream", "Stream: messages stay, newest of each key"]], value: "classic" },
      { name: "durable", label: "Durable", kind: "check", value: true, hint: "It survives a restart of the broker." },
      { name: "auto_delete", label: "Auto-delete", kind: "check", hint: "It is deleted when its last consumer leaves." },
      { name: "arguments", label: "Arguments", kind: "pairs", known: QUEUE_ARGUMENTS },
    ],
    submit: async ({ vhost, name, type, durable, auto_delete, arguments: given }) => {
      const all = type === "stream" ? { "x-queue-type": "stream", ...given } : given;
      await put(`/queues${at(vhost, name)}`, { durable, auto_delete, arguments: all });
      location.hash = to("queues", vhost, name);
    },
  });
}

/** Which virtual host; a choice only where there is one. */
export const hostField = (page) => ({ name: "vhost", label: "Virtual host", kind: "select", options: page.shell.vhosts?.length ? page.shell.vhosts : ["/"], value: page.vhost || "/" });
