import assert from "node:assert/strict";
import { test } from "node:test";

import { status } from "@grpc/grpc-js";

import { SlateError, v1, type Board } from "../src/index.js";
import { batch, Fake, goingAway, progress, quick, refusal, type Refusal } from "./fake.js";

const cut: Refusal = { code: status.UNAVAILABLE, details: "cut" };

/** Collects `revision:keys` until the watch ends or `limit` batches came. */
async function follow(board: Board, request: Partial<v1.WatchRequest>, limit: number): Promise<string[]> {
  const seen: string[] = [];
  for await (const { revision, entries } of board.watch(request, AbortSignal.timeout(10_000))) {
    seen.push([revision, ...entries.map((entry) => entry.key)].join(":"));
    if (seen.length === limit) break;
  }
  return seen;
}

test("a watch resumes after the last complete revision", async (t) => {
  const fake = new Fake();
  fake.onWatch = [
    { messages: [batch(5n, true, "a"), batch(6n, false, "b")], end: cut },
    { messages: [batch(6n, false, "b"), batch(6n, true, "c"), progress(8n)], end: cut },
    { messages: [batch(8n, true, "again"), batch(9n, true, "d")] },
  ];
  assert.deepEqual(await follow(await fake.serve(t), { afterRevision: 4n }, 3), ["5:a", "6:b:c", "9:d"]);
  assert.deepEqual(
    fake.watches.map((request) => [request.afterRevision, request.incarnation]),
    [[4n, ""], [5n, "life-1"], [8n, "life-1"]],
  );
});

test("a watch without a place starts at the head", async (t) => {
  const fake = new Fake();
  fake.head = 41n;
  fake.onWatch = [{ messages: [], end: cut }, { messages: [batch(42n, true, "a")] }];
  assert.deepEqual(await follow(await fake.serve(t), {}, 1), ["42:a"]);
  for (const request of fake.watches) {
    assert.deepEqual([request.afterRevision, request.incarnation], [41n, "life-1"]);
  }
});

test("a server that goes away is left for another", async (t) => {
  const fake = new Fake();
  const draining = refusal(status.UNAVAILABLE, "DRAINING");
  fake.onWatch = [
    { messages: [batch(6n, false, "b"), goingAway(6n)], end: draining },
    { messages: [batch(6n, true, "b"), goingAway(7n)], end: draining },
    { messages: [batch(8n, true, "c")], end: refusal(status.RESOURCE_EXHAUSTED, "WATCH_TOO_SLOW") },
    { messages: [batch(9n, true, "d")] },
  ];
  assert.deepEqual(await follow(await fake.serve(t), { afterRevision: 5n }, 3), ["6:b", "8:c", "9:d"]);
  assert.deepEqual(
    fake.watches.map((request) => request.afterRevision),
    [5n, 5n, 7n, 8n],
  );
});

for (const [reason, code] of [
  ["COMPACTED", status.OUT_OF_RANGE],
  ["BOARD_REINCARNATED", status.OUT_OF_RANGE],
  ["DENIED", status.PERMISSION_DENIED],
] as const) {
  test(`a watch ends where its place is gone: ${reason}`, async (t) => {
    const fake = new Fake();
    fake.onWatch = [{ messages: [batch(5n, true, "a")], end: refusal(code, reason) }];
    const failed = await follow(await fake.serve(t), { afterRevision: 4n }, 9).catch((error: unknown) => error);
    assert(failed instanceof SlateError);
    assert.equal(failed.reason, v1.ErrorReason[reason]);
    assert.equal(fake.watches.length, 1);
  });
}

test("a silent stream is taken for dead", async (t) => {
  const fake = new Fake();
  fake.onWatch = [{ messages: [], hang: true }, { messages: [batch(5n, true, "a")] }];
  const request = { afterRevision: 4n, progressInterval: { seconds: 0n, nanos: 20e6 } };
  assert.deepEqual(await follow(await fake.serve(t), request, 1), ["5:a"]);
  assert.equal(fake.watches.length, 2);
});

test("a server that is gone ends the watch in the end", async (t) => {
  const fake = new Fake();
  fake.onWatch = [{ messages: [], end: cut }];
  await assert.rejects(follow(await fake.serve(t), { afterRevision: 4n }, 1), { code: status.UNAVAILABLE });
  assert.equal(fake.watches.length, quick.attempts);
});

test("an aborted watch ends with the signal's reason", async (t) => {
  const fake = new Fake();
  fake.onWatch = [{ messages: [batch(5n, true, "a")], hang: true }];
  const controller = new AbortController();
  const reason = new Error("enough");
  const watching = async (board: Board) => {
    for await (const _ of board.watch({ afterRevision: 4n }, controller.signal)) controller.abort(reason);
  };
  await assert.rejects(watching(await fake.serve(t)), reason);
});
