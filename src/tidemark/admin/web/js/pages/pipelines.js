// Pipelines: from which streams to which sinks, how fast, how far behind, and what went wrong with which row.

import { fill, h } from "../dom.js";
import { ago, count, duration, moment, plural, rate, shownName } from "../format.js";
import { Picture } from "../picture.js";
import { to } from "../routes.js";
import { table } from "../table.js";
import { badge, card, empty, factList, figure, heading, notice, skeleton, state } from "../ui.js";
import { viewer } from "../viewer.js";

/** In these a sink moves nothing, whatever it did before. */
const STILL = ["failed", "stopped", "done", "lost"];
const TONES = { running: "good", "up to date": "good", following: "good", idle: "quiet", starting: "quiet", stopped: "quiet", done: "quiet", new: "quiet", waiting: "warn", retrying: "warn", restarting: "warn", failed: "bad", lost: "bad" };

export function openPipelines(page) {
  const place = h("div", { class: "stack" }, skeleton(6));
  const shown = new Map();
  page.show(heading("Pipelines", { note: ["What ", h("code", null, "tidemark pipeline run"), " reports, once a second"] }), place);

  page.watch("/pipelines", (found) => {
    const list = Array.isArray(found) ? found : found.items ?? [];
    if (!list.length) {
      shown.clear();
      fill(place, card("No pipeline has reported", empty("Nothing runs yet", "A pipeline reads streams of this broker and keeps databases, files and search indexes equal to them. Start one with “tidemark pipeline run FILE”.")));
      return;
    }
    if (place.firstChild?.classList.contains("skeleton") || place.querySelector(".empty")) fill(place);
    const wanted = new Set();
    for (const one of list) {
      const key = `${one.name}\n${one.host}`;
      wanted.add(key);
      if (!shown.has(key)) {
        const view = drawPipeline(one);
        shown.set(key, view);
        place.append(view.node);
      }
      shown.get(key).show(one);
    }
    for (const [key, view] of shown) {
      if (wanted.has(key)) continue;
      view.node.remove();
      shown.delete(key);
    }
  });
}

function drawPipeline(first) {
  const picture = new Picture(`The pipeline ${first.name}`, { narrow: 640 });
  const note = h("span", { class: "badges" });
  const problems = h("div", { class: "stack" });
  const facts = factList(`Facts of ${first.name}`);
  const sinks = table(`Sinks of ${first.name}`, [
    { name: "name", label: "Sink", of: (one) => [one.name, one.kind], cell: ([name, kind]) => [h("b", null, name), " ", badge(kind ?? "")], class: "name-cell" },
    { name: "state", label: "State", of: (one) => one.state, cell: (word) => state(word ?? "unknown", TONES[word] ?? "quiet") },
    { name: "speed", label: "Rows/s", of: (one) => [one.rows_per_s ?? 0, one.state], cell: ([speed, word]) => (STILL.includes(word) ? "–" : rate(speed)), number: true },
    { name: "rows", label: "Rows", of: (one) => one.rows ?? null, cell: figure(count), number: true },
    { name: "lag", label: "Behind", of: (one) => [one.lag_rows ?? null, one.lag_s ?? null], cell: ([rows, seconds]) => (rows === null ? "–" : rows ? `${plural(rows, "row")}${seconds ? ` · ${duration(seconds * 1000)}` : ""}` : "up to date"), number: true },
    { name: "eta", label: "Caught up in", of: (one) => (STILL.includes(one.state) ? null : one.eta_s ?? null), cell: (seconds) => (seconds === null ? "–" : seconds ? duration(seconds * 1000) : "now"), number: true },
    { name: "boundary", label: "Last boundary", of: (one) => [one.sequence ?? null, one.boundary_ms ?? null], cell: ([sequence, ms]) => [sequence === null ? "–" : `sequence ${count(sequence)}`, ms ? h("span", { class: "muted" }, ` ${ago(ms)}`) : null] },
    { name: "dead", label: "Dead letters", of: (one) => one.dead_letters ?? 0, cell: (number) => (number ? badge(count(number), "bad") : "0"), number: true },
  ], { key: (one) => one.name });
  const node = card(first.name, { actions: note }, picture.node, problems, sinks.node, facts.node);

  return {
    node,
    show(one) {
      const word = one.state;
      fill(note, state(word === "lost" ? `lost: not heard of for ${duration(Date.now() - one.at_ms)}` : word, TONES[word] ?? "quiet"), badge(one.host ?? ""));
      sinks.show(one.sinks ?? []);
      facts.show([["Runs on", one.host ?? "–"], ["Since", moment(one.began_ms)], one.pid && ["Process", one.pid], ["Last report", ago(one.at_ms)]]);
      drawPicture(picture, one, word);
      drawProblems(problems, one);
    },
  };
}

