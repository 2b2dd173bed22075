// One queue: how it does, who takes from it, what leads to it, and what can be done with it.

import { at, del, get, put, withQuery } from "../api.js";
import { Chart, Rates, levelsOf, ratesOf, spanChoice } from "../chart.js";
import { fill, h } from "../dom.js";
import { bytes, count, moment, rate, shownName } from "../format.js";
import { to } from "../routes.js";
import { table } from "../table.js";
import { ask, badge, button, card, empty, factList, figure, heading, link, notice } from "../ui.js";
import { bindingPicture, bindingTable, openBind } from "./bindings.js";
import { openGet, openPublish } from "./messages.js";
import { features, queueState } from "./queues.js";

const FLOWS = ["publish", "deliver_get", "ack", "redeliver"];
const LEVELS = ["messages_ready", "messages_unacknowledged"];
const PAST = { msg_rates_age: 600, msg_rates_incr: 5, lengths_age: 600, lengths_incr: 5 };

export function openQueue(page) {
  const [vhost, name] = page.params;
  const path = `/queues${at(vhost, name)}`;
  const levels = new Chart("Messages in the queue", [{ name: "messages_ready", label: "Ready", tone: 1 }, { name: "messages_unacknowledged", label: "Unacknowledged", tone: 4 }], count, true);
  const rates = new Chart("Message rates of the queue", [{ name: "publish", label: "Published" }, { name: "deliver_get", label: "Delivered", tone: 2 }, { name: "ack", label: "Acknowledged", tone: 3 }, { name: "redeliver", label: "Redelivered", tone: 4 }], rate);
  const flow = new Rates();
  const note = h("span", { class: "badges" });
  const hint = h("div");
  const facts = factList("Facts of the queue");
  const policy = h("div");
  const consumers = table("Consumers", [
    { name: "tag", label: "Tag", of: (one) => one.consumer_tag, cell: (tag) => h("code", null, shownName(tag)) },
    { name: "channel", label: "Channel", of: (one) => one.channel_details?.name ?? null, cell: (text, one) => (text ? (one.channel_details.connection_name ? link(to("connections", one.channel_details.connection_name), text) : text) : "–") },
    { name: "ack", label: "Acknowledges", of: (one) => one.ack_required, cell: (yes) => (yes ? "yes" : "no") },
    { name: "prefetch", label: "Prefetch", of: (one) => one.prefetch_count, cell: figure(count), number: true },
    { name: "state", label: "State", of: (one) => one.activity_status ?? (one.active ? "up" : "waiting") },
  ], { key: (one) => `${one.channel_details?.name ?? ""} ${one.consumer_tag}`, none: empty("Nobody consumes", "Messages wait until somebody does.") });
  const picture = bindingPicture(`What leads to ${name}`);
  const bindings = bindingTable(page, "Bindings");
  const lock = button("Lock", () => toggleLock(), { kind: "small", title: "Consumers get nothing more until it is unlocked" });
  let locked = false;

  page.show(
    heading(shownName(name), {
      above: [link("#/queues", "Queues"), " in ", vhost],
      note,
      actions: [
        button("Publish", () => openPublish(page, { vhost, exchange: "", key: name, fixedKey: true }), { kind: "primary" }),
        button("Get messages", () => openGet(page, { vhost, name })),
        button("Purge", purge),
        button("Delete", remove, { kind: "danger" }),
      ],
    }),
    hint,
    h("div", { class: "grid-2" }, card("Messages", { actions: spanChoice() }, levels.node), card("Rates", rates.node)),
    h("div", { class: "grid-2" }, card("Facts", { actions: lock }, facts.node), card("Policy in force", { actions: link("#/policies", "Policies") }, policy)),
    card("Consumers", consumers.node),
    card("Bindings", { actions: button("Bind", () => openBind(page, { vhost, destination: name }), { kind: "small", icon: "plus", shortcut: "n" }) }, picture.node, bindings.node));

  get(withQuery(path, PAST)).then((body) => {
    rates.seed(ratesOf(body.message_stats, FLOWS));
    levels.seed(levelsOf(body, LEVELS));
  }, () => {});

  page.watch(path, (one) => {
    const now = Date.now();
    rates.add(now, flow.of(one.message_stats ?? {}, FLOWS));
    levels.add(now, one);
    locked = one.state === "locked";
    lock.textContent = locked ? "Unlock" : "Lock";
    fill(note, queueState(one.state), features(one));
    if (one.type === "stream" && !hint.firstChild) fill(hint, notice("info", "This queue is a stream: its messages stay when they were read. ", link(to("streams", vhost, name), "Open it as a stream")));
    facts.show([
      ["Virtual host", one.vhost],
      ["Type", one.type ?? "classic"],
      ["Messages", h("b", { data: { fact: "messages" } }, count(one.messages))],
      ["Ready", count(one.messages_ready)],
      ["Unacknowledged", count(one.messages_unacknowledged)],
      ["Bytes", bytes(one.message_bytes)],
      ["Consumers", count(one.consumers)],
      one.consumer_utilisation !== undefined && one.consumer_utilisation !== null && ["Consumer capacity", `${Math.round(one.consumer_utilisation * 100)} %`],
      one.memory !== undefined && ["Memory", bytes(one.memory)],
      ["Published in all", count(one.message_stats?.publish ?? 0)],
      ["Node", one.node ?? "–"],
      ["Group", one.group ?? "–"],
      one.head_message_timestamp && ["Oldest message of", moment(one.head_message_timestamp * 1000)],
      one.idle_since && ["Idle since", one.idle_since],
      ...Object.entries(one.arguments ?? {}).map(([key, value]) => [h("code", null, key), typeof value === "object" ? JSON.stringify(value) : String(value)]),
    ]);
    drawPolicy(policy, one);
    consumers.show(one.consumer_details ?? []);
  });

  page.watch(`${path}/bindings`, (list) => {
    bindings.show(list);
    const drawn = list.filter((one) => one.source !== "");
    picture.node.hidden = !drawn.length;
    picture.show(drawn, { vhost });
  }, (words) => bindings.fail(words));

  async function purge() {
    if (!(await ask(`Purge ${shownName(name)}?`, "All of its ready messages are thrown away. They do not come back.", { confirm: "Purge" }))) return;
    page.act(() => del(`${path}/contents`), "The queue is empty.");
  }

  async function remove() {
    if (!(await ask(`Delete ${shownName(name)}?`, "The queue, its bindings and all of its messages are gone then. They do not come back."))) return;
    page.act(() => del(path), `${shownName(name)} is deleted.`, "#/queues");
  }

  async function toggleLock() {
    if (!locked && !(await ask(`Lock ${shownName(name)}?`, "Its consumers get nothing more until it is unlocked or the broker restarts. Publishing goes on.", { confirm: "Lock" }))) return;
    page.act(() => (locked ? del(`${path}/lock`) : put(`${path}/lock`)), locked ? "Unlocked." : "Locked.");
  }
}

/** Which policies match and what they make of it. */
export function drawPolicy(place, one) {
  const sign = JSON.stringify([one.policy, one.operator_policy, one.effective_policy_definition]);
  if (place.dataset.sign === sign) return;
  place.dataset.sign = sign;
  if (!one.policy && !one.operator_policy) {
    fill(place, empty("No policy matches", "A policy sets limits, TTL or dead-lettering for all names that fit a pattern."));
    return;
  }
  const facts = factList("What the policies set");
  facts.show(Object.entries(one.effective_policy_definition ?? {}).map(([key, value]) => [h("code", null, key), typeof value === "object" ? JSON.stringify(value) : String(value)]));
  fill(place, h("p", { class: "badges" }, one.policy && ["Policy ", badge(one.policy, "accent")], one.operator_policy && [" Operator policy ", badge(one.operator_policy, "accent")]), facts.node);
}
