import {
  Client as GrpcClient,
  credentials,
  InterceptingCall,
  Metadata,
  type ChannelCredentials,
  type ClientReadableStream,
  type Interceptor,
} from "@grpc/grpc-js";

import { Board } from "./board.js";
import { SlateError } from "./errors.js";
import { defaultRetry, type Retry } from "./retry.js";

/** Where a server listens unless told otherwise. */
export const DEFAULT_ADDRESS = "127.0.0.1:7400";

export interface ConnectOptions {
  /** Any gRPC target: `host:port`, `dns:name:port`. Default: SLATE_SERVER, then DEFAULT_ADDRESS. */
  address?: string;
  /** Default: SLATE_TOKEN. */
  token?: string;
  /** Default: plain text to a loopback address, otherwise TLS with Node's roots. */
  tls?: ChannelCredentials;
  retry?: Retry;
  /** Bound of each attempt of a call. */
  timeoutMs?: number;
}

/** How one call differs from the rest. */
export interface CallSettings {
  signal?: AbortSignal;
  timeoutMs?: number;
}

/** One method of a generated service definition, e.g. `v1.AdminServiceService.whoAmI`. */
export interface Method<Q, R> {
  path: string;
  requestSerialize: (request: Q) => Buffer;
  responseDeserialize: (bytes: Buffer) => R;
}

/** A connection to a server. `call` and `stream` reach every method of the API. */
export class Client {
  readonly retry: Retry;
  readonly #timeoutMs: number;
  readonly #grpc: GrpcClient;

  /** Use `connect`. */
  constructor(address: string, token: string, tls: ChannelCredentials, retry: Retry, timeoutMs: number) {
    this.retry = retry;
    this.#timeoutMs = timeoutMs;
    this.#grpc = new GrpcClient(address, tls, {
      interceptors: [bearer(token)],
      // A dead connection is found within half a minute, also by a watch that only listens. The server takes a ping
      // every 10 s.
      "grpc.keepalive_time_ms": 20_000,
      "grpc.keepalive_timeout_ms": 10_000,
      "grpc.keepalive_permit_without_calls": 1,
      // gRPC's own waits between connections would grow to two minutes.
      "grpc.initial_reconnect_backoff_ms": 100,
      "grpc.max_reconnect_backoff_ms": 5_000,
      "grpc.service_config": JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }),
    });
  }

  /** Names a board; asks nothing of the server. */
  board(name: string): Board {
    return new Board(this, name);
  }

  /**
   * Makes one unary call, once.
   *
   *     const { principal } = await client.call(v1.AdminServiceService.whoAmI, {});
   *
   * Throws a SlateError, or the signal's reason.
   */
  call<Q, R>(method: Method<Q, R>, request: Q, settings: CallSettings = {}): Promise<R> {
    const { signal, timeoutMs = this.#timeoutMs } = settings;
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const call = this.#grpc.makeUnaryRequest(
        method.path,
        method.requestSerialize,
        method.responseDeserialize,
        request,
        new Metadata(),
        { deadline: Date.now() + timeoutMs },
        (error, response) => {
          signal?.removeEventListener("abort", cancel);
          if (!error) resolve(response!);
          else reject(signal?.aborted ? signal.reason : SlateError.from(error));
        },
      );
      const cancel = () => call.cancel();
      signal?.addEventListener("abort", cancel, { once: true });
    });
  }

  /** Opens one stream of messages from the server. It fails with gRPC's own error; see SlateError.from. */
  stream<Q, R>(method: Method<Q, R>, request: Q): ClientReadableStream<R> {
    return this.#grpc.makeServerStreamRequest(
      method.path,
      method.requestSerialize,
      method.responseDeserialize,
      request,
    );
  }

  /** Ends the connection; calls in flight fail. */
  close(): void {
    this.#grpc.close();
  }
}

/** Connects in the background; the first call shows whether the server can be reached. */
export function connect(options: ConnectOptions = {}): Client {
  const address = options.address || process.env["SLATE_SERVER"] || DEFAULT_ADDRESS;
  const token = options.token || process.env["SLATE_TOKEN"];
  if (!token) throw new Error("no token: set SLATE_TOKEN or pass `token`");
  const tls = options.tls ?? (isLoopback(address) ? credentials.createInsecure() : credentials.createSsl());
  return new Client(address, token, tls, options.retry ?? defaultRetry, options.timeoutMs ?? 30_000);
}

/** Whether plain text to this address stays on this machine. */
export function isLoopback(address: string): boolean {
  const host = address.slice(address.lastIndexOf("/") + 1).replace(/:\d+$/, "");
  return host === "localhost" || host === "[::1]" || /^127(\.\d{1,3}){3}$/.test(host);
}

function bearer(token: string): Interceptor {
  return (options, nextCall) =>
    new InterceptingCall(nextCall(options), {
      start(metadata, listener, next) {
        metadata.set("authorization", `Bearer ${token}`);
        next(metadata, listener);
      },
    });
}
