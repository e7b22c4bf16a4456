import { status } from "@grpc/grpc-js";

import type { Board } from "./board.js";
import { SlateError } from "./errors.js";
import { ErrorReason } from "./generated/slateboard/v1/error_reason.js";
import { BoardServiceService, GetBoardRequest } from "./generated/slateboard/v1/board_service.js";
import { EntryServiceService, WatchRequest, type WatchResponse } from "./generated/slateboard/v1/entry_service.js";
import type { Timestamp } from "./generated/google/protobuf/timestamp.js";
import type { Entry } from "./generated/slateboard/v1/types.js";
import { pause, retrying } from "./retry.js";

/** Everything visible that one revision changed. */
export interface Batch {
  revision: bigint;
  incarnation: string;
  commitTime: Timestamp | undefined;
  principal: string;
  sessionId: string;
  /** Those whose `tombstone` is set mark deletions. */
  entries: Entry[];
}

const DEFAULT_PROGRESS_MS = 10_000; // the server's, where the request names none
const MISSED_PROGRESS = 3; // that many intervals of silence are a dead stream

/**
 * Follows a board: one batch a revision, in order, each once, over any number of reconnects.
 *
 *     for await (const batch of board.watch({ prefixes: [under("plan/")] })) { ... }
 *
 * Begins after `request.afterRevision`, or at the board's head. To start from the present state, List first and watch
 * after the revision in its header. Throws the signal's reason when aborted, a SlateError COMPACTED or
 * BOARD_REINCARNATED where the place to resume from is gone (read the state anew), a denial, or UNAVAILABLE once the
 * server could not be reached for all attempts; every batch that was yielded before is complete.
 */
export async function* watch(
  board: Board,
  request: WatchRequest,
  signal?: AbortSignal,
): AsyncGenerator<Batch, void, undefined> {
  const { client } = board;
  if (request.snapshot) throw new Error("watch resumes by revision: List first, then watch after its revision");
  if (request.afterRevision === undefined) {
    // A stream that breaks before its first message has told no revision to resume from, so ask for one.
    const asked = GetBoardRequest.create({ board: board.name });
    const { header } = await retrying(
      client.retry,
      () => client.call(BoardServiceService.getBoard, asked, { signal }),
      signal,
    );
    request.afterRevision = header?.revision ?? 0n;
    request.incarnation = header?.incarnation ?? "";
  }
  const place = new Place(request);
  for (let attempt = 1; ; attempt++) {
    signal?.throwIfAborted();
    place.forgetPartial();
    let ended: SlateError | undefined;
    try {
      for await (const message of messages(board, place.request, signal)) {
        attempt = 1; // it works: when it ends, come back at once
        const batch = place.take(message);
        if (!batch) continue;
        yield batch;
        place.moveTo(batch.revision);
      }
    } catch (error) {
      signal?.throwIfAborted();
      ended = SlateError.from(error);
      if (!resumable(ended)) throw ended;
    }
    if (attempt >= client.retry.attempts) throw ended ?? new Error("the server ends every watch without a reason");
    await pause(client.retry, attempt, ended?.retryAfterMs ?? 0, signal);
  }
}

/** Whether a new stream would get further than one that ended so. */
function resumable(error: SlateError): boolean {
  if (error.transient || error.reason === ErrorReason.WATCH_TOO_SLOW) return true;
  // A proxy or the network cut the stream, or it was silent for too long; the server itself always gives a reason.
  return !error.info && [status.INTERNAL, status.CANCELLED].includes(error.code);
}

/** The messages of one stream. Takes no more from the server than its consumer does. */
async function* messages(board: Board, request: WatchRequest, signal?: AbortSignal): AsyncGenerator<WatchResponse> {
  const stream = board.client.stream(EntryServiceService.watch, request);
  const cancel = () => stream.cancel();
  stream.on("error", () => {}); // also after the consumer left; iteration throws it while there is one
  signal?.addEventListener("abort", cancel, { once: true });
  const interval = request.progressInterval;
  const progressMs = interval ? Number(interval.seconds) * 1_000 + interval.nanos / 1e6 : DEFAULT_PROGRESS_MS;
  const silence = () => setTimeout(cancel, MISSED_PROGRESS * progressMs);
  let silent = silence();
  try {
    for await (const message of stream as AsyncIterable<WatchResponse>) {
      clearTimeout(silent); // the consumer may take its time
      yield message;
      silent = silence();
    }
  } finally {
    clearTimeout(silent);
    signal?.removeEventListener("abort", cancel);
    stream.cancel();
  }
}

/** How far a watch has come: what to ask for next, and the batch that is coming in several messages. */
class Place {
  #partial: Batch | undefined;

  constructor(readonly request: WatchRequest) {}

  forgetPartial(): void {
    this.#partial = undefined;
  }

  moveTo(revision: bigint): void {
    if (revision > this.request.afterRevision!) this.request.afterRevision = revision;
  }

  /** The batch that a message completes, if it does. */
  take({ header, event }: WatchResponse): Batch | undefined {
    this.request.incarnation ||= header?.incarnation ?? "";
    if (event?.$case !== "batch") {
      // Progress, or the server is going away: all up to this revision was sent.
      const reached = header?.revision ?? 0n;
      this.moveTo(this.#partial && this.#partial.revision <= reached ? this.#partial.revision - 1n : reached);
      return undefined;
    }
    const { continues, entries, ...part } = event.value;
    if (part.revision <= this.request.afterRevision!) return undefined; // seen already
    this.#partial ??= { ...part, incarnation: this.request.incarnation, entries: [] };
    if (this.#partial.revision !== part.revision) {
      throw new Error(`revision ${part.revision} began before ${this.#partial.revision} was complete`);
    }
    this.#partial.entries.push(...entries);
    if (continues) return undefined;
    const batch = this.#partial;
    this.#partial = undefined;
    return batch;
  }
}
