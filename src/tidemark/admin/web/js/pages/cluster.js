// The cluster: who is there and what for, drawn in the order in which messages travel; who led when. Live during a failover.

import { post } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, count, duration, moment, plural } from "../format.js";
import { Picture } from "../picture.js";
import { onMember } from "../routes.js";
import { table } from "../table.js";
import { ask, badge, button, card, empty, factList, figure, heading, link, notice, state } from "../ui.js";

const TONES = { active: "good", alone: "good", ready: "good", recovering: "warn", "catch-up": "warn", joining: "warn", fenced: "bad", failed: "bad", away: "bad", gone: "bad" };
const WORDS = {
  active: "leads and confirms",
  alone: "stands alone",
  ready: "holds all that was confirmed",
  recovering: "leads, waits for members",
  "catch-up": "is given what it lacks",
  joining: "has no contact with a leader",
  fenced: "cannot prove that it leads",
  failed: "has a store that failed",
  away: "is not there",
  gone: "is not there",
};
/** Members that were there while the page was open; one that dies is drawn as gone, not left out. */
const known = new Map();

export function openCluster(page) {
  const picture = new Picture("Members of the cluster", { narrow: 640, boxWidth: 210 });
  const note = h("span", { class: "badges" });
  const about = factList("Facts of the cluster");
  const warning = h("div");
  let facts = {};
  let members = [];

  const rows = table("Members", [
    { name: "name", label: "Member", of: (one) => [one.name, one.here], cell: ([name, here]) => [h("b", null, name), " ", here ? badge("this page") : null], class: "name-cell" },
    { name: "state", label: "State", of: (one) => one.state, cell: (word) => h("span", { title: WORDS[word] }, state(word, TONES[word] ?? "quiet")) },
    { name: "role", label: "Role", of: (one) => (one.state === "away" ? "" : one.role), cell: (role) => (role ? badge(role, role === "leader" || role === "head" ? "accent" : "") : "–") },
    { name: "lag", label: "Behind", of: (one) => [one.lag, one.lag_bytes, one.leader], cell: ([lag, size, leads]) => (leads || lag === null || lag === undefined ? "–" : `${plural(lag, "record")}${size ? ` · ${bytes(size)}` : ""}`), number: true },
    { name: "ends", label: "Journal up to", of: (one) => one.ends?.journal ?? null, cell: (value) => (value === null ? "–" : count(value)), number: true },
    { name: "amqp", label: "AMQP", of: (one) => one.amqp ?? "", cell: (text) => (text ? h("code", null, text) : "–"), class: "wide-cell" },
    { name: "page", label: "Page", of: (one) => [one.admin ?? "", one.here], cell: ([admin, here]) => (admin && !here ? link(onMember(admin, "#/cluster"), "Open") : "") },
  ], { key: (one) => one.name });
  const past = table("Takeovers", [
    { name: "at", label: "When", of: (one) => one.at_ms, cell: (ms) => moment(ms, true) },
    { name: "from", label: "From", of: (one) => one.from, cell: (name) => name ?? "nobody" },
    { name: "to", label: "To", of: (one) => one.to, cell: (name) => h("b", null, name ?? "nobody") },
    { name: "epoch", label: "Epoch", of: (one) => one.epoch, cell: figure(count), number: true },
    { name: "took", label: "Nobody led for", of: (one) => one.took_ms ?? null, cell: (ms) => (ms === null ? "–" : duration(ms)), number: true },
    { name: "why", label: "Why", of: (one) => one.why ?? "", class: "words-cell" },
  ], { key: (one) => `${one.epoch} ${one.at_ms}`, none: empty("Nobody has taken over", "When another member begins to lead, it is listed here with how long nobody did.") });
  const histories = table("Takeover table", [
    { name: "history", label: "History", of: (one) => one.history, cell: (text) => h("code", null, text), class: "wide-cell" },
    { name: "first", label: "From sequence", of: (one) => (typeof one.first === "object" && one.first !== null ? one.first.journal : one.first), cell: figure(count), number: true },
  ], { key: (one) => one.history, none: empty("One history only", "Nobody has taken over since the store was made.") });
  const actions = page.shell.is("administrator") ? h("span", { class: "badges" }) : null;

  page.show(
    heading("Cluster", { note, actions: actions ? [actions] : [] }),
    warning,
    card("Members", picture.node, rows.node),
    h("div", { class: "grid-2" }, card("Facts", about.node), card("Takeover table", histories.node)),
    card("Takeover history", past.node));

  page.watch("/tidemark/cluster", (body) => {
    facts = body;
    fill(note, body.mode ? badge(body.mode, "accent") : null, body.epoch ? badge(`epoch ${body.epoch}`) : null);
    about.show([
      ["This member", body.name],
      ["State", state(body.state, TONES[body.state] ?? "quiet")],
      ["Leader", body.state === "alone" ? "itself" : body.leader ?? "nobody now"],
      body.mode && ["Mode", body.mode],
      body.epoch !== undefined && ["Epoch", count(body.epoch)],
      body.ready && ["A confirm stands for", plural(body.ready.length, "disk")],
      body.ends && ["Journal up to", count(body.ends.journal)],
      body.complete && ["Complete up to", count(body.complete.journal)],
      ["Connections", count(body.connections)],
      body.provider && ["Decided by", body.provider],
      body.why && ["Why", body.why],
      body.differing?.length && ["Differs from the leader in", state(body.differing.join(", "), "bad")],
      body.cluster && ["Cluster", h("code", null, body.cluster)],
    ]);
    drawActions(body);
    draw();
  });
  page.watch("/members", (list) => {
    members = list;
    page.shell.knowMembers(list);
    draw();
  }, (words) => rows.fail(words));
  page.watch("/takeovers", (list) => past.show(list), (words) => past.fail(words));
  page.watch("/histories", (list) => histories.show(list), (words) => histories.fail(words));

  function draw() {
    if (!members.length) return;
    const present = new Set(members.map((one) => one.name));
    for (const one of members) known.set(one.name, one);
    const lost = [...known.values()].filter((one) => !present.has(one.name)).map((one) => ({ ...one, state: "gone", role: "", leader: false, lag: null, here: false }));
    const all = [...members, ...lost];
    rows.show(all);
    const away = all.filter((one) => one.state === "away" || one.state === "gone");
    const leader = members.find((one) => one.leader);
    fill(warning,
      facts.state === "alone" ? notice("info", "This broker stands alone. Three of them make a cluster that loses nothing when one dies: see docs/cluster.md.") : null,
      facts.state !== "alone" && !leader ? notice("bad", h("b", null, "Nobody leads. "), "Nothing can be published until a member does.") : null,
      away.length ? notice("warn", h("b", null, `${away.map((one) => one.name).join(", ")} ${away.length > 1 ? "are" : "is"} not there. `), "The others go on; it catches up when it is back.") : null);
    drawPicture(all);
  }

  function drawPicture(all) {
    const mode = facts.mode ?? members[0]?.mode;
    const isAway = (one) => one.state === "away" || one.state === "gone";
    const box = (one) => ({
      id: one.name,
      title: `${one.name}${one.here ? " (this page)" : ""}`,
      lines: isAway(one) ? ["away"] : [[one.role, one.state].filter(Boolean).join(" · "), one.leader ? "takes publishes" : one.lag !== null && one.lag !== undefined ? (one.lag ? `${plural(one.lag, "record")} behind` : "up to date") : WORDS[one.state] ?? ""],
      tone: isAway(one) ? "bad gone" : one.leader ? "strong" : TONES[one.state] ?? "",
      href: one.admin && !one.here ? onMember(one.admin, "#/cluster") : null,
    });
    const leader = all.find((one) => one.leader);
    const others = all.filter((one) => one !== leader);
    const line = (from, to) => {
      const dead = isAway(from) || isAway(to);
      const label = dead ? "not there" : to.lag === null || to.lag === undefined ? to.state : to.lag ? `${count(to.lag)} behind` : "up to date";
      return { from: from.name, to: to.name, label, tone: dead ? "bad" : to.state === "ready" ? "" : "warn", dashed: dead || to.state !== "ready", moving: !dead && to.state === "ready" };
    };
    if (!leader) {
      picture.show([all.map(box)], []);
      return;
    }
    if (mode === "chain") {
      const chain = [leader, ...others.filter((one) => !isAway(one) && one.role !== "joining"), ...others.filter((one) => isAway(one) || one.role === "joining")];
      const linked = chain.filter((one) => !isAway(one) && one.role !== "joining");
      const loose = chain.filter((one) => !linked.includes(one));
      const edges = linked.slice(1).map((one, index) => line(linked[index], one));
      // What is not in the chain hangs at its end, by a broken line.
      const layers = linked.map((one) => [box(one)]);
      if (loose.length) {
        layers.push(loose.map(box));
        edges.push(...loose.map((one) => line(linked[linked.length - 1], one)));
      }
      picture.show(layers, edges);
      return;
    }
    picture.show([[box(leader)], others.map(box)], others.map((one) => line(leader, one)));
  }

  function drawActions(body) {
    if (!actions) return;
    const sign = JSON.stringify([body.state, body.leader]);
    if (actions.dataset.sign === sign) return;
    actions.dataset.sign = sign;
    if (body.state === "alone" || !body.state) return;
    const leads = body.leader === body.name;
    fill(actions,
      leads ? button("Hand over", () => command("demote", "Hand over?", `${body.name} leads no more, and another ready member takes over. Clients connect again; nothing confirmed is lost.`)) : null,
      !leads && body.state === "ready" ? button("Lead", () => command("promote", `Should ${body.name} lead?`, `${body.name} takes over from ${body.leader ?? "nobody"}. Clients connect again; nothing confirmed is lost.`)) : null);
  }

  async function command(word, title, words) {
    if (!(await ask(title, words, { confirm: word === "demote" ? "Hand over" : "Lead" }))) return;
    page.act(() => post(`/tidemark/cluster/${word}`), (answer) => answer?.text ?? "Done.");
  }
}
