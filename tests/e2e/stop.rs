//! A graceful stop: in-flight requests are finished, and no row is published twice afterwards.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use walrelay_testkit::outbox::Workload;
use walrelay_testkit::process::Signal;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer};

#[tokio::test]
async fn stopped_in_the_middle_of_load_and_started_again_no_row_comes_twice() {
    let Some(world) = InboxDatabase::create().await else { return };
    let producer = Producer::start(world.url(), Duration::from_millis(5));
    for turn in 1..=4 {
        let mut relay = world.start_relay([]).await;
        let goal = world.pubsub.stored_count() + 200;
        world.pubsub.wait_stored(DEADLINE, goal).await;
        let signal = if turn % 2 == 0 { Signal::Interrupt } else { Signal::Terminate };
        relay.signal(signal);
        assert_eq!(relay.wait_ended(DEADLINE).await.code(), Some(0));
    }
    producer.stop().await;

    world.catch_up().await;
    world.check(&world.committed().await).assert_exactly_once();
}

#[tokio::test]
async fn stopped_in_the_middle_of_a_large_transaction_no_row_comes_twice() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut relay = world.start_relay([]).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', 'v-' || n % 1000, 'test.inserted', n, jsonb_build_object('n', n)
               FROM generate_series(1, 50000) AS n",
        )
        .await;
    world.pubsub.wait_stored(DEADLINE, 1_000).await;

    // The relay has read a part of the transaction, so it first reads on to the commit.
    relay.signal(Signal::Terminate);
    assert_eq!(relay.wait_ended(DEADLINE).await.code(), Some(0));

    world.catch_up().await;
    world.check(&world.committed().await).assert_exactly_once();
}

#[tokio::test]
async fn a_relay_whose_terminal_is_gone_goes_on() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut terminal = world.relay([]).on_terminal().start();
    terminal.wait_for_line(DEADLINE, "streaming").await;
    let script = terminal.pid();
    let children = fs::read_to_string(format!("/proc/{script}/task/{script}/children"));
    let relay = children.expect("the relay on the terminal").trim().to_owned();
    terminal.kill();
    terminal.wait_ended(DEADLINE).await;
    // The relay logs each session, and draws its line each second.
    for number in 0..3 {
        let rows = Workload { first_number: number, ..Workload::of_rows(1) };
        rows.insert(world.client()).await.expect("a row");
        world.pubsub.wait_stored(Duration::from_secs(20), u64::from(number) + 1).await;
        world
            .execute(&format!(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{}'",
                world.name()
            ))
            .await;
    }
    Command::new("kill").args(["-TERM", &relay]).status().expect("run kill");
    wait_until(DEADLINE, "the relay to end", async || {
        (!Path::new(&format!("/proc/{relay}")).exists()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_relay_whose_log_nobody_reads_continues_and_says_later_how_much_is_missing() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut relay = world.relay(["--log-level", "trace"]).start_unread();
    // Far more lines than a pipe holds, also if a slow machine publishes each part in few requests.
    for part in 1..=6 {
        let first_number = (part - 1) * 500;
        let rows = Workload { rows_per_transaction: 1, first_number, ..Workload::of_rows(500) };
        rows.insert(world.client()).await.expect("rows");
        world.pubsub.wait_stored(DEADLINE, u64::from(part) * 500).await;
    }
    world.wait_confirmed(DEADLINE).await;
    relay.read();
    let more = Workload { first_number: 3_000, ..Workload::of_rows(1) };
    more.insert(world.client()).await.expect("a row, and so a line");
    relay.wait_for_line(DEADLINE, "lines of the log were left out, because nobody read them").await;
}

#[tokio::test]
async fn signals_that_mean_nothing_here_leave_it_running() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut relay = world.start_relay([]).await;
    let signals =
        [(Signal::HangUp, "SIGHUP"), (Signal::User1, "SIGUSR1"), (Signal::User2, "SIGUSR2")];
    for (signal, name) in signals {
        relay.signal(signal);
        let line = relay.wait_for_line(DEADLINE, name).await;
        assert!(line.contains("ignored"), "{line}");
    }
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
         VALUES ('video', 'v-1', 'test.inserted', 1, '{}')",
        )
        .await;
    world.pubsub.wait_stored(DEADLINE, 1).await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.pubsub.fault("black-hole");
    let mut relay = world.start_relay(["--drain-timeout", "1h"]).await;
    a_row_is_out(&world).await;
    let confirmed = world.confirmed_flush().await;

    relay.signal(Signal::Terminate);
    relay.wait_for_http(DEADLINE, "/readyz", 503).await;
    // A signal and its echo from a process group count as one signal, so the second signal is
    // repeated until the relay ends.
    let code = wait_until(DEADLINE, "the second signal to end it", async || {
        relay.signal(Signal::Terminate);
        let ended = tokio::time::timeout(Duration::from_millis(200), relay.wait_ended(DEADLINE));
        ended.await.ok().map(|status| status.code())
    })
    .await;

    assert_eq!(code, Some(1));
    world.wait_slot_free(DEADLINE).await;
    assert_eq!(world.confirmed_flush().await, confirmed);
}

#[tokio::test]
async fn a_drain_that_gets_no_answer_ends_at_its_deadline_with_success() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.pubsub.fault("key=v-1,black-hole");
    let mut relay = world.start_relay(["--drain-timeout", "500ms"]).await;
    a_row_is_out(&world).await;

    assert_eq!(relay.terminate(Duration::from_secs(10)).await, Some(0));
    world.pubsub.heal();

    world.catch_up().await;
    world.check(&world.committed().await).assert_exactly_once();
}

/// Inserts a row, and waits until the publish request is in flight.
async fn a_row_is_out(world: &InboxDatabase) {
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'v-1', 'test.inserted', 1, '{}')",
        )
        .await;
    let emulator = world.pubsub.emulator();
    emulator.wait_until(|emulator| emulator.stats().publish_requests > 0).await;
}
