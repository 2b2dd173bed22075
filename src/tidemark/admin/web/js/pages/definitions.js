// Everything that was declared, out and in, in RabbitMQ's format.

import { at, get, post } from "../api.js";
import { fill, h } from "../dom.js";
import { plural } from "../format.js";
import { ask, attempt, button, card, heading, notice, say } from "../ui.js";

const PARTS = ["users", "vhosts", "permissions", "topic_permissions", "parameters", "global_parameters", "policies", "queues", "exchanges", "bindings"];

export function openDefinitions(page) {
  const scope = page.vhost ? at(page.vhost) : "";
  const what = page.vhost ? `the virtual host ${page.vhost}` : "the whole broker";
  const found = h("div");
  const file = h("input", { type: "file", accept: "application/json,.json", id: "definitions-file" });
  file.addEventListener("change", read);
  page.show(
    heading("Definitions", { note: "Users, virtual hosts, permissions, policies, queues, exchanges and bindings, in RabbitMQ's format. Messages are not in it." }),
    h("div", { class: "grid-2" },
      card("Export", h("p", null, `A file with the definitions of ${what}.`), h("p", null, button("Download", save, { kind: "primary" }))),
      card("Import", h("p", null, `A file of Tidemark or of RabbitMQ, into ${what}. What is there stays; what is missing is made.`), h("label", { class: "field", for: "definitions-file" }, h("span", null, "File"), file), found)));

  function save() {
    return attempt(async () => {
      const body = await get(`/definitions${scope}`);
      const url = URL.createObjectURL(new Blob([JSON.stringify(body, null, 2)], { type: "application/json" }));
      const day = new Date().toISOString().slice(0, 10);
      h("a", { href: url, download: `tidemark-definitions-${day}.json` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
    }, "The file is on its way to your downloads.");
  }

  async function read() {
    fill(found);
    if (!file.files.length) return;
    let given;
    try {
      given = JSON.parse(await file.files[0].text());
    } catch {
      fill(found, notice("bad", "That file is not JSON."));
      return;
    }
    const counts = PARTS.filter((part) => given[part]?.length).map((part) => plural(given[part].length, part.replaceAll("_", " ").replace(/ies$/, "y").replace(/s$/, ""), part.replaceAll("_", " ")));
    fill(found, notice("info", `It has ${counts.length ? counts.join(", ") : "nothing that we know of"}.`), button("Import", () => load(given, counts), { kind: "primary", disabled: !counts.length }));
  }

  async function load(given, counts) {
    if (!(await ask("Import these definitions?", `${counts.join(", ")} are made in ${what} where they are missing.`, { confirm: "Import" }))) return;
    try {
      await post(`/definitions${scope}`, given);
      say("Imported.");
      fill(found);
      file.value = "";
      page.shell.loadHosts();
    } catch (error) {
      fill(found, notice("bad", error.message));
    }
  }
}
