// Asking the management API. Every call carries the header that a form of another site cannot send.

export class ApiError extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

let whenLoggedOut = () => {};
export const onLoggedOut = (act) => { whenLoggedOut = act; };
export const loggedOut = () => whenLoggedOut();

let standing = null;
let whenStanding = () => {};
/** Hear now and with every answer which member gave it and who leads: `act({name, state, leads, leader, leader_admin})`. */
export function onStanding(act) {
  whenStanding = act;
  if (standing) act(standing);
}

function hearStanding(headers) {
  const name = headers.get("X-Tidemark-Member");
  if (name === null) return;
  const state = headers.get("X-Tidemark-State");
  const leader = headers.get("X-Tidemark-Leader");
  standing = { name: decodeURIComponent(name), state, leads: leader === name, leader: leader === null ? null : decodeURIComponent(leader), leader_admin: headers.get("X-Tidemark-Leader-Admin") ?? "" };
  whenStanding(standing);
}

const WORDS = {
  0: "The broker does not answer. Is it running, and can this computer reach it?",
  401: "You are not logged in, or your user may not do this.",
  403: "The broker refused this.",
  404: "There is no such thing (any more).",
  413: "That is too much for one request.",
  429: "Too many attempts. Wait a little and try again.",
  500: "The broker failed while it answered; its log has the details.",
  503: "The broker cannot do this now.",
};

/** Make a sentence of whatever the API said. */
export function sentence(status, body) {
  const said = typeof body === "object" && body !== null ? body.reason ?? body.error : body;
  const text = typeof said === "string" && said.trim() && !said.trim().startsWith("<") ? said.trim() : WORDS[status] ?? `The broker answered ${status}.`;
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

async function call(method, path, body, headers = {}) {
  let answer;
  try {
    answer = await fetch(`/api${path}`, {
      method,
      credentials: "same-origin",
      cache: "no-store",
      headers: { Accept: "application/json", "X-Tidemark": "1", ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new ApiError(0, WORDS[0]);
  }
  hearStanding(answer.headers);
  const text = await answer.text();
  let found = null;
  if (text) {
    try {
      found = JSON.parse(text);
    } catch {
      found = text;
    }
  }
  if (!answer.ok) {
    let reason = sentence(answer.status, found);
    const wait = answer.headers.get("Retry-After");
    if (answer.status === 429 && wait) reason += ` Try again in ${wait} s.`;
    // RabbitMQ says 401 for missing rights, too; only without a login is it the end of the session.
    if (answer.status === 401 && path !== "/login" && path !== "/whoami" && !(await alive())) whenLoggedOut();
    throw new ApiError(answer.status, reason);
  }
  return found;
}

/** Whether we are still logged in. */
export async function alive() {
  try {
    const answer = await fetch("/api/whoami", { credentials: "same-origin", cache: "no-store", headers: { "X-Tidemark": "1" } });
    return answer.status !== 401;
  } catch {
    return true;
  }
}

export const get = (path) => call("GET", path);
export const put = (path, body = {}) => call("PUT", path, body);
export const post = (path, body = {}) => call("POST", path, body);
export const del = (path, headers) => call("DELETE", path, undefined, headers);

/** Parts of a path, quoted: at("queues", "/", "a b"). */
export const at = (...parts) => parts.map((part) => `/${encodeURIComponent(part)}`).join("");

/** Parameters behind a path; what is empty is left out. */
export function withQuery(path, values) {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== undefined && value !== null && value !== "" && value !== false) given.set(name, String(value));
  }
  const text = given.toString();
  return text ? `${path}?${text}` : path;
}
