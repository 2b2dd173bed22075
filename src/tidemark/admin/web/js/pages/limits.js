// Limits that protect: how many connections and queues a virtual host may have, how many connections and channels a user.

import { at, del, put } from "../api.js";
import { openForm } from "../forms.js";
import { count, shownName } from "../format.js";
import { table } from "../table.js";
import { ask, button, card, empty, heading } from "../ui.js";
import { everyUser } from "./users.js";

const KINDS = {
  vhost: { path: "/vhost-limits", title: "Virtual hosts", of: "vhost", names: [["max-connections", "Connections"], ["max-queues", "Queues"]] },
  user: { path: "/user-limits", title: "Users", of: "user", names: [["max-connections", "Connections"], ["max-channels", "Channels"]] },
};

export function openLimits(page) {
  const section = (kind) => {
    const { path, title, of, names } = KINDS[kind];
    const rows = table(title, [
      { name: "name", label: kind === "vhost" ? "Virtual host" : "User", of: (one) => one.name, cell: shownName, class: "name-cell" },
      { name: "limit", label: "At most", of: (one) => [one.limit, one.value], cell: ([limit, value]) => `${value < 0 ? "any number of" : count(value)} ${limit.replace("max-", "")}` },
      { name: "act", label: "", of: (one) => one.value, cell: (_, one) => [button("Change", () => form(one), { kind: "small" }), button("Clear", () => clear(one), { kind: "small" })], class: "actions-cell" },
    ], { key: (one) => `${one.name}\n${one.limit}`, none: empty("No limit", kind === "vhost" ? "Every virtual host may have as many connections and queues as the broker can." : "Every user may have as many connections and channels as the broker can.") });
    // The API has one object a name with all of its limits; here each limit is a row.
    page.watch(path, (list) => rows.show(list.flatMap((one) => Object.entries(one.value ?? {}).map(([limit, value]) => ({ name: one[of], limit, value })))), (words) => rows.fail(words));

    const form = async (one) => {
      const options = one ? [] : kind === "vhost" ? page.shell.vhosts ?? ["/"] : await everyUser();
      openForm(one ? `Limit of ${shownName(one.name)}` : "Set a limit", {
        fields: [
          !one && { name: "name", label: kind === "vhost" ? "Virtual host" : "User", kind: "select", options, value: options[0] },
          !one && { name: "limit", label: "Limit", kind: "select", options: names, value: names[0][0] },
          { name: "value", label: "At most", kind: "number", min: -1, value: one?.value ?? "", required: true, hint: "-1 is any number, 0 is none." },
        ],
        submit: async ({ name, limit, value }) => {
          await put(`${path}${at(one?.name ?? name, one?.limit ?? limit)}`, { value });
          page.refresh();
        },
      });
    };
    const clear = async (one) => {
      if (!(await ask("Clear this limit?", `${shownName(one.name)} may then have any number of ${one.limit.replace("max-", "")}.`, { confirm: "Clear" }))) return;
      page.act(() => del(`${path}${at(one.name, one.limit)}`), "Cleared.");
    };
    return card(title, { actions: button("Set a limit", () => form(null), { kind: "small", icon: "plus", shortcut: kind === "vhost" ? "n" : null }) }, rows.node);
  };
  page.show(heading("Limits", { note: "They protect the broker, and one tenant from another" }), section("vhost"), section("user"));
}
