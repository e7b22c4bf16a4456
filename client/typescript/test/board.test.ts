import assert from "node:assert/strict";
import { test } from "node:test";

import { status } from "@grpc/grpc-js";

import { absent, connect, json, SlateError, v1, version } from "../src/index.js";
import { isLoopback } from "../src/client.js";
import { Fake, quick, refusal } from "./fake.js";

const found = (at: bigint) =>
  v1.GetResponse.create({ entries: [{ region: "shared", key: "plan", version: at }] });
const accepted = v1.CommitResponse.create({ results: [{ key: "plan", version: 9n, changed: true }] });

test("the token travels as a bearer", async (t) => {
  const fake = new Fake();
  fake.onGet = [found(1n)];
  await (await fake.serve(t)).get("plan");
  assert.deepEqual(fake.authorizations, ["Bearer secret"]);
});

test("plain text is spoken on loopback only", () => {
  for (const address of ["127.0.0.1:7400", "localhost:7400", "[::1]:7400", "dns:///127.0.0.1:7400"]) {
    assert.equal(isLoopback(address), true, address);
  }
  for (const address of ["10.0.0.1:7400", "board.example:7400", "dns:///board.example:7400", "127.evil.example:1"]) {
    assert.equal(isLoopback(address), false, address);
  }
});

test("connecting without a token is refused", () => {
  const kept = process.env["SLATE_TOKEN"];
  delete process.env["SLATE_TOKEN"];
  try {
    assert.throws(() => connect(), /SLATE_TOKEN/);
  } finally {
    if (kept !== undefined) process.env["SLATE_TOKEN"] = kept;
  }
});

test("an absent key is undefined", async (t) => {
  const fake = new Fake();
  fake.onGet = [v1.GetResponse.create({ absent: [{ key: "plan" }] })];
  assert.equal(await (await fake.serve(t)).get("plan"), undefined);
});

test("a commit is retried under its own request id", async (t) => {
  const fake = new Fake();
  fake.onCommit = [
    refusal(status.UNAVAILABLE, "STORAGE_DOWN"),
    refusal(status.RESOURCE_EXHAUSTED, "RATE_LIMITED", { retryAfterMs: 1 }),
    accepted,
  ];
  await (await fake.serve(t)).put("plan", json(1), absent);
  const ids = fake.commits.map((request) => request.requestId);
  assert.equal(ids.length, 3);
  assert.match(ids[0]!, /^[0-9a-f-]{36}$/);
  assert.deepEqual(new Set(ids).size, 1);
});

test("retries are bounded", async (t) => {
  const fake = new Fake();
  fake.onCommit = [refusal(status.UNAVAILABLE, "STORAGE_DOWN")];
  await assert.rejects((await fake.serve(t)).put("plan", json(1), absent), { code: status.UNAVAILABLE });
  assert.equal(fake.commits.length, quick.attempts);
});

test("a conflict is typed and not retried", async (t) => {
  const fake = new Fake();
  const conflict = v1.ConflictDetail.create({
    conflictId: "c-1",
    violations: [{ key: "plan", currentVersion: 4n, currentPrincipal: "ann" }],
  });
  fake.onCommit = [refusal(status.ABORTED, "VERSION_CONFLICT", { conflict, retryAfterMs: 30 })];
  const failed = await (await fake.serve(t)).put("plan", json(1), version(3n)).catch((error: unknown) => error);
  assert(failed instanceof SlateError);
  assert.equal(failed.code, status.ABORTED);
  assert.equal(failed.reason, v1.ErrorReason.VERSION_CONFLICT);
  assert.equal(failed.retryAfterMs, 30);
  assert.deepEqual(failed.conflict, conflict);
  assert.equal(fake.commits.length, 1);
});

test("a reason newer than the stubs keeps its name", async (t) => {
  const fake = new Fake();
  fake.onCommit = [refusal(status.FAILED_PRECONDITION, "OF_TOMORROW")];
  const failed = await (await fake.serve(t)).put("plan", json(1), absent).catch((error: unknown) => error);
  assert(failed instanceof SlateError);
  assert.equal(failed.reason, v1.ErrorReason.UNSPECIFIED);
  assert.equal(failed.info?.reason, "OF_TOMORROW");
});

test("update reads again after a conflict", async (t) => {
  const fake = new Fake();
  fake.onGet = [found(3n), found(4n)];
  fake.onCommit = [refusal(status.ABORTED, "VERSION_CONFLICT"), accepted];
  const seen: (bigint | undefined)[] = [];
  await (await fake.serve(t)).update("plan", (current) => {
    seen.push(current?.version);
    return json(1);
  });
  assert.deepEqual(seen, [3n, 4n]);
  assert.notEqual(fake.commits[0]!.requestId, fake.commits[1]!.requestId);
  const op = fake.commits[1]!.ops[0]!.kind;
  assert(op?.$case === "put");
  assert.deepEqual(op.value.precondition, version(4n));
  const [source] = op.value.content!.provenance!.derivations[0]!.sources;
  assert.deepEqual([source?.key, source?.version], ["plan", 4n]);
});

test("update gives up in the end", async (t) => {
  const fake = new Fake();
  fake.onGet = [found(3n)];
  fake.onCommit = [refusal(status.ABORTED, "VERSION_CONFLICT")];
  await assert.rejects((await fake.serve(t)).update("plan", () => json(1)), { contention: true });
  assert.equal(fake.commits.length, quick.attempts);
});

test("an aborted call ends with the signal's reason", async (t) => {
  const fake = new Fake();
  fake.onGet = [found(3n)];
  const reason = new Error("enough");
  await assert.rejects((await fake.serve(t)).get("plan", { signal: AbortSignal.abort(reason) }), reason);
});
