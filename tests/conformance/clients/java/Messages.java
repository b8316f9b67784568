import com.google.api.core.ApiFuture;
import com.google.api.gax.batching.BatchingSettings;
import com.google.api.gax.batching.FlowControlSettings;
import com.google.api.gax.batching.FlowController;
import com.google.cloud.pubsub.v1.AckReplyConsumer;
import com.google.cloud.pubsub.v1.AckResponse;
import com.google.cloud.pubsub.v1.MessageReceiverWithAckResponse;
import com.google.cloud.pubsub.v1.Publisher;
import com.google.cloud.pubsub.v1.Subscriber;
import com.google.protobuf.ByteString;
import com.google.pubsub.v1.PubsubMessage;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Checks of publishing and receiving. */
final class Messages {
  private Messages() {}

  static void arriveAsPublished(Place place) throws Exception {
    PubsubMessage sent = PubsubMessage.newBuilder()
        .setData(ByteString.copyFrom(new byte[] {0, 1, (byte) 255})).setOrderingKey("A 17/ü")
        .putAttributes("event_type", "OrderPaid").putAttributes("ümlaut", "ß").putAttributes("empty", "")
        .build();
    String id = place.publish(sent);
    place.receive(it -> {}, (got, reply) -> {
      reply.ack();
      Place.require(got.getMessageId().equals(id) && got.getData().equals(sent.getData())
          && got.getAttributesMap().equals(sent.getAttributesMap())
          && got.getOrderingKey().equals(sent.getOrderingKey()) && got.hasPublishTime(), "another message: " + got);
      return true;
    });
  }

  static void idle(Place place) throws Exception {
    CompletableFuture<String> published = new CompletableFuture<>();
    CompletableFuture.delayedExecutor(Place.IDLE_SECONDS, TimeUnit.SECONDS).execute(() -> {
      try {
        published.complete(place.publish(Place.message("k", "late")));
      } catch (Exception error) {
        published.completeExceptionally(error);
      }
    });
    place.receive(it -> {}, (got, reply) -> {
      reply.ack();
      return true;
    });
    published.get(Place.DEADLINE_SECONDS, TimeUnit.SECONDS);
  }

  static void redelivered(Place place) throws Exception {
    place.publish(Place.message("", "again"));
    int[] deliveries = {0};
    place.receive(it -> {}, (got, reply) -> {
      if (++deliveries[0] < 3) {
        reply.nack();
        return false;
      }
      reply.ack();
      return true;
    });
  }

  static void inOrder(Place place) throws Exception {
    int keys = 5;
    int each = 100;
    Publisher publisher = place.publisher().build();
    List<ApiFuture<String>> replies = new ArrayList<>();
    for (int number = 0; number < each; number++) {
      for (int key = 0; key < keys; key++) {
        replies.add(publisher.publish(Place.message("key-" + key, Integer.toString(number))));
      }
    }
    Set<String> ids = new HashSet<>();
    for (ApiFuture<String> reply : replies) {
      ids.add(reply.get(Place.DEADLINE_SECONDS, TimeUnit.SECONDS));
    }
    publisher.shutdown();
    Place.require(ids.size() == keys * each, ids.size() + " different ids");

    Map<String, Integer> next = new HashMap<>();
    int[] count = {0};
    boolean[] rejected = {false};
    place.receive(it -> {}, (got, reply) -> {
      String key = got.getOrderingKey();
      int number = Integer.parseInt(got.getData().toStringUtf8());
      int expected = next.getOrDefault(key, 0);
      // A rejected message is redelivered, and all later ones of its key behind it.
      if (key.equals("key-1") && (number == 10 && !rejected[0] || rejected[0] && number > expected)) {
        rejected[0] = true;
        reply.nack();
        return false;
      }
      reply.ack();
      Place.require(number == expected, key + ": " + number + " instead of " + expected);
      next.put(key, expected + 1);
      return ++count[0] == keys * each;
    });
  }

  /**
   * The client completes the future of a refused message before it pauses the key. On a busy machine a
   * message may be queued in between. It is neither sent nor refused until the key is resumed.
   */
  static void resumed(Place place) throws Exception {
    Publisher publisher = place.publisher().build();
    PubsubMessage refused = Place.message("k", "1").toBuilder().putAttributes("a", "x".repeat(1025)).build();
    Place.require(fails(publisher.publish(refused)), "an attribute of 1,025 bytes was accepted");
    boolean isQueued = isQueued(publisher.publish(Place.message("k", "2")));
    publishResumed(publisher);
    publisher.shutdown();
    place.receive(it -> {}, (got, reply) -> {
      reply.ack();
      String data = got.getData().toStringUtf8();
      Place.require(data.equals("3") || isQueued && data.equals("2"), "another message: " + got);
      return data.equals("3");
    });
  }

  /** Returns whether a message of a paused key waits. Otherwise it was refused. */
  private static boolean isQueued(ApiFuture<String> reply) throws Exception {
    try {
      throw new IllegalStateException("the key was not paused: " + reply.get(10, TimeUnit.SECONDS));
    } catch (ExecutionException refused) {
      return false;
    } catch (TimeoutException queued) {
      return true;
    }
  }

