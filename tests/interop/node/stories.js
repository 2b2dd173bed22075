// amqplib against a broker: `node stories.js URL STORY` exits 0 when the story came true.
"use strict";

const assert = require("node:assert/strict");
const crypto = require("node:crypto");
const amqp = require("amqplib");

const [url, wanted] = process.argv.slice(2);
const unique = () => `node-${crypto.randomUUID().slice(0, 12)}`;
const collect = (channel, queue, count, options = {}) =>
  new Promise((resolve, reject) => {
    const taken = [];
    channel
      .consume(queue, (message) => {
        taken.push(message);
        if (!options.noAck) channel.ack(message);
        if (taken.length === count) resolve(taken);
      }, options)
      .catch(reject);
  });

const stories = {
  async "publish-and-consume"(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue("", { exclusive: true });
    await channel.prefetch(10);
    const arriving = collect(channel, queue, 200);
    for (let n = 0; n < 200; n++) channel.sendToQueue(queue, Buffer.from(String(n)));
    const taken = await arriving;
    assert.deepEqual(taken.map((m) => m.content.toString()), [...Array(200).keys()].map(String));
  },

  async "confirms"(connection) {
    const channel = await connection.createConfirmChannel();
    const queue = unique();
    await channel.assertQueue(queue, { durable: true, exclusive: true });
    for (let n = 0; n < 100; n++) channel.sendToQueue(queue, Buffer.from("x"), { persistent: true });
    await channel.waitForConfirms();
    assert.equal((await channel.checkQueue(queue)).messageCount, 100);
  },

  async "properties"(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue("", { exclusive: true });
    const headers = { text: "žluť", n: 5, list: [1, "two"], nested: { deep: true } };
    channel.sendToQueue(queue, Buffer.alloc(0), {
      headers, contentType: "text/plain", correlationId: "c", messageId: "m", type: "t", appId: "a",
      timestamp: 1700000000, priority: 3, expiration: "60000", replyTo: "r",
    });
    const [message] = await collect(channel, queue, 1);
    assert.deepEqual(message.properties.headers, headers);
    assert.equal(message.properties.correlationId, "c");
    assert.equal(message.properties.timestamp, 1700000000);
    assert.equal(message.content.length, 0);
  },

  async "exchanges"(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue("", { exclusive: true });
    const { exchange } = await channel.assertExchange(unique(), "topic", { autoDelete: true });
    await channel.bindQueue(queue, exchange, "a.#");
    channel.publish(exchange, "b.c", Buffer.from("no"));
    channel.publish(exchange, "a.b.c", Buffer.from("yes"));
    const [message] = await collect(channel, queue, 1);
    assert.equal(message.content.toString(), "yes");
    assert.equal(message.fields.routingKey, "a.b.c");
  },

  async "channel-error"(connection) {
    const channel = await connection.createChannel();
    const failed = new Promise((resolve) => channel.on("error", resolve));
    await assert.rejects(channel.checkQueue(unique()), /404/);
    assert.equal((await failed).code, 404);
    const other = await connection.createChannel();
    await other.assertQueue("", { exclusive: true });
  },

  async "returns"(connection) {
    const channel = await connection.createChannel();
    const returned = new Promise((resolve) => channel.on("return", resolve));
    channel.publish("", unique(), Buffer.from("stray"), { mandatory: true });
    assert.equal((await returned).fields.replyCode, 312);
  },

  async "reply-to"(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue("", { exclusive: true });
    await channel.consume(queue, (message) => {
      const { replyTo, correlationId } = message.properties;
      channel.sendToQueue(replyTo, Buffer.from("pong"), { correlationId });
      channel.ack(message);
    });
    const answer = collect(channel, "amq.rabbitmq.reply-to", 1, { noAck: true });
    channel.sendToQueue(queue, Buffer.from("ping"), {
      replyTo: "amq.rabbitmq.reply-to", correlationId: "7",
    });
    const [message] = await answer;
    assert.equal(message.properties.correlationId, "7");
    assert.equal(message.content.toString(), "pong");
  },

  async "large-body"(connection) {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue("", { exclusive: true });
    const body = crypto.randomBytes(3 * 1024 * 1024);
    channel.sendToQueue(queue, body);
    await channel.waitForConfirms();
    const message = await channel.get(queue, { noAck: true });
    assert.ok(message.content.equals(body));
  },
};

async function main() {
  if (wanted === "--list") return console.log(Object.keys(stories).join("\n"));
  const connection = await amqp.connect(url);
  await stories[wanted](connection);
  await connection.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
