//! `check` looks at everything it can look at, and says so honestly.

use std::time::{Duration, Instant};

use walrelay_tests::World;

#[tokio::test]
async fn a_dead_pubsub_is_found_although_the_outbox_is_empty_and_without_a_long_wait() {
    let Some(world) = World::create().await else { return };
    // A port nobody listens on, and one where somebody listens and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    for address in ["127.0.0.1:1", &silent] {
        let began = Instant::now();
        let command = world.command(["check"]).env("PUBSUB_EMULATOR_HOST", address);
        let done = command.finish(walrelay_tests::DEADLINE).await;
        assert_eq!(done.code, Some(4), "{}", done.text);
        assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn pubsub_is_looked_at_although_postgres_cannot_be_reached() {
    let Some(world) = World::create_empty().await else { return };
    let dead = "postgresql://postgres@127.0.0.1:1/app";
    let done = world.run(["check", "--database-url", dead]).await;
    assert_eq!(done.code, Some(3), "{}", done.text);
    assert!(
        done.text.contains("127.0.0.1") && done.text.contains("Pub/Sub: answers"),
        "{}",
        done.text
    );
}
