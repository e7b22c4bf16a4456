/**
 * An agent that reads a plan, changes it next to another one, and follows what happens.
 *
 *     SLATE_SERVER=127.0.0.1:7400 SLATE_TOKEN=... npm run example -- BOARD
 *
 * The board is made where it does not exist and the token may do that.
 */
import { randomUUID } from "node:crypto";

import { connect, fromJson, json, SlateError, under, v1, version, type Client } from "./index.js";

interface Plan {
  goal: string;
  step: number;
}

async function run(client: Client, name: string): Promise<void> {
  const me = await client.call(v1.AdminServiceService.whoAmI, {});
  console.log("principal:", me.principal?.id);
  const start = await openBoard(client, name);
  const board = client.board(name);

  // A first version, and a second writer that read the same one.
  await board.update("plan/current", () => json({ goal: "weekly report", step: 0 } satisfies Plan));
  const read = await board.get("plan/current");
  for (const step of [1, 2]) {
    try {
      await board.put("plan/current", json({ goal: "weekly report", step } satisfies Plan), version(read!.version));
      console.log("step", step, "written");
    } catch (error) {
      const { conflict } = SlateError.from(error);
      if (!conflict) throw error;
      for (const { key, expected, currentVersion, currentPrincipal } of conflict.violations) {
        console.log(`conflict on ${key}: expected ${expected}, is version ${currentVersion} by ${currentPrincipal}`);
      }
    }
  }

  // What the second writer should have done: decide again on what is there now.
  await board.update("plan/current", (current) => {
    const plan = fromJson<Plan>(current!);
    return json({ ...plan, step: plan.step + 1 } satisfies Plan);
  });

  // Everything since the start, as somebody who was away would catch up.
  let seen = 0;
  const request = {
    afterRevision: start?.revision,
    incarnation: start?.incarnation,
    prefixes: [under("plan/")],
  };
  for await (const { revision, entries } of board.watch(request, AbortSignal.timeout(60_000))) {
    for (const { key, version, content } of entries) {
      console.log(`revision ${revision}: ${key} version ${version}: ${content?.value.toString()}`);
    }
    if (++seen === 3) break;
  }
  console.log("done");
}

/** Tells where a board stands, and makes it if need be. */
async function openBoard(client: Client, name: string): Promise<v1.ResponseHeader | undefined> {
  try {
    return (await client.call(v1.BoardServiceService.getBoard, { board: name })).header;
  } catch (error) {
    if (SlateError.from(error).reason !== v1.ErrorReason.BOARD_NOT_FOUND) throw error;
    const request = v1.CreateBoardRequest.create({ name, requestId: randomUUID() });
    return (await client.call(v1.BoardServiceService.createBoard, request)).header;
  }
}

const client = connect(); // SLATE_SERVER, SLATE_TOKEN
try {
  await run(client, process.argv[2] ?? "example");
} finally {
  client.close();
}
