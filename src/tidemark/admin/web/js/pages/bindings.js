// Bindings: drawn as a picture, listed, made and undone.

import { at, del, post } from "../api.js";
import { h } from "../dom.js";
import { openForm } from "../forms.js";
import { plural, shownName } from "../format.js";
import { Picture, bounded } from "../picture.js";
import { to } from "../routes.js";
import { table } from "../table.js";
import { ask, badge, button, empty, link } from "../ui.js";
import { hostField } from "./queues.js";

export const DRAWN_MAX = 24;

export const exchangeName = (name) => (name === "" ? "(default)" : shownName(name));
/** The default exchange has no name, and an address cannot have an empty part. */
export const exchangeAddress = (vhost, name) => to("exchanges", vhost, name || "amq.default");

const endOf = (one) => (one.destination_type === "queue" ? "q" : "e");
const placeOf = (one) => (one.destination_type === "queue" ? to("queues", one.vhost, one.destination) : exchangeAddress(one.vhost, one.destination));

/** Sources on the left, where messages end up on the right; `centre` is the exchange it is about, if any. */
export function bindingPicture(label) {
  const picture = new Picture(label);
  return {
    node: picture.node,
    show(bindings, { exchange = null, vhost = "/", type = null, more = "#/exchanges" } = {}) {
      const boxes = new Map();
      const edges = new Map();
      const idOf = (kind, host, name) => `${kind}\n${host}\n${name}`;
      const box = (kind, host, name) => {
        const id = idOf(kind, host, name);
        if (!boxes.has(id)) {
          boxes.set(id, { id, title: kind === "e" ? exchangeName(name) : shownName(name), lines: [kind === "e" ? "exchange" : "queue"], tone: kind === "e" ? "accent" : "", href: kind === "e" ? exchangeAddress(host, name) : to("queues", host, name) });
        }
        return id;
      };
      const layerOf = new Map();
      /** Exchanges that other exchanges lead to: they stand in the middle. */
      const fed = new Set(bindings.filter((one) => endOf(one) === "e" && one.source !== one.destination).map((one) => one.destination));
      if (exchange !== null) {
        const id = box("e", vhost, exchange);
        boxes.get(id).lines = [`${type ?? ""} exchange`.trim()];
        boxes.get(id).tone = "strong";
        layerOf.set(id, 1);
      }
      for (const one of bindings) {
        const from = box("e", one.vhost, one.source);
        const target = box(endOf(one), one.vhost, one.destination);
        if (!layerOf.has(from)) layerOf.set(from, exchange === null && fed.has(one.source) ? 1 : 0);
        if (!layerOf.has(target)) layerOf.set(target, endOf(one) === "q" || exchange !== null ? 2 : 1);
        const edge = edges.get(`${from}\t${target}`) ?? { from, to: target, keys: [] };
        edge.keys.push(one.routing_key || (one.arguments && Object.keys(one.arguments).length ? "by headers" : ""));
        edges.set(`${from}\t${target}`, edge);
      }
      const layers = [0, 1, 2].map((layer) => bounded([...boxes.values()].filter((one) => layerOf.get(one.id) === layer), DRAWN_MAX, more, layer === 2 ? "destinations" : "sources"));
      const lines = [...edges.values()].map(({ keys, ...edge }) => ({ ...edge, label: keys.length > 1 ? plural(keys.length, "key") : shownName(keys[0]), at: 0.62 }));
      picture.show(layers, lines);
    },
  };
}

/** The list of bindings with a way to undo each. */
export function bindingTable(page, label) {
  const undo = async (one) => {
    if (!(await ask("Undo this binding?", `Messages that ${exchangeName(one.source)} gets with the key “${shownName(one.routing_key)}” no longer reach ${shownName(one.destination)}.`, { confirm: "Unbind" }))) return;
    page.act(() => del(`/bindings${at(one.vhost)}/e${at(one.source)}/${endOf(one)}${at(one.destination)}${at(one.properties_key)}`), "Unbound.");
  };
  return table(label, [
    { name: "from", label: "From", of: (one) => [one.vhost, one.source], cell: ([vhost, name]) => link(exchangeAddress(vhost, name), exchangeName(name)), class: "wide-cell" },
    { name: "key", label: "Routing key", of: (one) => one.routing_key, cell: (key) => h("code", null, shownName(key)), class: "wide-cell" },
    { name: "to", label: "To", class: "wide-cell", of: (one) => [one.destination_type, one.destination], cell: ([kind, name], one) => [link(placeOf(one), shownName(name)), " ", kind === "exchange" ? badge("exchange") : null] },
    { name: "arguments", label: "Arguments", class: "wide-cell", of: (one) => one.arguments, cell: (given) => (given && Object.keys(given).length ? h("code", null, JSON.stringify(given)) : "") },
    { name: "undo", label: "", of: (one) => one.source === "", cell: (fixed, one) => (fixed ? "" : button("Unbind", () => undo(one), { kind: "small" })), class: "actions-cell" },
  ], { key: (one) => JSON.stringify([one.vhost, one.source, one.destination_type, one.destination, one.properties_key]), none: empty("No binding", "Nothing leads here or from here yet.") });
}

/** Make a binding; what is known already is not asked for. */
export function openBind(page, { vhost = null, source = null, destination = null }) {
  openForm("Bind", {
    action: "Bind",
    fields: [
      vhost === null && hostField(page),
      source === null && { name: "source", label: "From exchange", required: true },
      destination === null && { name: "kind", label: "To", kind: "select", options: [["q", "a queue"], ["e", "an exchange"]], value: "q", narrow: true },
      destination === null && { name: "destination", label: "Its name", required: true },
      { name: "key", label: "Routing key", hint: "For a topic exchange * is one word and # any number of words." },
      { name: "arguments", label: "Arguments", kind: "pairs", known: [["x-match", "text", "x-match"]] },
    ],
    submit: async (values) => {
      const path = `/bindings${at(vhost ?? values.vhost)}/e${at(source ?? values.source)}/${destination === null ? values.kind : "q"}${at(destination ?? values.destination)}`;
      await post(path, { routing_key: values.key, arguments: values.arguments });
      page.refresh();
    },
  });
}
