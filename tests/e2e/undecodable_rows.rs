//! A row that the server cannot send. The relay stops and reports the row's position and id. The
//! printed commands skip the row without losing any other row.

use walrelay_tests::{DEADLINE, InboxDatabase};

const BAD: &str = "00000000-0000-4000-8000-0000000000bd";

fn insert(id: &str, column: &str, value: &str) -> String {
    let (aggregate_id, payload) = match column {
        "aggregateid" => (value, "'{}'"),
        _ => ("'k'", value),
    };
    format!(
        "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload)
         VALUES ('{id}', 'video', {aggregate_id}, 'e', 1, {payload});"
    )
}

fn id_of(number: u32) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

/// Returns the word after `before`.
fn word_behind<'a>(text: &'a str, before: &str) -> &'a str {
    let (_, behind) = text.split_once(before).unwrap_or_else(|| panic!("{before:?} in {text}"));
    behind.split([' ', ',', '\n']).next().unwrap_or_default()
}

/// Checks that the relay stops at the row, and that `status` names the command that passes it. The
/// printed commands skip the row when they are run literally.
async fn stops_and_is_passed(world: &InboxDatabase, error: &str, bad: &str) {
    let good = |number| insert(&id_of(number), "payload", "'{}'");
    world.execute(&good(1)).await;
    world.execute(&format!("BEGIN; {} {bad} {} COMMIT", good(2), good(3))).await;
    world.execute(&good(4)).await;

    let stopped = world.run(["run"]).await;
    assert_eq!(stopped.code, Some(3), "{}", stopped.text);
    for words in [error, "3 sessions ended there", BAD, "walrelay slot advance"] {
        assert!(stopped.text.contains(words), "{words:?} is not in {}", stopped.text);
    }
    let position = word_behind(&stopped.text, "the server cannot send the row at ");
    assert!(position.ends_with("#1"), "{position}");
    let command = format!("walrelay slot advance --to-lsn {position}");
    let status = world.succeed(["status"]).await;
    assert!(status.contains(&command), "{command:?} is not in {status}");
    assert!(!status.contains("walrelay run"), "no relay can pass the row: {status}");

    let advance = ["slot", "advance", "--yes", "--to-lsn", position];
    let refused = world.run(advance).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("--discard-rows 3 accepts that"), "{}", refused.text);
    let told = world.succeed(advance.into_iter().chain(["--discard-rows", "3"])).await;
    let named = told.lines().find(|line| line.contains(BAD)).unwrap_or_default();
    assert!(named.contains("the server cannot send it"), "{told}");
    let passed = world.succeed(["status"]).await;
    assert!(passed.contains("walrelay run") && !passed.contains("slot advance"), "{passed}");

    let relay = world.start_relay([]).await;
    let (_, rest) = told.split_once("walrelay replay start --source table").expect("a command");
    assert!(!rest.contains(BAD), "{told}");
    let words = rest.lines().next().unwrap_or_default().split_whitespace();
    world.succeed(["replay", "start", "--yes", "--source", "table"].into_iter().chain(words)).await;
    walrelay_testkit::wait_until(DEADLINE, "all other rows to be stored", async || {
        let stored: Vec<_> = world.pubsub.stored().into_iter().map(|row| row.event_id).collect();
        (1..=4).all(|number| stored.contains(&id_of(number))).then_some(())
    })
    .await;
    drop(relay);
}

#[tokio::test]
async fn a_value_beyond_what_the_server_allocates_stops_the_relay_and_is_passed_without_decoding() {
    let Some(world) = InboxDatabase::create().await else { return };
    // The server sends bytea as hexadecimal text of twice the size. Compressed, the value takes
    // little disk space.
    let to_bytes = "ALTER TABLE app_outbox ALTER payload TYPE bytea USING payload::text::bytea";
    world.execute(to_bytes).await;
    let bad = insert(BAD, "payload", "convert_to(repeat('a', 600000000), 'UTF8')");
    stops_and_is_passed(&world, "invalid memory alloc request size", &bad).await;
}

