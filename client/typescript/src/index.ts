export * from "./board.js";
export { connect, Client, DEFAULT_ADDRESS, type CallSettings, type ConnectOptions } from "./client.js";
export { SlateError } from "./errors.js";
export { defaultRetry, type Retry } from "./retry.js";
export type { Batch } from "./watch.js";
/** The whole of slateboard.v1: messages, enums and services. */
export * as v1 from "./generated/index.slateboard.v1.js";
