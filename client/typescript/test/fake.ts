import {
  Metadata,
  Server,
  ServerCredentials,
  status,
  type ServerWritableStream,
  type sendUnaryData,
  type ServerUnaryCall,
} from "@grpc/grpc-js";

import { ErrorInfo, RetryInfo } from "../src/generated/google/rpc/error_details.js";
import { Status } from "../src/generated/google/rpc/status.js";
import { connect, v1, type Board } from "../src/index.js";

/** What the server throws at a caller. */
export interface Refusal {
  code: status;
  details: string;
  metadata?: Metadata;
}

type Answer<T> = T | Refusal;
type Script = { messages: v1.WatchResponse[]; end?: Refusal; hang?: boolean };

export const quick = { attempts: 4, baseMs: 1, maxMs: 4 };

/**
 * A server whose answers a test writes down; it records what it was asked. The n-th call gets the n-th answer, later
 * ones the last.
 */
export class Fake {
  head = 0n;
  onGet: Answer<v1.GetResponse>[] = [];
  onCommit: Answer<v1.CommitResponse>[] = [];
  onWatch: Script[] = [];
  readonly commits: v1.CommitRequest[] = [];
  readonly watches: v1.WatchRequest[] = [];
  readonly authorizations: unknown[] = [];
  #gets = 0;

  /** Starts it and connects to it; both end with the test. */
  async serve(test: { after(fn: () => void): void }): Promise<Board> {
    const server = new Server();
    server.addService(v1.EntryServiceService, {
      get: (call: ServerUnaryCall<v1.GetRequest, v1.GetResponse>, callback: sendUnaryData<v1.GetResponse>) => {
        this.authorizations.push(...call.metadata.get("authorization"));
        reply(pick(this.onGet, this.#gets++), callback);
      },
      commit: (
        call: ServerUnaryCall<v1.CommitRequest, v1.CommitResponse>,
        callback: sendUnaryData<v1.CommitResponse>,
      ) => reply(pick(this.onCommit, this.commits.push(call.request) - 1), callback),
      watch: (call: ServerWritableStream<v1.WatchRequest, v1.WatchResponse>) => {
        const { messages, end, hang } = pick(this.onWatch, this.watches.push(call.request) - 1);
        for (const message of messages) call.write(message);
        if (end) call.emit("error", end);
        else if (!hang) call.end();
      },
    });
    server.addService(v1.BoardServiceService, {
      getBoard: (_: unknown, callback: sendUnaryData<v1.GetBoardResponse>) =>
        reply(v1.GetBoardResponse.create({ header: { revision: this.head, incarnation: "life-1" } }), callback),
    });
    const port = await new Promise<number>((resolve, reject) =>
      server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, port) =>
        error ? reject(error) : resolve(port),
      ),
    );
    const client = connect({ address: `127.0.0.1:${port}`, token: "secret", retry: quick });
    test.after(() => {
      client.close();
      server.forceShutdown();
    });
    return client.board("orders");
  }
}

function pick<T>(answers: T[], n: number): T {
  return answers[Math.min(n, answers.length - 1)]!;
}

function reply<T>(answer: Answer<T>, callback: sendUnaryData<T>): void {
  if (typeof answer === "object" && answer !== null && "code" in answer) callback(answer as Refusal);
  else callback(null, answer as T);
}

/** A status as the server makes it. */
export function refusal(
  code: status,
  reason: string,
  more: { conflict?: v1.ConflictDetail; retryAfterMs?: number } = {},
): Refusal {
  const any = (type: string, value: Uint8Array) => ({ typeUrl: `type.googleapis.com/${type}`, value: Buffer.from(value) });
  const details = [
    any("google.rpc.ErrorInfo", ErrorInfo.encode(ErrorInfo.create({ reason, domain: "slateboard" })).finish()),
  ];
  if (more.conflict) {
    details.push(any("slateboard.v1.ConflictDetail", v1.ConflictDetail.encode(more.conflict).finish()));
  }
  if (more.retryAfterMs !== undefined) {
    const retryDelay = { seconds: 0n, nanos: more.retryAfterMs * 1e6 };
    details.push(any("google.rpc.RetryInfo", RetryInfo.encode({ retryDelay }).finish()));
  }
  const metadata = new Metadata();
  metadata.set(
    "grpc-status-details-bin",
    Buffer.from(Status.encode({ code, message: "refused", details }).finish()),
  );
  return { code, details: "refused", metadata };
}

const header = (revision: bigint) => ({ revision, oldestRevision: 1n, incarnation: "life-1", replicaId: "r" });

export function batch(revision: bigint, complete: boolean, ...keys: string[]): v1.WatchResponse {
  const value = v1.WatchBatch.create({ revision, continues: !complete, entries: keys.map((key) => ({ key })) });
  return { header: header(revision), event: { $case: "batch", value } };
}

export function progress(revision: bigint): v1.WatchResponse {
  return { header: header(revision), event: { $case: "progress", value: {} } };
}

export function goingAway(revision: bigint): v1.WatchResponse {
  return { header: header(revision), event: { $case: "goingAway", value: { reason: "stopping" } } };
}
