import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The official Java client against the Pub/Sub at PUBSUB_EMULATOR_HOST. Prints "ok" or "failed" with
 * the name of each check, and exits with 1 if a check failed. With the argument "idle", makes only
 * the check that takes more than a minute.
 */
final class Conformance {
  private Conformance() {}

  interface Check {
    void run(Place place) throws Exception;
  }

  public static void main(String[] arguments) {
    endAfter(Duration.ofMinutes(5));
    Map<String, Check> checks = new LinkedHashMap<>();
    checks.put("messages arrive as they were published", Messages::arriveAsPublished);
    checks.put("a rejected message is redelivered", Messages::redelivered);
    checks.put("messages of a key arrive in order", Messages::inOrder);
    checks.put("a refused key waits until it is resumed", Messages::resumed);
    checks.put("the subscriber bounds unacknowledged messages", Messages::boundedSubscriber);
    checks.put("the publisher bounds outstanding messages", Messages::boundedPublisher);
    checks.put("exactly-once acknowledgements are confirmed", Messages::exactlyOnce);
    checks.put("compressed requests are accepted", Messages::compressed);
    checks.put("topics and subscriptions are administered", Administration::administered);
    checks.put("settings that production refuses are refused", Administration::refusedSettings);
    checks.put("a subscription returns to a snapshot", Administration::snapshots);

    if (arguments.length > 0 && arguments[0].equals("idle")) {
      checks.clear();
      checks.put("an idle subscriber receives after 70 s", Messages::idle);
    }

    int number = 0;
    int failed = 0;
    for (Map.Entry<String, Check> check : checks.entrySet()) {
      try {
        check.getValue().run(new Place("check-" + number++, it -> {}));
        System.out.println("ok: " + check.getKey());
      } catch (Exception error) {
        failed++;
        System.out.println("failed: " + check.getKey() + ": " + error);
      }
    }
    // The clients' own threads would keep the process running.
    System.exit(failed > 0 ? 1 : 0);
  }

  /** Ends the process when the checks hang, so that nothing is left behind. */
  private static void endAfter(Duration limit) {
    Thread watchdog = new Thread(() -> {
      try {
        Thread.sleep(limit.toMillis());
      } catch (InterruptedException never) {
        return;
      }
      System.out.println("failed: no end within " + limit);
      System.exit(1);
    });
    watchdog.setDaemon(true);
    watchdog.start();
  }
}
