import com.google.api.gax.rpc.ApiException;
import com.google.api.gax.rpc.StatusCode;
import com.google.protobuf.Duration;
import com.google.protobuf.FieldMask;
import com.google.pubsub.v1.CreateSnapshotRequest;
import com.google.pubsub.v1.ExpirationPolicy;
import com.google.pubsub.v1.MessageStoragePolicy;
import com.google.pubsub.v1.PushConfig;
import com.google.pubsub.v1.RetryPolicy;
import com.google.pubsub.v1.SeekRequest;
import com.google.pubsub.v1.Snapshot;
import com.google.pubsub.v1.Subscription;
import com.google.pubsub.v1.Topic;
import com.google.pubsub.v1.UpdateTopicRequest;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/** Checks of topics, subscriptions and snapshots. */
final class Administration {
  private Administration() {}

  private static void expect(StatusCode.Code code, String what, Runnable call) {
    try {
      call.run();
    } catch (ApiException error) {
      Place.require(error.getStatusCode().getCode() == code, what + ": " + error);
      return;
    }
    throw new IllegalStateException(what + ": accepted");
  }

  static void administered(Place place) {
    Topic topic = Topic.newBuilder().setName(place.topic).build();
    expect(StatusCode.Code.ALREADY_EXISTS, "an existing topic", () -> Place.TOPICS.createTopic(topic));
    MessageStoragePolicy policy =
        MessageStoragePolicy.newBuilder().addAllowedPersistenceRegions("europe-west1").build();
    Topic updated = Place.TOPICS.updateTopic(UpdateTopicRequest.newBuilder()
        .setTopic(topic.toBuilder().setMessageStoragePolicy(policy).putLabels("team", "orders"))
        .setUpdateMask(FieldMask.newBuilder().addPaths("message_storage_policy").addPaths("labels"))
        .build());
    Place.require(updated.getMessageStoragePolicy().equals(policy)
        && updated.getLabelsOrDefault("team", "").equals("orders"), "the update has no effect: " + updated);
    List<String> names = new ArrayList<>();
    Place.TOPICS.listTopicSubscriptions(place.topic).iterateAll().forEach(names::add);
    Place.require(names.equals(List.of(place.subscription)), "listed " + names);
    Place.SUBSCRIPTIONS.modifyPushConfig(place.subscription, PushConfig.getDefaultInstance());
    Place.TOPICS.deleteTopic(place.topic);
    Subscription orphan = Place.SUBSCRIPTIONS.getSubscription(place.subscription);
    Place.require(orphan.getTopic().equals("_deleted-topic_"), "the subscription of a deleted topic: " + orphan);
    Place.SUBSCRIPTIONS.deleteSubscription(place.subscription);
    expect(StatusCode.Code.NOT_FOUND, "a deleted topic", () -> Place.TOPICS.getTopic(place.topic));
  }

  private static Duration seconds(long count) {
    return Duration.newBuilder().setSeconds(count).build();
  }

  static void refusedSettings(Place place) {
    Map<String, Consumer<Subscription.Builder>> changes = new LinkedHashMap<>();
    changes.put("a minimum back-off above the maximum", it -> it.setRetryPolicy(
        RetryPolicy.newBuilder().setMinimumBackoff(seconds(20)).setMaximumBackoff(seconds(10))));
    changes.put("expiry after an hour",
        it -> it.setExpirationPolicy(ExpirationPolicy.newBuilder().setTtl(seconds(3600))));
    changes.put("a label with a capital", it -> it.putLabels("Team", "orders"));
    changes.put("an ack deadline of 5 s", it -> it.setAckDeadlineSeconds(5));
    changes.put("a malformed filter", it -> it.setFilter("event_type = \"a\""));
    changes.forEach((name, change) -> {
      Subscription.Builder builder =
          Subscription.newBuilder().setName(place.subscription + "-refused").setTopic(place.topic);
      change.accept(builder);
      expect(StatusCode.Code.INVALID_ARGUMENT, name, () -> Place.SUBSCRIPTIONS.createSubscription(builder.build()));
    });
  }

  static void snapshots(Place place) throws Exception {
    place.publish(Place.message("k", "kept"));
    // Without a name, so that the service chooses one.
    Snapshot snapshot = Place.SUBSCRIPTIONS.createSnapshot(
        CreateSnapshotRequest.newBuilder().setSubscription(place.subscription).build());
    Place.Each kept = (got, reply) -> {
      reply.ack();
      return got.getData().toStringUtf8().equals("kept");
    };
    place.receive(it -> {}, kept);
    Place.SUBSCRIPTIONS.seek(SeekRequest.newBuilder()
        .setSubscription(place.subscription).setSnapshot(snapshot.getName()).build());
    place.receive(it -> {}, kept);
    Place.SUBSCRIPTIONS.deleteSnapshot(snapshot.getName());
  }
}
