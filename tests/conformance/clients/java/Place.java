import com.google.api.gax.core.CredentialsProvider;
import com.google.api.gax.core.NoCredentialsProvider;
import com.google.api.gax.grpc.GrpcTransportChannel;
import com.google.api.gax.rpc.FixedTransportChannelProvider;
import com.google.api.gax.rpc.TransportChannelProvider;
import com.google.cloud.pubsub.v1.AckReplyConsumer;
import com.google.cloud.pubsub.v1.MessageReceiver;
import com.google.cloud.pubsub.v1.Publisher;
import com.google.cloud.pubsub.v1.Subscriber;
import com.google.cloud.pubsub.v1.SubscriptionAdminClient;
import com.google.cloud.pubsub.v1.SubscriptionAdminSettings;
import com.google.cloud.pubsub.v1.TopicAdminClient;
import com.google.cloud.pubsub.v1.TopicAdminSettings;
import com.google.protobuf.ByteString;
import com.google.pubsub.v1.PubsubMessage;
import com.google.pubsub.v1.Subscription;
import com.google.pubsub.v1.Topic;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/** A topic and an ordered subscription of one check, and the clients for them. */
final class Place {
  static final String PROJECT = "java-client";
  // Enough for a busy machine: a check that passes takes a second at most.
  static final long DEADLINE_SECONDS = 60;
  // An idle subscriber pings twice in this time.
  static final long IDLE_SECONDS = 70;

  static final ManagedChannel CHANNEL =
      ManagedChannelBuilder.forTarget(System.getenv("PUBSUB_EMULATOR_HOST")).usePlaintext().build();
  static final TransportChannelProvider TRANSPORT =
      FixedTransportChannelProvider.create(GrpcTransportChannel.create(CHANNEL));
  static final CredentialsProvider CREDENTIALS = NoCredentialsProvider.create();
  static final TopicAdminClient TOPICS;
  static final SubscriptionAdminClient SUBSCRIPTIONS;

  static {
    try {
      TOPICS = TopicAdminClient.create(TopicAdminSettings.newBuilder()
          .setTransportChannelProvider(TRANSPORT).setCredentialsProvider(CREDENTIALS).build());
      SUBSCRIPTIONS = SubscriptionAdminClient.create(SubscriptionAdminSettings.newBuilder()
          .setTransportChannelProvider(TRANSPORT).setCredentialsProvider(CREDENTIALS).build());
    } catch (java.io.IOException error) {
      throw new ExceptionInInitializerError(error);
    }
  }

  final String topic;
  final String subscription;

  Place(String id, Consumer<Subscription.Builder> change) {
    topic = "projects/" + PROJECT + "/topics/" + id;
    subscription = "projects/" + PROJECT + "/subscriptions/" + id;
    TOPICS.createTopic(Topic.newBuilder().setName(topic).build());
    Subscription.Builder builder = Subscription.newBuilder()
        .setName(subscription).setTopic(topic).setEnableMessageOrdering(true);
    change.accept(builder);
    SUBSCRIPTIONS.createSubscription(builder.build());
  }

  Publisher.Builder publisher() {
    return Publisher.newBuilder(topic).setEnableMessageOrdering(true)
        .setChannelProvider(TRANSPORT).setCredentialsProvider(CREDENTIALS);
  }

  static PubsubMessage message(String key, String data) {
    return PubsubMessage.newBuilder().setOrderingKey(key).setData(ByteString.copyFromUtf8(data)).build();
  }

  /** Publishes one message and waits for its id. */
  String publish(PubsubMessage message) throws Exception {
    Publisher publisher = publisher().build();
    try {
      return publisher.publish(message).get(DEADLINE_SECONDS, TimeUnit.SECONDS);
    } finally {
      publisher.shutdown();
    }
  }

  /** What a check does with a message. Returns true when the check is finished. */
  interface Each {
    boolean accept(PubsubMessage message, AckReplyConsumer reply) throws Exception;
  }

  /** Passes messages to a check, one after the other, until it is finished. */
  void receive(Consumer<Subscriber.Builder> settings, Each each) throws Exception {
    CompletableFuture<Void> done = new CompletableFuture<>();
    MessageReceiver receiver = (message, reply) -> {
      synchronized (done) {
        try {
          if (each.accept(message, reply)) {
            done.complete(null);
          }
        } catch (Exception error) {
          done.completeExceptionally(error);
        }
      }
    };
    Subscriber.Builder builder = Subscriber.newBuilder(subscription, receiver)
        .setChannelProvider(TRANSPORT).setCredentialsProvider(CREDENTIALS);
    settings.accept(builder);
    Subscriber subscriber = builder.build();
    subscriber.startAsync().awaitRunning(DEADLINE_SECONDS, TimeUnit.SECONDS);
    try {
      done.get(DEADLINE_SECONDS + IDLE_SECONDS, TimeUnit.SECONDS);
    } finally {
      subscriber.stopAsync().awaitTerminated(DEADLINE_SECONDS, TimeUnit.SECONDS);
    }
  }

  static void require(boolean condition, String otherwise) {
    if (!condition) {
      throw new IllegalStateException(otherwise);
    }
  }
}
