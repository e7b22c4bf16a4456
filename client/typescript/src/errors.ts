import { status, type ServiceError } from "@grpc/grpc-js";

import { ErrorInfo, RetryInfo } from "./generated/google/rpc/error_details.js";
import { Status } from "./generated/google/rpc/status.js";
import { ConflictDetail } from "./generated/slateboard/v1/commit.js";
import { ErrorReason } from "./generated/slateboard/v1/error_reason.js";

const DOMAIN = "slateboard";

/** A failed call, with what the server put into the status details. */
export class SlateError extends Error {
  override readonly name = "SlateError";
  readonly code: status;
  /**
   * UNSPECIFIED where the error did not come from the server (a broken connection, say), or where the server is newer
   * than these stubs; `info.reason` then has the name.
   */
  readonly reason: ErrorReason = ErrorReason.UNSPECIFIED;
  /** Undefined where the error did not come from the server. */
  readonly info?: ErrorInfo;
  /** Which preconditions or guards did not hold, and who was faster. */
  readonly conflict?: ConflictDetail;
  /** How long the server asks to wait. */
  readonly retryAfterMs: number = 0;

  private constructor(error: ServiceError) {
    super(error.details || error.message, { cause: error });
    this.code = error.code;
    const [packed] = error.metadata?.get("grpc-status-details-bin") ?? [];
    if (!Buffer.isBuffer(packed)) return;
    for (const { typeUrl, value } of Status.decode(packed).details) {
      switch (typeUrl.slice(typeUrl.lastIndexOf("/") + 1)) {
        case "google.rpc.ErrorInfo": {
          const info = ErrorInfo.decode(value);
          if (info.domain === DOMAIN) {
            this.info = info;
            this.reason = reasons.get(info.reason) ?? ErrorReason.UNSPECIFIED;
          }
          break;
        }
        case "google.rpc.RetryInfo": {
          const delay = RetryInfo.decode(value).retryDelay;
          this.retryAfterMs = delay ? Number(delay.seconds) * 1_000 + delay.nanos / 1e6 : 0;
          break;
        }
        case "slateboard.v1.ConflictDetail":
          this.conflict = ConflictDetail.decode(value);
          break;
      }
    }
    if (this.info) this.message = `${this.info.reason}: ${this.message}`;
  }

  /** Reads the error of a gRPC call; throws anything else on, e.g. an AbortError. */
  static from(error: unknown): SlateError {
    if (error instanceof SlateError) return error;
    if (error instanceof Error && "code" in error && typeof error.code === "number" && error.code in status) {
      return new SlateError(error as ServiceError);
    }
    throw error;
  }

  /** Whether the same request, with the same request id, is worth sending again. */
  get transient(): boolean {
    return this.code === status.UNAVAILABLE || this.reason === ErrorReason.RATE_LIMITED;
  }

  /** Whether somebody else was faster: read again, decide again, send under a new request id. */
  get contention(): boolean {
    return this.code === status.ABORTED;
  }
}

const reasons = new Map(
  Object.entries(ErrorReason).filter((pair): pair is [string, ErrorReason] => typeof pair[1] === "number"),
);
