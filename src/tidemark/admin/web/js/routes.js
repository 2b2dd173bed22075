// Which address opens which page. The addresses are those of RabbitMQ's page where both have one.

import { openChannels, openConnection, openConnections } from "./pages/connections.js";
import { openCluster } from "./pages/cluster.js";
import { openDefinitions } from "./pages/definitions.js";
import { openExchange, openExchanges } from "./pages/exchanges.js";
import { openLimits } from "./pages/limits.js";
import { openOverview } from "./pages/overview.js";
import { openPipelines } from "./pages/pipelines.js";
import { openPolicies } from "./pages/policies.js";
import { openQueue } from "./pages/queue.js";
import { openQueues } from "./pages/queues.js";
import { openStream } from "./pages/stream.js";
import { openStreams } from "./pages/streams.js";
import { openUser, openUsers } from "./pages/users.js";
import { openVhost, openVhosts } from "./pages/vhosts.js";

/** What the navigation shows. `key` is the second key of the shortcut, `needs` are the tags one of which opens it. */
export const PLACES = {
  broker: [
    { nav: "overview", path: "/", title: "Overview", key: "o", open: openOverview },
    { nav: "queues", path: "/queues", title: "Queues", key: "q", open: openQueues },
    { nav: "exchanges", path: "/exchanges", title: "Exchanges", key: "e", open: openExchanges },
    { nav: "connections", path: "/connections", title: "Connections", key: "c", open: openConnections },
    { nav: "channels", path: "/channels", title: "Channels", key: "h", open: openChannels },
  ],
  own: [
    { nav: "streams", path: "/streams", title: "Streams", key: "s", open: openStreams },
    { nav: "cluster", path: "/cluster", title: "Cluster", key: "l", open: openCluster, needs: ["monitoring", "administrator"] },
    { nav: "pipelines", path: "/pipelines", title: "Pipelines", key: "p", open: openPipelines },
  ],
  admin: [
    { nav: "users", path: "/users", title: "Users", key: "u", open: openUsers, needs: ["administrator"] },
    { nav: "vhosts", path: "/vhosts", title: "Virtual hosts", key: "v", open: openVhosts },
    { nav: "policies", path: "/policies", title: "Policies", key: "y", open: openPolicies, needs: ["policymaker", "administrator"] },
    { nav: "limits", path: "/limits", title: "Limits", key: "i", open: openLimits, needs: ["administrator"] },
    { nav: "definitions", path: "/definitions", title: "Definitions", key: "d", open: openDefinitions, needs: ["administrator"] },
  ],
};

export const PAGES = [
  ...PLACES.broker,
  ...PLACES.own,
  ...PLACES.admin,
  { nav: "queues", path: "/queues/:vhost/:name", title: "Queues", open: openQueue },
  { nav: "exchanges", path: "/exchanges/:vhost/:name", title: "Exchanges", open: openExchange },
  { nav: "connections", path: "/connections/:name", title: "Connections", open: openConnection },
  { nav: "streams", path: "/streams/:vhost/:name", title: "Streams", open: openStream },
  { nav: "streams", path: "/streams/:vhost/:name/:tab", title: "Streams", open: openStream },
  { nav: "users", path: "/users/:name", title: "Users", open: openUser },
  { nav: "vhosts", path: "/vhosts/:name", title: "Virtual hosts", open: openVhost },
];

const patterns = PAGES.map((place) => [place.path.split("/").slice(1), place]);

/** The page that an address names, the variable parts of it, and what follows the question mark. */
export function find(address) {
  const [path, query = ""] = (address || "/").split("?");
  const parts = path.split("/").slice(1);
  for (const [pattern, place] of patterns) {
    if (pattern.length !== parts.length) continue;
    if (!pattern.every((part, index) => part.startsWith(":") || part === parts[index])) continue;
    const params = parts.filter((_, index) => pattern[index].startsWith(":")).map(unquoted);
    return { place, params, query: Object.fromEntries(new URLSearchParams(query)) };
  }
  return { place: null, params: [], query: {} };
}

function unquoted(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a page: to("queues", "/", "a b"). */
export const to = (...parts) => `#${parts.map((part) => `/${encodeURIComponent(part)}`).join("")}`;

/** A page on another member: this one, unless another address is given. */
export const onMember = (admin, hash = location.hash) => `${/^https?:\/\//.test(admin) ? admin.replace(/\/$/, "") : `${location.protocol}//${admin}`}/${hash}`;
