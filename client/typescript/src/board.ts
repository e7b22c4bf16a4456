import { randomUUID } from "node:crypto";

import type { CallSettings, Client } from "./client.js";
import { SlateError } from "./errors.js";
import type { OpResult, Precondition } from "./generated/slateboard/v1/commit.js";
import { Op } from "./generated/slateboard/v1/commit.js";
import { CommitRequest, EntryServiceService, GetRequest, WatchRequest } from "./generated/slateboard/v1/entry_service.js";
import type { CommitResponse } from "./generated/slateboard/v1/entry_service.js";
import { Content, PrefixRef, Provenance } from "./generated/slateboard/v1/types.js";
import type { Entry } from "./generated/slateboard/v1/types.js";
import { pause, retrying } from "./retry.js";
import { watch, type Batch } from "./watch.js";

/** The shared region of one board. */
export class Board {
  constructor(
    readonly client: Client,
    readonly name: string,
  ) {}

  /** Reads the present version of a key; undefined where it is absent. */
  async get(key: string, settings: CallSettings = {}): Promise<Entry | undefined> {
    const { client } = this;
    const request = GetRequest.create({ board: this.name, keys: [{ key }] });
    const reply = await retrying(
      client.retry,
      () => client.call(EntryServiceService.get, request, settings),
      settings.signal,
    );
    return reply.entries[0];
  }

  /**
   * Applies all ops of a request or none.
   *
   * Fills in the board, and the request id where there is none, in the caller's own object: after an error whose
   * outcome is unknown (a deadline, an abort, UNAVAILABLE beyond the retries) call again with that very object, and the
   * server answers what happened the first time. A conflict is a SlateError with `conflict` set and is never retried
   * here, since only the caller can decide anew; see `update`.
   */
  async commit(request: CommitRequest, settings: CallSettings = {}): Promise<CommitResponse> {
    const { client } = this;
    request.board = this.name;
    if (!request.requestId && !request.validateOnly) request.requestId = randomUUID();
    return retrying(
      client.retry,
      () => client.call(EntryServiceService.commit, request, settings),
      settings.signal,
    );
  }

  /** Writes one key under a precondition: `absent`, `present` or `version(n)`. */
  async put(key: string, content: Content, when: Precondition, settings: CallSettings = {}): Promise<OpResult> {
    const reply = await this.commit(CommitRequest.create({ ops: [putOp(key, content, when)] }), settings);
    return reply.results[0]!;
  }

  /**
   * Changes one key: reads it, asks `change` what it becomes (given undefined where it is absent), and commits that on
   * condition that nobody wrote in between. Where somebody did, begins again with what is there now, a bounded number
   * of times; `change` may therefore run more than once.
   *
   * The version that was read becomes a source of the new one, unless `change` gives derivations or waives them.
   */
  async update(
    key: string,
    change: (current: Entry | undefined) => Content | Promise<Content>,
    settings: CallSettings = {},
  ): Promise<OpResult> {
    const { retry } = this.client;
    for (let attempt = 1; ; attempt++) {
      const current = await this.get(key, settings);
      const content = await change(current);
      try {
        return current
          ? await this.put(key, derivedFrom(content, current), version(current.version), settings)
          : await this.put(key, content, absent, settings);
      } catch (error) {
        const failed = SlateError.from(error);
        if (!failed.contention || attempt >= retry.attempts) throw failed;
        await pause(retry, attempt, failed.retryAfterMs, settings.signal);
      }
    }
  }

  /** Follows the board; see `watch` in watch.ts. */
  watch(request: Partial<WatchRequest> = {}, signal?: AbortSignal): AsyncGenerator<Batch, void, undefined> {
    return watch(this, WatchRequest.create({ ...request, board: this.name }), signal);
  }
}

/** Holds where the key is absent. */
export const absent: Precondition = { condition: { $case: "mustNotExist", value: true } };

/** Holds where the key is present. */
export const present: Precondition = { condition: { $case: "mustExist", value: true } };

/** Holds where the key is present at this version. */
export function version(at: bigint): Precondition {
  return { condition: { $case: "versionEquals", value: at } };
}

/** An op that writes a key. */
export function putOp(key: string, content: Content, precondition: Precondition): Op {
  return Op.create({ kind: { $case: "put", value: { key: { key }, content, precondition } } });
}

/** An op that deletes a key. */
export function deleteOp(key: string, precondition: Precondition): Op {
  return Op.create({ kind: { $case: "delete", value: { key: { key }, precondition } } });
}

/** An op that adds a value under a key that the server names, below `prefix`, which ends with '/'. */
export function appendOp(prefix: string, content: Content): Op {
  return Op.create({ kind: { $case: "append", value: { prefix: { prefix }, content } } });
}

/** Names a subtree of the shared region. */
export function under(prefix: string): PrefixRef {
  return PrefixRef.create({ prefix });
}

/** Content of type application/json. */
export function json(value: unknown): Content {
  return Content.create({ value: Buffer.from(JSON.stringify(value)), contentType: "application/json" });
}

/** The JSON value of an entry; the caller says what it expects there. */
export function fromJson<T>(entry: Entry): T {
  return JSON.parse(entry.content?.value.toString("utf8") ?? "") as T;
}

/** `content` with `source` among its origins, where its writer said nothing about them. */
function derivedFrom(content: Content, source: Entry): Content {
  const origin = content.provenance;
  if (origin && (origin.derivations.length > 0 || origin.derivationWaived)) return content;
  const { region, key, version } = source;
  const provenance = Provenance.create({ ...origin, derivations: [{ sources: [{ region, key, version }] }] });
  return { ...content, provenance };
}
