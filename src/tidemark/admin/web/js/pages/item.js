// One message of a stream in full, and the past of one key.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, count, moment, shownName } from "../format.js";
import { badge, button, dialog, empty, factList, link, notice, skeleton, state } from "../ui.js";
import { glimpse, viewer } from "../viewer.js";

export function openMessage(page, path, one) {
  const { body } = dialog(`Message ${count(one.sequence)}`, { wide: true });
  body.append(drawItem(one), one.key !== null && one.key !== undefined ? h("footer", { class: "dialog-foot" }, button("The past of this key", () => openKey(page, path, one))) : "");
}

export function drawItem(one) {
  const facts = factList("Message");
  facts.show([
    ["Sequence", count(one.sequence)],
    ["Time", moment(one.timestamp, true)],
    ["Key", one.key === null || one.key === undefined ? "none" : h("code", null, shownName(one.key), one.key_encoding === "base64" ? " (base64)" : "")],
    one.superseded_by !== undefined && ["Replaced by", one.superseded_by === null ? "nothing: it is the newest" : count(one.superseded_by)],
    ...Object.entries(one.properties ?? {}).map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)]),
    ...Object.entries(one.headers ?? {}).map(([name, value]) => [`header ${name}`, typeof value === "object" ? JSON.stringify(value) : String(value)]),
  ]);
  return h("div", { class: "message" }, facts.node,
    one.tombstone ? empty("Deleted", "This message says that the key is gone.") : [one.cut ? notice("info", `Only the beginning is shown: the whole value has ${bytes(one.bytes)}.`) : null, viewer(one.value ?? "", one.encoding, one.bytes)]);
}

/** A key may be any bytes: those that are no text are quoted one by one. */
const quotedKey = (one) =>
  one.key_encoding === "base64" ? [...atob(one.key)].map((sign) => `%${sign.charCodeAt(0).toString(16).padStart(2, "0")}`).join("") : encodeURIComponent(one.key);

/** What a key was, newest first, as far as it is still kept. */
export async function openKey(page, path, one) {
  const { body } = dialog(`Key ${shownName(one.key)}`, { wide: true });
  fill(body, skeleton(4));
  let found;
  try {
    found = await get(`${path}/keys/${quotedKey(one)}`);
  } catch (error) {
    fill(body, notice("bad", error.message));
    return;
  }
  const all = found.revisions ?? [];
  if (!all.length) {
    fill(body, empty("Nothing is left of it", "No version of this key is kept any more."));
    return;
  }
  fill(body, h("p", { class: "hint" }, all.length === 1 ? "One version is kept: replaced ones go when nobody needs them." : `${count(all.length)} versions are kept, the newest first.`),
    h("ol", { class: "timeline" }, all.map((item, index) => h("li", { class: item.tombstone ? "bad" : index ? "" : "accent" },
      h("details", { open: index === 0 },
        h("summary", null, h("b", null, `Sequence ${count(item.sequence)}`), " ", h("span", { class: "muted" }, moment(item.timestamp, true)), " ", item.tombstone ? badge("deleted", "bad") : item.current ? state("current", "good") : null,
          index && !item.tombstone ? h("code", { class: "glimpse" }, glimpse(item.value, item.encoding, 60)) : null),
        drawItem(item),
        h("p", null, link(`${location.hash.split("?")[0]}?at=${item.sequence}`, "The stream as it was then")))))));
}