/** Sources on the left, sinks on the right, steps between them in the order in which rows pass them. */
function drawPicture(picture, one, word) {
  const running = word !== "lost" && (one.sinks ?? []).some((sink) => !STILL.includes(sink.state));
  const layers = [[]];
  const depths = new Map();
  const edges = [];
  const put = (name, depth, box) => {
    depths.set(name, depth);
    (layers[depth] ??= []).push({ id: name, ...box });
  };
  for (const source of one.sources ?? []) put(source.name || source.stream, 0, { title: source.name || source.stream, lines: [`stream ${source.stream}`], tone: "accent", href: to("streams", one.vhost ?? "/", source.stream) });
  for (const step of one.steps ?? []) {
    const reads = (step.reads ?? []).filter((name) => depths.has(name));
    put(step.name, 1 + Math.max(0, ...reads.map((name) => depths.get(name))), { title: step.name, lines: [step.kind] });
    edges.push(...reads.map((name) => ({ from: name, to: step.name, moving: running })));
  }
  const last = Math.max(1, 1 + Math.max(0, ...depths.values()));
  for (const sink of one.sinks ?? []) {
    const id = `sink ${sink.name}`;
    const still = !running || STILL.includes(sink.state);
    put(id, last, { title: sink.name, lines: [[sink.kind, sink.mode].filter(Boolean).join(" · "), sink.lag_rows ? `${plural(sink.lag_rows, "row")} behind` : sink.lag_rows === 0 ? "up to date" : sink.state], tone: sink.error ? "bad" : TONES[sink.state] ?? "" });
    const reads = depths.has(sink.reads) ? [sink.reads] : (one.sources ?? []).map((source) => source.name || source.stream);
    edges.push(...reads.map((name) => ({ from: name, to: id, label: still ? "" : rate(sink.rows_per_s ?? 0), tone: sink.error ? "bad" : "", moving: !still && (sink.rows_per_s ?? 0) > 0 })));
  }
  picture.show(layers.map((layer) => layer ?? []), edges);
}

function drawProblems(place, one) {
  const found = (one.sinks ?? []).filter((sink) => sink.error);
  const sign = JSON.stringify(found.map((sink) => [sink.name, sink.error]));
  if (place.dataset.sign === sign) return;
  place.dataset.sign = sign;
  fill(place, found.map((sink) => {
    const { message, row } = sink.error;
    return h("div", { class: "problem" }, notice("bad", h("b", null, `${sink.name}: `), message ?? "A row was refused."), row ? drawRow(row) : null);
  }));
}


/** The row that could not be stored, with why. */
function drawRow(row) {
  const facts = factList("The row");
  facts.show([["Key", h("code", null, shownName(row.key))], ["Sequence", count(row.sequence)], row.on && ["Of", row.on], row.failed?.length ? ["What failed", row.failed.join(", ")] : null, row.at_ms && ["When", moment(row.at_ms)]]);
  return h("details", { open: true }, h("summary", null, "The row"), facts.node, viewer(row.value ?? "", "string"), row.cut ? h("p", { class: "hint" }, "Only the beginning of the value is shown.") : null);
}
