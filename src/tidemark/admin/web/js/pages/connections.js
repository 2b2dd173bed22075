// Who is connected, and what their channels do.

import { at, del } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, count, duration, moment, rate, shownName } from "../format.js";
import { to } from "../routes.js";
import { table } from "../table.js";
import { ask, badge, button, card, empty, factList, figure, heading, link, sheet, state } from "../ui.js";
import { longList } from "./lists.js";

const TONES = { running: "good", open: "good", blocked: "bad", blocking: "warn", flow: "warn", starting: "quiet", tuning: "quiet", opening: "quiet", closing: "quiet", closed: "quiet", idle: "quiet" };
const shownState = (word) => state(word ?? "running", TONES[word ?? "running"] ?? "quiet");
const clientOf = (one) => one.client_properties?.connection_name || one.user_provided_name || [one.client_properties?.product, one.client_properties?.version].filter(Boolean).join(" ") || "";

export function openConnections(page) {
  const path = page.vhost ? `/vhosts${at(page.vhost)}/connections` : "/connections";
  const list = longList(page, {
    path,
    label: "Connections",
    key: (one) => one.name,
    none: empty("Nobody is connected", "Clients connect with AMQP to one of the ports on the overview.", link("#/", "To the overview")),
    columns: [
      { name: "name", label: "Name", of: (one) => one.name, cell: (name) => link(to("connections", name), shownName(name)), sort: "name", class: "name-cell" },
      { name: "client", label: "Client", of: clientOf, cell: shownName },
      { name: "user", label: "User", of: (one) => one.user, sort: "user" },
      { name: "vhost", label: "Virtual host", of: (one) => one.vhost, sort: "vhost" },
      { name: "state", label: "State", of: (one) => one.state, cell: shownState, sort: "state" },
      { name: "protocol", label: "Protocol", of: (one) => [one.protocol, one.ssl], cell: ([protocol, tls]) => [protocol, " ", tls ? badge("TLS", "accent") : null] },
      { name: "channels", label: "Channels", of: (one) => one.channels, cell: figure(count), number: true, sort: "channels" },
      { name: "in", label: "From client", of: (one) => one.recv_oct_details?.rate ?? null, cell: (value) => (value === null ? "–" : `${bytes(value)}/s`), number: true, sort: "recv_oct_details.rate" },
      { name: "out", label: "To client", of: (one) => one.send_oct_details?.rate ?? null, cell: (value) => (value === null ? "–" : `${bytes(value)}/s`), number: true, sort: "send_oct_details.rate" },
    ],
  });
  page.show(heading("Connections"), sheet("Connections", list.toolbar, list.node, list.pager));
}

const channelColumns = (withConnection) => [
  { name: "name", label: "Channel", of: (one) => [one.connection_details?.name, one.name, one.number], cell: ([connection, name, number]) => (withConnection && connection ? link(to("connections", connection), shownName(name)) : `Channel ${number}`), sort: "name", class: "name-cell" },
  withConnection && { name: "user", label: "User", of: (one) => one.user, sort: "user" },
  { name: "mode", label: "Mode", of: (one) => [one.confirm, one.transactional], cell: ([confirm, tx]) => [confirm ? badge("C", "", "confirms publishes") : null, tx ? badge("T", "", "transactional") : null] },
  { name: "state", label: "State", of: (one) => one.state, cell: shownState, sort: "state" },
  { name: "prefetch", label: "Prefetch", of: (one) => one.prefetch_count, cell: figure(count), number: true, sort: "prefetch_count" },
  { name: "unacked", label: "Unacked", of: (one) => one.messages_unacknowledged, cell: figure(count), number: true, sort: "messages_unacknowledged" },
  { name: "unconfirmed", label: "Unconfirmed", of: (one) => one.messages_unconfirmed, cell: figure(count), number: true, sort: "messages_unconfirmed" },
  { name: "publish", label: "Publishes", of: (one) => one.message_stats?.publish_details?.rate ?? null, cell: figure(rate), number: true, sort: "message_stats.publish_details.rate" },
  { name: "deliver", label: "Delivered", of: (one) => one.message_stats?.deliver_get_details?.rate ?? null, cell: figure(rate), number: true, sort: "message_stats.deliver_get_details.rate" },
  { name: "consumers", label: "Consumers", of: (one) => one.consumer_count, cell: figure(count), number: true, sort: "consumer_count" },
].filter(Boolean);

export function openChannels(page) {
  const path = page.vhost ? `/vhosts${at(page.vhost)}/channels` : "/channels";
  const list = longList(page, { path, label: "Channels", key: (one) => one.name, none: empty("No channel is open", "Clients open them on their connections."), columns: channelColumns(true) });
  page.show(heading("Channels"), sheet("Channels", list.toolbar, list.node, list.pager));
}

export function openConnection(page) {
  const [name] = page.params;
  const path = `/connections${at(name)}`;
  const facts = factList("Facts of the connection");
  const client = factList("What the client says of itself");
  const note = h("span", { class: "badges" });
  const channels = table("Channels", channelColumns(false), { key: (one) => one.name, none: empty("No channel", "This connection has none open.") });
  page.show(
    heading(shownName(name), { above: link("#/connections", "Connections"), note, actions: [button("Close", close, { kind: "danger" })] }),
    h("div", { class: "grid-2" }, card("Facts", facts.node), card("Client", client.node)),
    card("Channels", channels.node));

  page.watch(path, (one) => {
    fill(note, shownState(one.state), one.ssl ? badge("TLS", "accent") : null);
    facts.show([
      ["User", one.user ?? "–"],
      ["Virtual host", one.vhost ?? "–"],
      ["Protocol", one.protocol],
      ["From", `${one.peer_host}:${one.peer_port}`],
      ["To", `${one.host}:${one.port}`],
      ["Connected", one.connected_at ? `${moment(one.connected_at)} (${duration(Date.now() - one.connected_at)})` : "–"],
      ["Heartbeat", one.timeout ? `${one.timeout} s` : "off"],
      ["Channels", `${count(one.channels)} of ${one.channel_max ? count(one.channel_max) : "any number"}`],
      ["Largest frame", bytes(one.frame_max)],
      ["From client", bytes(one.recv_oct)],
      ["To client", bytes(one.send_oct)],
    ]);
    client.show(Object.entries(one.client_properties ?? {}).map(([key, value]) => [shownName(key), typeof value === "object" && value !== null ? Object.entries(value).map(([word, yes]) => badge(shownName(word.replaceAll("_", " ")), "", `${word}: ${yes}`)) : shownName(value)]));
  });
  page.watch(`${path}/channels`, (list) => channels.show(list), (words) => channels.fail(words));

  async function close() {
    if (!(await ask("Close this connection?", "What it has not acknowledged goes back to the queues. A client that reconnects by itself will be back at once.", { confirm: "Close it" }))) return;
    page.act(() => del(path, { "X-Reason": "closed on the management page" }), "Closed.", "#/connections");
  }
}
