// The broker at a glance: how much goes through it, what waits, how the node is, where it listens.

import { get, withQuery } from "../api.js";
import { Chart, Rates, levelsOf, ratesOf, spanChoice } from "../chart.js";
import { fill, h, setText } from "../dom.js";
import { bytes, count, duration, rate, short } from "../format.js";
import { to } from "../routes.js";
import { table } from "../table.js";
import { card, empty, factList, figure, heading, link, meter, notice, skeleton, state } from "../ui.js";

const FLOWS = ["publish", "confirm", "deliver_get", "ack", "redeliver"];
const LEVELS = ["messages_ready", "messages_unacknowledged"];
const PAST = { msg_rates_age: 600, msg_rates_incr: 5, lengths_age: 600, lengths_incr: 5 };
const LOOK_MS = 5000;
const SERVES = { amqp: "AMQP 0-9-1", amqps: "AMQP 0-9-1 over TLS", stream: "Stream protocol", admin: "Management", http: "Management", https: "Management over TLS", peer: "Other members" };

export function openOverview(page) {
  const rates = new Chart("Message rates", [
    { name: "publish", label: "Published" },
    { name: "confirm", label: "Confirmed", tone: 5 },
    { name: "deliver_get", label: "Delivered", tone: 2 },
    { name: "ack", label: "Acknowledged", tone: 3 },
    { name: "redeliver", label: "Redelivered", tone: 4 },
  ], rate);
  const levels = new Chart("Queued messages", [
    { name: "messages_ready", label: "Ready", tone: 1 },
    { name: "messages_unacknowledged", label: "Unacknowledged", tone: 4 },
  ], count, true);
  const flow = new Rates();
  const tiles = {};
  const tile = (name, label, href) => {
    const value = h("b", { class: "tile-value" }, "–");
    const below = h("span", { class: "tile-below" });
    tiles[name] = { value, below };
    return h(href ? "a" : "div", { class: "tile", href }, h("span", { class: "tile-label" }, label), value, below);
  };
  const about = h("span");
  const nodes = h("div", { class: "nodes" }, skeleton(3));
  const counts = h("div", { class: "counts" });
  const ports = table("Ports", [
    { name: "protocol", label: "Protocol", of: (one) => one.protocol, cell: (name) => SERVES[name] ?? name },
    { name: "address", label: "Address", of: (one) => one.ip_address, cell: (text) => h("code", null, text) },
    { name: "port", label: "Port", of: (one) => one.port, number: true },
    { name: "node", label: "Node", of: (one) => one.node },
  ], { key: (one) => `${one.node} ${one.protocol} ${one.port}` });
  const busiest = table("Longest queues", [
    { name: "name", label: "Queue", of: (one) => [one.vhost, one.name], cell: ([vhost, name]) => link(to("queues", vhost, name), name) },
    { name: "messages", label: "Messages", of: (one) => one.messages, cell: figure(count), number: true },
    { name: "consumers", label: "Consumers", of: (one) => one.consumers, cell: figure(count), number: true },
  ], { key: (one) => `${one.vhost} ${one.name}`, none: empty("No queue yet", "A client declares one, or you do on the page of queues.", link("#/queues", "To the queues")) });

  page.show(
    heading("Overview", { note: about, actions: [spanChoice()] }),
    h("div", { class: "tiles" },
      tile("publish", "Published"), tile("deliver", "Delivered"), tile("ack", "Acknowledged"),
      tile("ready", "Ready", "#/queues?sort=messages_ready&down=1"), tile("unacked", "Unacknowledged", "#/queues?sort=messages_unacknowledged&down=1")),
    h("div", { class: "grid-2" }, card("Message rates", rates.node), card("Queued messages", levels.node)),
    counts,
    h("div", { class: "grid-2" },
      card("Node", nodes),
      card("Longest queues", { actions: link("#/queues?sort=messages&down=1", "All queues") }, busiest.node)),
    card("Ports", ports.node));

  get(withQuery("/overview", PAST)).then((body) => {
    rates.seed(ratesOf(body.message_stats, FLOWS));
    levels.seed(levelsOf(body.queue_totals, LEVELS));
  }, () => {});

  page.watch("/overview", (body) => {
    const now = Date.now();
    const speeds = flow.of(body.message_stats ?? {}, FLOWS);
    rates.add(now, speeds);
    levels.add(now, body.queue_totals ?? {});
    setText(tiles.publish.value, rate(speeds.publish ?? 0));
    setText(tiles.deliver.value, rate(speeds.deliver_get ?? 0));
    setText(tiles.ack.value, rate(speeds.ack ?? 0));
    setText(tiles.publish.below, `${short(body.message_stats?.publish ?? 0)} in all`);
    setText(tiles.deliver.below, `${short(body.message_stats?.deliver_get ?? 0)} in all`);
    setText(tiles.ack.below, `${short(body.message_stats?.ack ?? 0)} in all`);
    setText(tiles.ready.value, short(body.queue_totals?.messages_ready ?? 0));
    setText(tiles.unacked.value, short(body.queue_totals?.messages_unacknowledged ?? 0));
    setText(tiles.ready.below, "messages wait");
    setText(tiles.unacked.below, "messages at consumers");
    setText(about, `${body.cluster_name || body.node} · ${body.product_name ?? "Tidemark"} ${body.product_version ?? ""}${body.compiled === false ? " · without compiled parts" : ""}`);
    showCounts(body.object_totals ?? {});
    ports.show(body.listeners ?? []);
    if (!page.shell.seesAll) setText(page.shell.node, body.node ?? "");
  });

  function showCounts(totals) {
    const one = (name, label, href) => h("a", { class: "count", href }, h("b", null, count(totals[name])), ` ${totals[name] === 1 ? label.slice(0, -1) : label}`);
    const sign = JSON.stringify(totals);
    if (counts.dataset.sign === sign) return;
    counts.dataset.sign = sign;
    fill(counts, one("connections", "connections", "#/connections"), one("channels", "channels", "#/channels"), one("exchanges", "exchanges", "#/exchanges"), one("queues", "queues", "#/queues"), one("consumers", "consumers", "#/queues?sort=consumers&down=1"));
  }

  const longest = withQuery(page.scoped("/queues"), { page: 1, page_size: 5, sort: "messages", sort_reverse: true, columns: "name,vhost,messages,consumers" });
  // To find the longest the broker looks at all of them: not every second.
  const look = () => document.hidden || get(longest).then((body) => busiest.show(body.items), (error) => busiest.fail(error.message));
  look();
  page.every(LOOK_MS, look);

  if (page.shell.seesAll) page.watch("/nodes", (list) => fill(nodes, list.map(drawNode)), (words) => fill(nodes, notice("warn", words)));
  else fill(nodes, empty("Not for this user", "The facts of a node are shown to users with the tag “monitoring”."));
}

