// Tests against a real server: SLATE_SERVER and SLATE_TOKEN name it, and the token must be allowed to make boards.
// tests/stubs/test_typescript_example.py starts one and runs them; they are skipped elsewhere.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test, type TestContext } from "node:test";

import { status } from "@grpc/grpc-js";

import { absent, appendOp, connect, fromJson, json, SlateError, under, v1, version, type Board } from "../src/index.js";
import { Proxy } from "./proxy.js";

const target = process.env["SLATE_SERVER"] ?? "";
const live = { skip: target ? false : "SLATE_SERVER names no server" };

function board(t: TestContext, name: string, address = target): Board {
  const client = connect({ address });
  t.after(() => client.close());
  return client.board(name);
}

async function newBoard(t: TestContext): Promise<Board> {
  const made = board(t, `ts-${randomUUID().slice(0, 8)}`);
  const request = v1.CreateBoardRequest.create({ name: made.name, requestId: randomUUID() });
  await made.client.call(v1.BoardServiceService.createBoard, request);
  return made;
}

test("the second of two writers gets a typed conflict", live, async (t) => {
  const one = await newBoard(t);
  const other = board(t, one.name);
  await one.put("plan/current", json(1), absent);
  const read = await one.get("plan/current");
  const alsoRead = await other.get("plan/current");
  await one.put("plan/current", json(2), version(read!.version));
  const failed = await other
    .put("plan/current", json(3), version(alsoRead!.version))
    .catch((error: unknown) => error);

  assert(failed instanceof SlateError);
  assert.equal(failed.code, status.ABORTED);
  assert.equal(failed.reason, v1.ErrorReason.VERSION_CONFLICT);
  assert(failed.retryAfterMs > 0);
  const me = await one.client.call(v1.AdminServiceService.whoAmI, {});
  const [violation, ...rest] = failed.conflict!.violations;
  assert.deepEqual(rest, []);
  assert.equal(violation!.key, "plan/current");
  assert.equal(violation!.currentVersion, 2n);
  assert.equal(violation!.currentPrincipal, me.principal!.id);
  assert.equal(violation!.reason, "VERSION_CONFLICT");
  const kept = await one.client.call(v1.EntryServiceService.getConflict, {
    board: one.name,
    conflictId: failed.conflict!.conflictId,
  });
  assert.equal(kept.conflict!.violations[0]!.key, "plan/current");
});

test("no update of racing writers is lost", live, async (t) => {
  const counted = await newBoard(t);
  const writer = async () => {
    for (let i = 0; i < 5; i++) {
      await counted.update("counter", (current) => json((current ? fromJson<number>(current) : 0) + 1));
    }
  };
  await Promise.all([writer(), writer(), writer(), writer()]);
  assert.equal(fromJson<number>((await counted.get("counter"))!), 20);
});

test("a retry after a lost reply is answered and not repeated", live, async (t) => {
  const near = await newBoard(t);
  const proxy = await Proxy.start(t, target);
  const far = board(t, near.name, proxy.address);
  assert.equal(await far.get("log"), undefined); // connected
  proxy.swallow(); // the server's reply will not arrive
  const outcome = far.commit(v1.CommitRequest.create({ ops: [appendOp("log/", json("once"))] }));
  for await (const _ of near.watch({ afterRevision: 0n })) break; // it is committed
  proxy.cut();
  assert.equal((await outcome).replayed, true);
  const request = v1.ListRequest.create({ board: near.name, prefix: { prefix: "log/" } });
  const list = await near.client.call(v1.EntryServiceService.list, request);
  assert.equal(list.entries.length, 1);
});

test("a watch misses nothing while its connection is cut", live, async (t) => {
  const near = await newBoard(t);
  const proxy = await Proxy.start(t, target);
  const write = (n: number) => near.put(`step/${n}`, json(n), absent);
  await write(1);
  const seen: string[] = [];
  let last = 0n;
  const request = { afterRevision: 0n, prefixes: [under("step/")] };
  for await (const batch of board(t, near.name, proxy.address).watch(request, AbortSignal.timeout(20_000))) {
    assert(batch.revision > last);
    last = batch.revision;
    seen.push(batch.entries[0]!.key);
    if (seen.length === 1 || seen.length === 3) {
      proxy.refusing = true;
      proxy.cut();
      await write(seen.length + 1);
      await write(seen.length + 2);
      proxy.refusing = false;
    }
    if (seen.length === 5) break;
  }
  assert.deepEqual(seen, ["step/1", "step/2", "step/3", "step/4", "step/5"]);
  assert(proxy.connections >= 3, "nothing was resumed");
});

test("a watch from another life of the board is refused", live, async (t) => {
  const watching = (await newBoard(t)).watch({ afterRevision: 0n, incarnation: "another" });
  await assert.rejects(watching.next(), { reason: v1.ErrorReason.BOARD_REINCARNATED });
});