#[tokio::test]
async fn invalid_bytes_of_a_sql_ascii_database_stop_the_relay_and_are_warned_about_before() {
    let Some(world) = InboxDatabase::create_unchecked().await else { return };
    for command in ["init", "check"] {
        let told = world.succeed([command]).await;
        assert!(told.contains("SQL_ASCII"), "{command}: {told}");
    }
    let bad = insert(BAD, "aggregateid", "E'bad\\xff'");
    stops_and_is_passed(&world, "invalid byte sequence", &bad).await;
}

#[tokio::test]
async fn rows_that_are_given_up_are_named_again_after_a_kill_at_any_step() {
    for step in ["advance-recorded", "advance-moved"] {
        let Some(world) = InboxDatabase::create_unchecked().await else { return };
        world.succeed(["init"]).await;
        let good = insert(&id_of(2), "payload", "'{}'");
        let bad = insert(BAD, "aggregateid", "E'bad\\xff'");
        world.execute(&format!("BEGIN; {good} {bad} COMMIT")).await;
        let stopped = world.run(["run"]).await;
        let position = word_behind(&stopped.text, "the server cannot send the row at ");
        let lost = ["--discard-rows", "2"];
        let advance = [&["slot", "advance", "--yes", "--to-lsn", position][..], &lost].concat();
        let dying = world.command(advance.iter().copied()).env("WALRELAY_FAILPOINT", step);
        let died = dying.finish(DEADLINE).await;
        assert_eq!(died.code, None, "{step}: {}", died.text);
        let command =
            format!("walrelay replay start --source table --in-place --event-id {}", id_of(2));
        assert!(died.text.contains(&command), "{step}: before the slot moves: {}", died.text);

        let told = world.succeed(advance.iter().copied()).await;
        for words in [BAD, command.as_str()] {
            assert!(told.contains(words), "{step}: {words:?} is not in {told}");
        }
        let again = world.succeed(advance.iter().copied()).await;
        assert!(again.contains("before") && again.contains(&command), "{step}: {again}");
        world.catch_up().await;
    }
}

#[tokio::test]
async fn a_slot_is_not_moved_back_to_an_earlier_position() {
    let Some(world) = InboxDatabase::create().await else { return };
    let back = ["slot", "advance", "--yes", "--to-lsn", "0/1"];
    let refused = world.run(back).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("position-out-of-range"), "{}", refused.text);
}

#[tokio::test]
async fn a_recovery_stops_at_invalid_bytes_and_continues_after_the_named_row_is_deleted() {
    let Some(world) = InboxDatabase::create_unchecked().await else { return };
    world.succeed(["init"]).await;
    world.execute(&insert(&id_of(1), "payload", "'{}'")).await;
    world.catch_up().await;
    let drop = format!("SELECT pg_drop_replication_slot('{}')", world.name());
    world.execute(&drop).await;
    world.execute(&insert(BAD, "aggregateid", "E'bad\\xff'")).await;
    world.execute(&insert(&id_of(2), "payload", "'{}'")).await;
    world.succeed(["slot", "recover", "--yes"]).await;

    let stopped = world.run(["run"]).await;
    assert_eq!(stopped.code, Some(3), "{}", stopped.text);
    let statement = format!("DELETE FROM public.app_outbox WHERE id = '{BAD}'");
    assert!(stopped.text.contains("row-unreadable"), "{}", stopped.text);
    assert!(stopped.text.contains(&statement), "{}", stopped.text);
    let status = world.succeed(["status"]).await;
    let check = world.run(["check"]).await.text;
    for told in [&status, &check] {
        assert!(told.contains(&statement), "{told}");
        assert!(!told.contains("finishes it"), "no relay can pass the row: {told}");
    }

    world.execute(&statement).await;
    world.catch_up().await;
    let stored: Vec<_> = world.pubsub.stored().into_iter().map(|row| row.event_id).collect();
    assert!(stored.contains(&id_of(2)), "{stored:?}");
}
