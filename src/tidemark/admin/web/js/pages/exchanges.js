// Exchanges: the list and a map of all, one with its bindings drawn, declaring, publishing.

import { at, del, put } from "../api.js";
import { Chart, Rates } from "../chart.js";
import { fill, h } from "../dom.js";
import { openForm } from "../forms.js";
import { rate, shownName } from "../format.js";
import { to } from "../routes.js";
import { ask, badge, button, card, empty, factList, figure, heading, link, sheet, tabs } from "../ui.js";
import { bindingPicture, bindingTable, exchangeAddress, exchangeName, openBind } from "./bindings.js";
import { longList } from "./lists.js";
import { openPublish } from "./messages.js";
import { drawPolicy } from "./queue.js";
import { hostField } from "./queues.js";

const TYPES = [["direct", "direct: the key is the binding's"], ["fanout", "fanout: to all that are bound"], ["topic", "topic: keys with * and #"], ["headers", "headers: by header values"], ["x-partition", "x-partition: one of several, by a hash of the key"]];
const MAPPED_MAX = 400;

const marks = (one) => [one.durable && badge("D", "", "durable: it survives a restart"), one.auto_delete && badge("AD", "", "auto-delete"), one.internal && badge("I", "", "internal: only other exchanges publish to it"), one.policy && badge(one.policy, "accent", `policy: ${one.policy}`),
  ...Object.entries(one.arguments ?? {}).map(([name, value]) => badge(name.replace(/^x-/, ""), "", `${name}: ${JSON.stringify(value)}`))].filter(Boolean);

export function openExchanges(page) {
  const view = page.query.view === "map" ? "map" : "list";
  const declare = () => declareExchange(page);
  const head = [
    heading("Exchanges", { actions: [button("Bind", () => openBind(page, {})), button("Declare an exchange", declare, { kind: "primary", icon: "plus", shortcut: "n" })] }),
    tabs("Views", [["list", "#/exchanges", "List"], ["map", "#/exchanges?view=map", "Map of bindings"]], view),
  ];
  if (view === "map") {
    const picture = bindingPicture("Exchanges and where they lead");
    const none = h("div");
    page.show(...head, sheet("Map of bindings", none, picture.node));
    page.watch(page.scoped("/bindings"), (list) => {
      const found = (Array.isArray(list) ? list : list.items).filter((one) => one.source !== "");
      fill(none, found.length ? (found.length > MAPPED_MAX ? h("p", { class: "hint" }, `The first ${MAPPED_MAX} of ${found.length} bindings are drawn.`) : null) : empty("Nothing is bound", "Bindings with the default exchange are there always and are not drawn."));
      picture.show(found.slice(0, MAPPED_MAX));
    });
    return;
  }
  const manyHosts = (page.shell.vhosts?.length ?? 0) !== 1 && !page.vhost;
  const list = longList(page, {
    path: page.scoped("/exchanges"),
    label: "Exchanges",
    key: (one) => `${one.vhost}\n${one.name}`,
    none: empty("No exchange is like that", "Your search finds none."),
    columns: [
      manyHosts && { name: "vhost", label: "Virtual host", of: (one) => one.vhost, sort: "vhost", class: "quiet-cell" },
      { name: "name", label: "Name", of: (one) => [one.vhost, one.name], cell: ([vhost, name]) => link(exchangeAddress(vhost, name), exchangeName(name)), sort: "name", class: "name-cell" },
      { name: "type", label: "Type", of: (one) => one.type, sort: "type" },
      { name: "features", label: "Features", of: ({ durable, auto_delete, internal, arguments: given, policy }) => ({ durable, auto_delete, internal, arguments: given, policy }), cell: (one) => h("span", { class: "badges" }, marks(one)) },
      { name: "in", label: "In", of: (one) => one.message_stats?.publish_in_details?.rate ?? null, cell: figure(rate), number: true, sort: "message_stats.publish_in_details.rate" },
      { name: "out", label: "Out", of: (one) => one.message_stats?.publish_out_details?.rate ?? null, cell: figure(rate), number: true, sort: "message_stats.publish_out_details.rate" },
    ].filter(Boolean),
  });
  page.show(...head, sheet("Exchanges", list.toolbar, list.node, list.pager));
}