function drawNode(node) {
  const facts = factList(`Facts of ${node.name}`);
  facts.show([
    ["Up for", duration(node.uptime)],
    ["Process", node.os_pid ?? "–"],
    node.fd_used !== undefined && ["Files open", `${count(node.fd_used)}${node.fd_total ? ` of ${count(node.fd_total)}` : ""}`],
    node.python && ["Python", node.python],
    node.run_queue !== undefined && ["Run queue", count(node.run_queue)],
  ]);
  const alarms = [node.mem_alarm && "memory", node.disk_free_alarm && "disk"].filter(Boolean);
  return h("div", { class: "node" },
    h("div", { class: "node-head" }, h("b", null, node.name), node.running === false ? state("down", "bad") : alarms.length ? state(`alarm: ${alarms.join(", ")}`, "bad") : state("running", "good")),
    node.mem_used !== undefined && meter("Memory", node.mem_used, node.mem_limit, null, node.mem_alarm ? "bad" : ""),
    node.disk_free !== undefined && diskMeter(node),
    facts.node);
}

/** Free space has no upper end that we know; it is full when nothing over the limit is left. */
function diskMeter(node) {
  const limit = node.disk_free_limit ?? 0;
  const share = node.disk_free > 0 ? Math.min(1, limit / node.disk_free) : 1;
  return meter("Disk", share, 1, `${bytes(node.disk_free)} free, alarm below ${bytes(limit)}`, node.disk_free_alarm ? "bad" : "");
}
