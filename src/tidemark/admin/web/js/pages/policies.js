// Policies by name pattern, and those of operators, which bound them.

import { at, del, put } from "../api.js";
import { h } from "../dom.js";
import { openForm } from "../forms.js";
import { count, shownName } from "../format.js";
import { table } from "../table.js";
import { ask, button, card, empty, figure, heading } from "../ui.js";
import { hostField } from "./queues.js";

const DEFINITIONS = [
  ["message-ttl", "number", "Message TTL"],
  ["max-length", "number", "Max length"],
  ["dead-letter-exchange", "text", "Dead letter exchange"],
  ["max-age", "text", "Max age"],
  ["expires", "number", "Expires"],
  ["overflow", "text", "Overflow"],
  ["max-length-bytes", "number"],
  ["dead-letter-routing-key", "text"],
  ["delivery-limit", "number"],
  ["alternate-exchange", "text"],
  ["stream-history", "number"],
  ["stream-tombstone-lease", "number"],
  ["stream-pin-bytes-max", "number"],
  ["group", "text"],
  ["cluster-mode", "text"],
  ["replicate", "text"],
];
const OPERATOR = DEFINITIONS.filter(([name]) => ["message-ttl", "max-length", "max-length-bytes", "expires", "delivery-limit", "max-age"].includes(name));
const APPLIES = [["all", "queues, streams and exchanges"], ["queues", "queues and streams"], ["classic_queues", "classic queues"], ["streams", "streams"], ["exchanges", "exchanges"]];

export function openPolicies(page) {
  const administrator = page.shell.is("administrator");
  const section = (operator) => {
    const path = operator ? "/operator-policies" : "/policies";
    const may = operator ? administrator : true;
    const rows = table(operator ? "Operator policies" : "Policies", [
      { name: "name", label: "Name", of: (one) => one.name, cell: shownName, class: "name-cell" },
      { name: "vhost", label: "Virtual host", of: (one) => one.vhost },
      { name: "pattern", label: "Pattern", of: (one) => one.pattern, cell: (text) => h("code", null, text) },
      { name: "to", label: "Applies to", of: (one) => one["apply-to"] },
      { name: "priority", label: "Priority", of: (one) => one.priority, cell: figure(count), number: true },
      { name: "definition", label: "Sets", of: (one) => one.definition, cell: (values) => h("span", { class: "badges" }, Object.entries(values ?? {}).map(([name, value]) => h("code", null, `${name} = ${typeof value === "object" ? JSON.stringify(value) : value}`))), class: "wide-cell" },
      may && { name: "act", label: "", of: (one) => [one.pattern, one.priority, one.definition, one["apply-to"]], cell: (_, one) => [button("Change", () => form(one), { kind: "small" }), button("Delete", () => remove(one), { kind: "small" })], class: "actions-cell" },
    ].filter(Boolean), { key: (one) => `${one.vhost}\n${one.name}`, none: operator ? empty("No operator policy", "It bounds what users set: the smaller value wins.") : empty("No policy yet", "A policy sets TTL, length, dead-lettering and more for all queues and exchanges whose name fits a pattern.") });
    page.watch(page.scoped(path), (list) => rows.show([...(Array.isArray(list) ? list : list.items)].sort((a, b) => a.vhost.localeCompare(b.vhost) || b.priority - a.priority)), (words) => rows.fail(words));

    const form = (one) => openForm(one ? `Change ${shownName(one.name)}` : operator ? "Add an operator policy" : "Add a policy", {
      action: one ? "Save" : "Add",
      wide: true,
      intro: "Of all that match a name the one with the highest priority applies, and it applies at once.",
      fields: [
        !one && hostField(page),
        !one && { name: "name", label: "Name", required: true },
        { name: "pattern", label: "Pattern", required: true, value: one?.pattern ?? "", placeholder: "^orders\\.", hint: "A regular expression that the name must match." },
        { name: "apply", label: "Applies to", kind: "select", options: operator ? APPLIES.slice(1, 4) : APPLIES, value: one?.["apply-to"] ?? (operator ? "queues" : "all") },
        { name: "priority", label: "Priority", kind: "number", value: one?.priority ?? 0, narrow: true },
        { name: "definition", label: "It sets", kind: "pairs", known: operator ? OPERATOR : DEFINITIONS, value: one?.definition },
      ],
      submit: async ({ vhost, name, pattern, apply, priority, definition }) => {
        await put(`${path}${at(one?.vhost ?? vhost, one?.name ?? name)}`, { pattern, "apply-to": apply, priority: priority ?? 0, definition });
        page.refresh();
      },
    });
    const remove = async (one) => {
      if (!(await ask(`Delete the policy ${shownName(one.name)}?`, "What it set ends at once for all that it matched."))) return;
      page.act(() => del(`${path}${at(one.vhost, one.name)}`), "Deleted.");
    };
    return card(operator ? "Operator policies" : "Policies", { actions: may ? button("Add", () => form(null), { kind: operator ? "small" : "small primary", icon: "plus", shortcut: operator ? null : "n" }) : null }, rows.node);
  };
  page.show(heading("Policies", { note: "Settings for all names that fit a pattern, in force at once" }), section(false), section(true));
}
