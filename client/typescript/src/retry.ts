import { setTimeout as sleep } from "node:timers/promises";

import { SlateError } from "./errors.js";

/** Bounds how often and how fast a call is tried again. */
export interface Retry {
  /** In all, the first one included. A watch counts those since its last message. */
  attempts: number;
  /** Before the second attempt; doubles up to `maxMs`. */
  baseMs: number;
  maxMs: number;
}

/** Gives up after about half a minute. */
export const defaultRetry: Retry = { attempts: 12, baseMs: 50, maxMs: 5_000 };

/**
 * Waits before attempt number `attempt` + 1, at least as long as the server asked for. The wait is drawn from its upper
 * half, so that clients that failed together do not come back together.
 */
export async function pause(retry: Retry, attempt: number, atLeastMs: number, signal?: AbortSignal): Promise<void> {
  const most = Math.min(retry.maxMs, retry.baseMs * 2 ** (attempt - 1));
  const jittered = (most / 2) * (1 + Math.random());
  await sleep(Math.max(jittered, atLeastMs), undefined, { signal });
}

/**
 * Calls until the outcome is known or the attempts are used up. Only for calls that may be sent twice: reads, and
 * writes that carry their request id.
 */
export async function retrying<T>(retry: Retry, call: () => Promise<T>, signal?: AbortSignal): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await call();
    } catch (error) {
      const failed = SlateError.from(error);
      if (!failed.transient || attempt >= retry.attempts) throw failed;
      await pause(retry, attempt, failed.retryAfterMs, signal);
    }
  }
}
