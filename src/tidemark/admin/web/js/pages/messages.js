// Publishing by hand, and looking into a queue.

import { at, post } from "../api.js";
import { fill, h } from "../dom.js";
import { openForm } from "../forms.js";
import { count, plural } from "../format.js";
import { button, dialog, empty, factList, notice, say } from "../ui.js";
import { viewer } from "../viewer.js";

const PROPERTIES = [
  ["content_type", "text", "Content type"],
  ["delivery_mode", "number", "Delivery mode"],
  ["message_id", "text", "Message id"],
  ["correlation_id", "text", "Correlation id"],
  ["reply_to", "text", "Reply to"],
  ["expiration", "text", "Expiration"],
  ["priority", "number"],
  ["type", "text"],
  ["app_id", "text"],
  ["user_id", "text"],
];

/** Publish to an exchange; for a queue that is the default exchange with the queue's name as the key. */
export function openPublish(page, { vhost, exchange, key = "", fixedKey = false }) {
  openForm(fixedKey ? `Publish to ${key}` : `Publish to ${exchange || "the default exchange"}`, {
    action: "Publish",
    wide: true,
    fields: [
      !fixedKey && { name: "key", label: "Routing key", value: key },
      { name: "payload", label: "Payload", kind: "area", rows: 7 },
      { name: "encoding", label: "Payload is", kind: "select", options: [["string", "text"], ["base64", "base64"]], value: "string", narrow: true },
      { name: "persistent", label: "Persistent", kind: "check", value: true, hint: "It survives a restart in a durable queue." },
      { name: "headers", label: "Headers", kind: "pairs", known: [] },
      { name: "properties", label: "Properties", kind: "pairs", known: PROPERTIES },
    ],
    submit: async (values) => {
      const routing = fixedKey ? key : values.key;
      const properties = { delivery_mode: values.persistent ? 2 : 1, ...values.properties };
      if (Object.keys(values.headers).length) properties.headers = values.headers;
      const { routed } = await post(`/exchanges${at(vhost, exchange || "amq.default")}/publish`, { properties, routing_key: routing, payload: values.payload, payload_encoding: values.encoding });
      if (routed) say("Published.");
      else say("The broker took the message, but no queue is bound for it: it is gone.", "warn");
      page.refresh();
    },
  });
}

const MODES = [
  ["ack_requeue_true", "Look only: they go back into the queue"],
  ["ack_requeue_false", "Take them: they are gone from the queue"],
  ["reject_requeue_false", "Reject them: dropped or dead-lettered"],
];

/** Get messages from a queue. */
export function openGet(page, { vhost, name }) {
  const { body } = dialog(`Messages of ${name}`, { wide: true });
  const mode = h("select", { "aria-label": "What becomes of them" }, MODES.map(([value, text]) => h("option", { value }, text)));
  const number = h("input", { type: "number", min: 1, max: 100, value: 5, "aria-label": "How many" });
  const found = h("div", { class: "messages" }, empty("Nothing asked for yet", "Messages that go back are marked as redelivered, as in RabbitMQ."));
  const go = button("Get", async () => {
    go.disabled = true;
    try {
      const messages = await post(`/queues${at(vhost, name)}/get`, { count: Number(number.value) || 1, ackmode: mode.value, encoding: "auto", truncate: 200_000 });
      if (messages.length) fill(found, messages.map(drawMessage));
      else fill(found, empty("The queue gave nothing", "It has no ready message."));
      if (mode.value !== MODES[0][0] && messages.length) say(`${plural(messages.length, "message")} taken out.`);
      page.refresh();
    } catch (error) {
      fill(found, notice("bad", error.message));
    } finally {
      go.disabled = false;
    }
  }, { kind: "primary" });
  fill(body, h("div", { class: "toolbar" }, mode, number, go), found);
  number.focus();
  number.select();
}

export function drawMessage(message, index = 0) {
  const facts = factList("Message");
  const { headers, ...properties } = message.properties ?? {};
  facts.show([
    ["Exchange", message.exchange || "(default)"],
    ["Routing key", message.routing_key ?? ""],
    ["Redelivered", message.redelivered ? "yes" : "no"],
    message.message_count !== undefined && ["Still in the queue", count(message.message_count)],
    ...Object.entries(properties).map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)]),
    ...Object.entries(headers ?? {}).map(([name, value]) => [`header ${name}`, typeof value === "object" ? JSON.stringify(value) : String(value)]),
  ]);
  return h("article", { class: "message", "aria-label": `Message ${index + 1}` }, facts.node, viewer(message.payload ?? "", message.payload_encoding, message.payload_bytes));
}