  /** Publishes the next message of a key that is resumed, again if the pause came after that. */
  private static void publishResumed(Publisher publisher) throws Exception {
    for (int attempt = 1; ; attempt++) {
      publisher.resumePublish("k");
      try {
        publisher.publish(Place.message("k", "3")).get(10, TimeUnit.SECONDS);
        return;
      } catch (TimeoutException | ExecutionException paused) {
        if (attempt == 6) {
          throw paused;
        }
      }
    }
  }

  private static boolean fails(ApiFuture<String> reply) throws Exception {
    try {
      reply.get(Place.DEADLINE_SECONDS, TimeUnit.SECONDS);
      return false;
    } catch (ExecutionException expected) {
      return true;
    }
  }

  static void boundedSubscriber(Place place) throws Exception {
    int bound = 3;
    int total = 30;
    for (int number = 0; number < total; number++) {
      place.publish(Place.message("", Integer.toString(number)));
    }
    FlowControlSettings settings =
        FlowControlSettings.newBuilder().setMaxOutstandingElementCount((long) bound).build();
    List<AckReplyConsumer> held = new ArrayList<>();
    int[] count = {0};
    place.receive(it -> it.setFlowControlSettings(settings), (got, reply) -> {
      count[0]++;
      held.add(reply);
      Place.require(held.size() <= bound, held.size() + " messages are unacknowledged");
      // Acknowledged only when the bound is reached, so that more would arrive without a bound.
      if (held.size() == bound) {
        held.forEach(AckReplyConsumer::ack);
        held.clear();
      }
      return count[0] == total;
    });
  }

  static void boundedPublisher(Place place) throws Exception {
    FlowControlSettings flow = FlowControlSettings.newBuilder()
        .setMaxOutstandingElementCount(2L).setMaxOutstandingRequestBytes(10_000_000L)
        .setLimitExceededBehavior(FlowController.LimitExceededBehavior.ThrowException).build();
    BatchingSettings batching = BatchingSettings.newBuilder().setElementCountThreshold(100L)
        .setRequestByteThreshold(1_000_000L).setDelayThresholdDuration(Duration.ofHours(1))
        .setFlowControlSettings(flow).build();
    Publisher publisher = place.publisher().setBatchingSettings(batching).build();
    ApiFuture<String> first = publisher.publish(Place.message("", "x"));
    ApiFuture<String> second = publisher.publish(Place.message("", "x"));
    Place.require(fails(publisher.publish(Place.message("", "x"))), "the third message was accepted");
    publisher.publishAllOutstanding();
    first.get(Place.DEADLINE_SECONDS, TimeUnit.SECONDS);
    second.get(Place.DEADLINE_SECONDS, TimeUnit.SECONDS);
    publisher.shutdown();
  }

  static void exactlyOnce(Place place) throws Exception {
    Place once = new Place("exactly-once", it -> it.setEnableExactlyOnceDelivery(true));
    int total = 20;
    for (int number = 0; number < total; number++) {
      once.publish(Place.message("k", Integer.toString(number)));
    }
    List<ApiFuture<AckResponse>> replies = new ArrayList<>();
    CompletableFuture<Void> done = new CompletableFuture<>();
    MessageReceiverWithAckResponse receiver = (got, reply) -> {
      synchronized (replies) {
        if (!got.getData().toStringUtf8().equals(Integer.toString(replies.size()))) {
          done.completeExceptionally(new IllegalStateException(got + " after " + replies.size() + " messages"));
        }
        replies.add(reply.ack());
        if (replies.size() == total) {
          done.complete(null);
        }
      }
    };
    Subscriber subscriber = Subscriber.newBuilder(once.subscription, receiver)
        .setChannelProvider(Place.TRANSPORT).setCredentialsProvider(Place.CREDENTIALS).build();
    subscriber.startAsync().awaitRunning(Place.DEADLINE_SECONDS, TimeUnit.SECONDS);
    done.get(Place.DEADLINE_SECONDS, TimeUnit.SECONDS);
    for (ApiFuture<AckResponse> reply : replies) {
      AckResponse response = reply.get(Place.DEADLINE_SECONDS, TimeUnit.SECONDS);
      Place.require(response == AckResponse.SUCCESSFUL, "an acknowledgement: " + response);
    }
    subscriber.stopAsync().awaitTerminated(Place.DEADLINE_SECONDS, TimeUnit.SECONDS);
  }

  static void compressed(Place place) throws Exception {
    String text = "the same again ".repeat(1000);
    Publisher publisher = place.publisher().setEnableCompression(true).setCompressionBytesThreshold(0).build();
    publisher.publish(Place.message("", text)).get(Place.DEADLINE_SECONDS, TimeUnit.SECONDS);
    publisher.shutdown();
    place.receive(it -> {}, (got, reply) -> {
      reply.ack();
      Place.require(got.getData().toStringUtf8().equals(text), got.getData().size() + " bytes arrived");
      return true;
    });
  }
}