function declareExchange(page) {
  openForm("Declare an exchange", {
    action: "Declare",
    fields: [
      hostField(page),
      { name: "name", label: "Name", required: true },
      { name: "type", label: "Type", kind: "select", options: TYPES, value: "direct" },
      { name: "durable", label: "Durable", kind: "check", value: true, hint: "It survives a restart of the broker." },
      { name: "auto_delete", label: "Auto-delete", kind: "check", hint: "It is deleted when nothing is bound to it any more." },
      { name: "internal", label: "Internal", kind: "check", hint: "Clients cannot publish to it; other exchanges can." },
      { name: "arguments", label: "Arguments", kind: "pairs", known: [["alternate-exchange", "text", "Alternate exchange"], ["x-partitions", "number", "Partitions (x-partition)"], ["x-partition-key", "text", "Partitioned by"]] },
    ],
    submit: async ({ vhost, name, ...rest }) => {
      await put(`/exchanges${at(vhost, name)}`, rest);
      location.hash = to("exchanges", vhost, name);
    },
  });
}

export function openExchange(page) {
  const [vhost, asked] = page.params;
  const name = asked === "amq.default" ? "" : asked;
  const path = `/exchanges${at(vhost, name || "amq.default")}`;
  const builtIn = name === "" || name.startsWith("amq.");
  const rates = new Chart("Message rates of the exchange", [{ name: "publish_in", label: "In" }, { name: "publish_out", label: "Out", tone: 2 }], rate);
  const flow = new Rates();
  const facts = factList("Facts of the exchange");
  const policy = h("div");
  const note = h("span", { class: "badges" });
  const picture = bindingPicture(`Where ${exchangeName(name)} leads`);
  const bindings = bindingTable(page, "Bindings");
  let type = null;
  const lists = { source: [], destination: [] };

  page.show(
    heading(exchangeName(name), {
      above: [link("#/exchanges", "Exchanges"), " in ", vhost],
      note,
      actions: [
        button("Publish", () => openPublish(page, { vhost, exchange: name }), { kind: "primary" }),
        name !== "" && button("Bind", () => openBind(page, { vhost, source: name }), { icon: "plus", shortcut: "n" }),
        !builtIn && button("Delete", remove, { kind: "danger" }),
      ].filter(Boolean),
    }),
    card("Bindings", picture.node, bindings.node),
    h("div", { class: "grid-2" }, card("Rates", rates.node), card("Facts", facts.node)),
    card("Policy in force", { actions: link("#/policies", "Policies") }, policy));

  function draw() {
    const all = [...lists.destination, ...lists.source].filter((one, index, every) => every.findIndex((other) => JSON.stringify(other) === JSON.stringify(one)) === index);
    bindings.show(all);
    picture.show(all, { exchange: name, vhost, type });
  }

  page.watch(path, (one) => {
    type = one.type;
    rates.add(Date.now(), flow.of(one.message_stats ?? {}, ["publish_in", "publish_out"]));
    fill(note, badge(one.type, "accent"), marks(one));
    facts.show([["Virtual host", one.vhost], ["Type", one.type], ["Durable", one.durable ? "yes" : "no"], ["Auto-delete", one.auto_delete ? "yes" : "no"], ["Internal", one.internal ? "yes" : "no"],
      ...Object.entries(one.arguments ?? {}).map(([key, value]) => [h("code", null, key), typeof value === "object" ? JSON.stringify(value) : String(value)])]);
    drawPolicy(policy, one);
    draw();
  });
  page.watch(`${path}/bindings/source`, (list) => { lists.source = list; draw(); }, (words) => bindings.fail(words));
  if (name) page.watch(`${path}/bindings/destination`, (list) => { lists.destination = list; draw(); }, () => {});

  async function remove() {
    if (!(await ask(`Delete ${shownName(name)}?`, "The exchange and its bindings are gone then. Who publishes to it gets an error."))) return;
    page.act(() => del(path), `${shownName(name)} is deleted.`, "#/exchanges");
  }
}
