import com.google.api.gax.core.InstantiatingExecutorProvider;
import com.google.api.gax.core.NoCredentialsProvider;
import com.google.api.gax.grpc.GrpcTransportChannel;
import com.google.api.gax.rpc.FixedTransportChannelProvider;
import com.google.cloud.pubsub.v1.AckReplyConsumer;
import com.google.cloud.pubsub.v1.Subscriber;
import com.google.gson.JsonParser;
import com.google.pubsub.v1.PubsubMessage;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;

/**
 * A subscriber on Google's Java client that applies each message in a transaction of its own. With
 * DEDUPLICATE set, the transaction also inserts the event's id into a table, and an event whose id is
 * there has no further effect.
 */
final class Consumer {
  // As many connections as each of the compared consumers has.
  private static final int WORKERS = 4;
  private static final boolean DEDUPLICATES = System.getenv("DEDUPLICATE") != null;
  private static final ThreadLocal<Session> SESSION = ThreadLocal.withInitial(Session::new);

  private Consumer() {}

  /** One connection with its statements. */
  private static final class Session {
    private final Connection connection;
    private final PreparedStatement seen;
    private final PreparedStatement effect;

    Session() {
      try {
        URI url = URI.create(System.getenv("DATABASE_URL"));
        String address = "jdbc:postgresql://" + url.getHost() + ":" + url.getPort() + url.getPath();
        connection = DriverManager.getConnection(address, url.getUserInfo(), "");
        connection.setAutoCommit(false);
        seen = connection.prepareStatement("INSERT INTO bench_seen VALUES (?) ON CONFLICT DO NOTHING");
        // The newest state of each key, and the number of applied events.
        effect = connection.prepareStatement(
            "INSERT INTO bench_state AS s VALUES (?, ?, 1, ?) ON CONFLICT (id) DO UPDATE"
                + " SET version = excluded.version, events = s.events + 1, text = excluded.text");
      } catch (SQLException error) {
        throw new IllegalStateException(error);
      }
    }

    void apply(PubsubMessage message) throws SQLException {
      try {
        if (isNew(message)) {
          effect.setString(1, message.getAttributesOrThrow("aggregate_id"));
          effect.setLong(2, Long.parseLong(message.getAttributesOrThrow("version")));
          String payload = message.getData().toStringUtf8();
          effect.setString(3, JsonParser.parseString(payload).getAsJsonObject().get("text").getAsString());
          effect.executeUpdate();
        }
        connection.commit();
      } catch (SQLException error) {
        connection.rollback();
        throw error;
      }
    }

    private boolean isNew(PubsubMessage message) throws SQLException {
      if (!DEDUPLICATES) {
        return true;
      }
      seen.setString(1, message.getAttributesOrThrow("event_id"));
      return seen.executeUpdate() == 1;
    }
  }

  private static void receive(PubsubMessage message, AckReplyConsumer reply) {
    try {
      SESSION.get().apply(message);
      reply.ack();
    } catch (SQLException error) {
      System.err.println(error);
      reply.nack();
    }
  }

  public static void main(String[] arguments) {
    ManagedChannel channel =
        ManagedChannelBuilder.forTarget(System.getenv("PUBSUB_EMULATOR_HOST")).usePlaintext().build();
    Subscriber subscriber = Subscriber.newBuilder(System.getenv("SUBSCRIPTION"), Consumer::receive)
        .setChannelProvider(FixedTransportChannelProvider.create(GrpcTransportChannel.create(channel)))
        .setCredentialsProvider(NoCredentialsProvider.create())
        .setExecutorProvider(InstantiatingExecutorProvider.newBuilder().setExecutorThreadCount(WORKERS).build())
        .build();
    Runtime.getRuntime().addShutdownHook(new Thread(subscriber::stopAsync));
    subscriber.startAsync().awaitRunning();
    subscriber.awaitTerminated();
  }
}
