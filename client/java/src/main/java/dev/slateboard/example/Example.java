package dev.slateboard.example;

import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.Status;
import dev.slateboard.v1.AdminServiceGrpc;
import dev.slateboard.v1.ConflictDetail;
import dev.slateboard.v1.EntryServiceGrpc;
import dev.slateboard.v1.GetRequest;
import dev.slateboard.v1.KeyRef;
import dev.slateboard.v1.WhoAmIRequest;
import io.grpc.ClientInterceptor;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.MetadataUtils;
import java.util.concurrent.TimeUnit;

/**
 * Connects to a server on this machine, asks whom the token stands for, and reads one key.
 *
 * <pre>SLATE_SERVER=127.0.0.1:7400 SLATE_TOKEN=... mvn -q compile exec:java -Dexec.args="BOARD KEY"</pre>
 */
public final class Example {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  private Example() {}

  public static void main(String[] args) throws InterruptedException {
    String server = System.getenv().getOrDefault("SLATE_SERVER", "127.0.0.1:7400");
    // Plain text, for loopback only; TlsChannelCredentials beyond it.
    ManagedChannel channel =
        Grpc.newChannelBuilder(server, InsecureChannelCredentials.create())
            .intercept(bearer(System.getenv("SLATE_TOKEN")))
            .defaultLoadBalancingPolicy("round_robin")
            .keepAliveTime(30, TimeUnit.SECONDS)
            .keepAliveWithoutCalls(true)
            .build();
    try {
      var me =
          AdminServiceGrpc.newBlockingStub(channel)
              .withDeadlineAfter(10, TimeUnit.SECONDS)
              .whoAmI(WhoAmIRequest.getDefaultInstance());
      System.out.println("principal: " + me.getPrincipal().getId());
      var found =
          EntryServiceGrpc.newBlockingStub(channel)
              .withDeadlineAfter(10, TimeUnit.SECONDS)
              .get(
                  GetRequest.newBuilder()
                      .setBoard(args[0])
                      .addKeys(KeyRef.newBuilder().setKey(args[1]))
                      .build());
      for (var entry : found.getEntriesList()) {
        System.out.printf(
            "%s version %d: %s%n",
            entry.getKey(), entry.getVersion(), entry.getContent().getValue().toStringUtf8());
      }
    } catch (StatusRuntimeException e) {
      System.err.println(explain(e));
      System.exit(1);
    } finally {
      channel.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
    }
  }

  /** Sends the token with every call. */
  static ClientInterceptor bearer(String token) {
    Metadata headers = new Metadata();
    headers.put(AUTHORIZATION, "Bearer " + token);
    return MetadataUtils.newAttachHeadersInterceptor(headers);
  }

  /** Reads what the server put into the status details. */
  static String explain(StatusRuntimeException failed) {
    Status status = StatusProto.fromThrowable(failed);
    StringBuilder text = new StringBuilder(failed.getMessage());
    try {
      for (var detail : status.getDetailsList()) {
        if (detail.is(ErrorInfo.class)) {
          text.insert(0, detail.unpack(ErrorInfo.class).getReason() + ": ");
        } else if (detail.is(ConflictDetail.class)) {
          for (var violation : detail.unpack(ConflictDetail.class).getViolationsList()) {
            text.append("%n  %s: expected %s, is version %d by %s".formatted(
                violation.getKey(),
                violation.getExpected(),
                violation.getCurrentVersion(),
                violation.getCurrentPrincipal()));
          }
        }
      }
    } catch (InvalidProtocolBufferException e) {
      text.append(" (details cannot be read: ").append(e.getMessage()).append(')');
    }
    return text.toString();
  }
}
