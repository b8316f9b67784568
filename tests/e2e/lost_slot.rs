//! A lost slot. No command continues as if all rows were there, and no hint makes the loss worse.

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::installation_or_skip;
use walrelay_testkit::relay::Finished;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase};

fn assert_refused(done: &Finished, code: i32, words: &[&str]) {
    assert_eq!(done.code, Some(code), "{}", done.text);
    for word in words {
        assert!(done.text.contains(word), "{word:?} is not in:\n{}", done.text);
    }
}

/// Publishes rows, drops the slot, and inserts rows that no slot covers.
async fn environment_with_lost_slot() -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    Workload::of_rows(5).insert(world.client()).await.expect("the rows are inserted");
    world.catch_up().await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    let more = Workload { first_number: 5, ..Workload::of_rows(7) };
    more.insert(world.client()).await.expect("the rows are inserted");
    Some(world)
}

async fn on_record(world: &InboxDatabase) -> String {
    let sql = "SELECT settled_lsn || ' ' || settled_xid FROM app_outbox_relay";
    world.client().query_one(sql, &[]).await.expect("the record is there").get(0)
}

#[tokio::test]
async fn every_command_refuses_to_go_on_over_a_lost_slot_and_keeps_the_record() {
    let Some(world) = environment_with_lost_slot().await else { return };
    let before = on_record(&world).await;
    let commands: [&[&str]; 5] = [
        &["run", "--on-slot-lost", "stop"],
        &["check"],
        &["init"],
        &["status"],
        // The second attempt must be refused as well.
        &["init"],
    ];
    for command in commands {
        let done = world.run(command.iter().copied()).await;
        assert_refused(&done, 5, &[world.name(), "walrelay slot recover"]);
    }
    let printed = world.succeed(["init", "--sql"]).await;
    let step = printed.split("-- slot ").nth(1).expect("a guard before the slot");
    let (_, guard) = step.split_once('\n').expect("a title");
    let refused = world.client().batch_execute(guard).await.unwrap_err();
    assert!(refused.as_db_error().unwrap().message().contains("is lost"), "{refused:?}");

    assert_eq!(on_record(&world).await, before);
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
    assert_eq!(world.number(slots).await, 0);
}

#[tokio::test]
async fn a_slot_that_is_gone_before_the_first_relay_is_lost_and_its_rows_are_recovered() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(5).insert(world.client()).await.expect("the rows are inserted");
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    let commands: [&[&str]; 4] =
        [&["run", "--on-slot-lost", "stop"], &["check"], &["init"], &["status"]];
    for command in commands {
        let done = world.run(command.iter().copied()).await;
        assert_refused(&done, 5, &[world.name(), "walrelay slot recover"]);
    }
    let told = world.succeed(["slot", "recover", "--yes"]).await;
    assert!(told.contains("5 row(s)"), "{told}");
    let more = Workload { first_number: 5, ..Workload::of_rows(2) };
    more.insert(world.client()).await.expect("the rows are inserted");
    world.catch_up().await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
}

#[tokio::test]
async fn a_replay_in_place_does_not_wait_for_a_relay_whose_slot_is_lost() {
    const REPLAY: [&str; 6] = ["replay", "start", "--source", "table", "--in-place", "--yes"];
    let Some(world) = environment_with_lost_slot().await else { return };
    assert_refused(&world.run(REPLAY).await, 5, &["walrelay slot recover"]);
    assert_eq!(world.number("SELECT count(*) FROM app_outbox_hold").await, 0);
    world.succeed(["slot", "recover", "--yes"]).await;
    world.catch_up().await;

    let mut waiting = world.command(REPLAY).start();
    waiting.wait_for_line(DEADLINE, "no relay streams slot").await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    assert_eq!(waiting.wait_ended(DEADLINE).await.code(), Some(5));
    world.succeed(["slot", "recover", "--yes"]).await;
    let relay = world.start_relay([]).await;
    let sql = "SELECT id FROM app_outbox_replay WHERE ended IS NULL";
    let id: String =
        world.client().query_one(sql, &[]).await.expect("the replay is on record").get(0);
    world.succeed(["replay", "resume", "--yes", &id]).await;
    drop(relay);
    world.succeed(["slot", "drop", "--yes"]).await;
    assert_refused(&world.run(REPLAY).await, 3, &["slot-missing", "walrelay init"]);
}

#[tokio::test]
async fn an_anchor_is_not_moved_while_its_slot_is_lost() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.catch_up().await;
    world.succeed(["anchor", "create", "a"]).await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    let refused = world.run(["anchor", "advance", "a", "--yes"]).await;
    assert_refused(&refused, 5, &["walrelay slot recover"]);
}

#[tokio::test]
async fn a_slot_created_by_hand_after_a_loss_is_reported_as_lost() {
    let Some(world) = environment_with_lost_slot().await else { return };
    let made = format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", world.name());
    world.execute(&made).await;
    for command in ["run", "check", "init", "status"] {
        let command = world.command([command]).env("WALRELAY_ON_SLOT_LOST", "stop");
        let done = command.finish(DEADLINE).await;
        assert_refused(&done, 5, &["another slot of the same name"]);
    }
    let status = world.run(["status"]).await.text;
    assert!(status.contains("the slot is lost") && !status.contains("walrelay run"), "{status}");
}

#[tokio::test]
async fn rows_of_a_lost_slot_are_given_up_only_by_their_number() {
    for is_dropped in [true, false] {
        let Some(world) = environment_with_lost_slot().await else { return };
        if !is_dropped {
            // Another slot of the same name, which is as lost.
            let made = format!(
                "SELECT pg_create_logical_replication_slot('{}', 'pgoutput')",
                world.name()
            );
            world.execute(&made).await;
        }
        let before = on_record(&world).await;
        let refused = world.run(["slot", "drop", "--yes"]).await;
        assert_refused(&refused, 2, &["--discard-rows"]);
        assert_eq!(on_record(&world).await, before);
        let numbers = refused.text.split(|c: char| !c.is_ascii_digit());
        let rows = numbers
            .filter(|it| !it.is_empty())
            .find(|it| (7..=12).contains(&it.parse::<u32>().unwrap_or(0)));
        let rows = rows.unwrap_or_else(|| panic!("{}", refused.text));
        world.succeed(["slot", "drop", "--yes", "--discard-rows", rows]).await;
        world.succeed(["init", "--skip-existing-rows"]).await;
        let last = Workload { first_number: 12, ..Workload::of_rows(3) };
        let committed = last.insert(world.client()).await.expect("the rows are inserted");
        world.catch_up().await;
        let ids: Vec<_> = world.pubsub.stored().into_iter().map(|row| row.event_id).collect();
        assert!(committed.iter().all(|row| ids.contains(&row.event_id)));
    }
}

#[tokio::test]
async fn run_check_and_init_agree_about_another_servers_record() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.catch_up().await;
    world.execute("UPDATE app_outbox_relay SET system_identifier = '1'").await;
    for command in ["run", "check", "init"] {
        let command = world.command([command]).env("WALRELAY_ON_SLOT_LOST", "stop");
        let done = command.finish(DEADLINE).await;
        assert_refused(&done, 5, &["walrelay slot recover"]);
    }
}

#[tokio::test]
async fn a_mistyped_publication_is_answered_with_the_one_that_exists() {
    let Some(world) = InboxDatabase::create().await else { return };
    let typed = format!("{}x", world.name());
    Workload::of_rows(3).insert(world.client()).await.expect("the rows are inserted");
    for command in ["run", "check"] {
        let done = world.run([command, "--publication", &typed]).await;
        let recorded = format!("the publication is {typed} here, and {} on record", world.name());
        assert_refused(&done, 3, &[&recorded, "Leave the options out"]);
        assert!(!done.text.contains("slot drop"), "{}", done.text);
    }
    let init = world.run(["init", "--publication", &typed]).await;
    assert_refused(&init, 3, &[&typed]);
    assert!(!init.text.contains("slot drop"), "{}", init.text);
}

#[tokio::test]
async fn a_slot_that_holds_rows_is_dropped_only_with_their_number() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut relay = world.start_relay([]).await;
    let held = world.run(["slot", "drop", "--yes"]).await;
    assert_refused(&held, 6, &["a relay that streams it"]);
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    Workload::of_rows(4).insert(world.client()).await.expect("the rows are inserted");

    for too_few in
        [&["slot", "drop", "--yes"][..], &["slot", "drop", "--yes", "--discard-rows", "3"]]
    {
        let done = world.run(too_few.iter().copied()).await;
        assert_refused(&done, 2, &["has 4 unconfirmed row(s)", "--discard-rows 4"]);
    }
    let with_number = ["slot", "drop", "--yes", "--discard-rows", "4"];
    assert!(world.succeed(with_number).await.contains("with 4 unconfirmed row(s)"));
    // The operator confirmed the loss with the number of rows, so the next start counts as a first
    // start.
    assert_refused(&world.run(["run"]).await, 3, &["walrelay init"]);
}

#[tokio::test]
async fn advancing_names_each_insert_that_is_given_up_and_the_command_that_publishes_it_after_all()
{
    let Some(world) = InboxDatabase::create().await else { return };
    // Before the first start, because a later change counts as a loss of rows.
    alter_publication(&world, "insert, delete").await;
    world.catch_up().await;
    Workload::of_rows(2).insert(world.client()).await.expect("the rows are inserted");
    world.catch_up().await;
    let given_up = Workload { first_number: 2, ..Workload::of_rows(3) };
    world.execute("BEGIN; DELETE FROM app_outbox WHERE version = 0").await;
    given_up.insert(world.client()).await.expect("the rows are inserted");
    world.execute("COMMIT").await;
    let end = world.wal_end().await;
    world.execute("CREATE TABLE other (n int)").await;
    let after = Workload { first_number: 10, ..Workload::of_rows(3) };
    after.insert(world.client()).await.expect("the rows are inserted");
    let ids: Vec<String> = {
        let rows = world
            .client()
            .query("SELECT id::text FROM app_outbox WHERE version BETWEEN 2 AND 4", &[])
            .await
            .expect("the outbox can be read");
        rows.iter().map(|row| row.get(0)).collect()
    };

    let to = format!("{:X}/{:X}", end >> 32, end & 0xFFFF_FFFF);
    let advance = ["slot", "advance", "--yes", "--to-lsn", &to];
    for agreed in ["0", "2", "4"] {
        let refused = world.run(advance.into_iter().chain(["--discard-rows", agreed])).await;
        assert_refused(&refused, 2, &["3 row(s)", "--discard-rows 3", &ids[0], &ids[1], &ids[2]]);
    }
    let told = world.succeed(advance.into_iter().chain(["--discard-rows", "3"])).await;
    assert!(told.contains("to skip: 3 row(s) and "), "{told}");
    world.catch_up().await;
    assert_eq!(world.pubsub.stored_count(), 5, "the rows before and behind");

    let relay = world.start_relay([]).await;
    let (_, command) = told.split_once("walrelay replay start --source table").expect("a command");
    let words = command.lines().next().unwrap_or_default().split_whitespace();
    world.succeed(["replay", "start", "--yes", "--source", "table"].into_iter().chain(words)).await;
    world.pubsub.wait_stored(DEADLINE, 8).await;
    let stored: Vec<_> = world.pubsub.stored().into_iter().map(|row| row.event_id).collect();
    assert!(ids.iter().all(|id| stored.contains(id)), "{stored:?}");
    drop(relay);
}

async fn alter_publication(world: &InboxDatabase, publish: &str) {
    let name = world.name();
    world.execute(&format!("ALTER PUBLICATION {name} SET (publish = '{publish}')")).await;
}

/// Drops the free slot at one of the relay's reads of its own record. `at.read` has the number of
/// that read.
const DROP_AT_A_READ: &str = "
CREATE SEQUENCE reads;
CREATE TABLE at (read int8 NOT NULL);
INSERT INTO at VALUES (0);
CREATE FUNCTION read_and_drop() RETURNS bool LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = public AS $$ BEGIN
  IF nextval('reads') = (SELECT read FROM at) THEN
    PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots
      WHERE database = current_database() AND active_pid IS NULL;
  END IF;
  RETURN true;
END $$;";

/// The number of reads during a start is smaller than this.
const READS_MAX: u32 = 30;

#[tokio::test]
async fn a_slot_that_is_dropped_between_two_steps_of_a_start_is_waited_for() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.catch_up().await;
    let role = format!("{}_relay", world.name());
    let tables = "app_outbox_definition, app_outbox_dispatch, app_outbox_relay, app_outbox_hold,
        app_outbox_relay_time";
    world.execute(DROP_AT_A_READ).await;
    world
        .execute(&format!(
            "CREATE ROLE {role} LOGIN REPLICATION; GRANT USAGE ON SCHEMA public TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {role};
             CREATE POLICY walrelay ON app_outbox_dispatch TO {role} USING (true) WITH CHECK (true);
             CREATE POLICY walrelay ON app_outbox_hold TO {role} USING (true) WITH CHECK (true);
             CREATE POLICY walrelay ON app_outbox_relay_time TO {role} USING (true) WITH CHECK (true);
             CREATE POLICY walrelay ON app_outbox_relay TO {role} USING (read_and_drop()) WITH CHECK (true)"
        ))
        .await;
    let url = world.url().replacen("postgres@", &format!("{role}@"), 1);
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
    for (dropped_count, read) in (1..READS_MAX).enumerate() {
        let next = format!("SELECT setval('reads', 1, false); UPDATE at SET read = {read}");
        world.execute(&next).await;
        let mut relay = world.relay(["--database-url", &url]).start();
        let phase =
            walrelay_testkit::wait_until(DEADLINE, "the relay to wait or stream", async || {
                let lines = relay.lines();
                let has = |text: &str| lines.iter().any(|line| line.contains(text));
                assert!(!has("\"exit\":"), "read {read}: {}", lines.join("\n"));
                ["waiting: nothing is published", "\"streaming\""].into_iter().find(|it| has(it))
            })
            .await;
        assert_eq!(relay.terminate(DEADLINE).await, Some(0), "read {read}");
        if world.number(slots).await == 1 {
            // The slot was in use by then, so this read was behind the start.
            assert!(phase.contains("streaming") && dropped_count > 0, "read {read}: {phase}");
            break;
        }
        world.succeed(["slot", "recover", "--yes"]).await;
        world.catch_up().await;
    }
    world.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn the_record_of_a_slot_that_does_not_exist_is_dropped_with_consent() {
    let Some(world) = InboxDatabase::create().await else { return };
    let other = ["--slot", "other", "--publication", "other"];
    world.succeed(["init"].into_iter().chain(other)).await;
    Workload::of_rows(3).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    world.execute("SELECT pg_drop_replication_slot('other')").await;
    let settled = "SELECT count(*) FROM app_outbox WHERE occurred_at > now() - interval '1 s' OR age(xmin) <= (
        SELECT age(settled_xid::xid) FROM app_outbox_relay WHERE slot <> 'other')";
    wait_until(DEADLINE, "the horizon to pass the rows", async || {
        world.execute("SELECT pg_logical_emit_message(true, 'foreign', 'x')").await;
        world.catch_up().await;
        (world.number(settled).await == 0).then_some(())
    })
    .await;
    let prune = ["prune", "--yes", "--older-than", "1s"];
    let kept = world.succeed(prune).await;
    for word in ["keeps old rows", "other", "\"rows\":3"] {
        assert!(kept.contains(word), "{word:?} is not in:\n{kept}");
    }
    let leftover = "slot-record-left-over";
    let warned = world.succeed(["check"]).await;
    assert!(warned.contains(leftover) && warned.contains("slot other"), "{warned}");
    let drop = |consent: &'static [&'static str]| {
        world.run([&["slot", "drop"], consent, &other[..2]].concat())
    };
    let words = ["rows-would-be-skipped", "walrelay slot recover --slot other", "--discard-rows 3"];
    assert_refused(&drop(&["--yes"]).await, 2, &words);
    let shown = drop(&["--dry-run", "--discard-rows", "3"]).await;
    assert!(shown.text.contains("would drop slot other"), "{}", shown.text);
    let records = "SELECT count(*) FROM app_outbox_relay WHERE slot = 'other'";
    assert_eq!(world.number(records).await, 1);
    let dropped = drop(&["--yes", "--discard-rows", "3"]).await;
    assert_eq!(dropped.code, Some(0), "{}", dropped.text);
    assert_eq!(world.number(records).await, 0);
    let checked = world.succeed(["check"]).await;
    assert!(!checked.contains(leftover), "{checked}");
    assert_refused(&drop(&["--yes"]).await, 3, &["slot-missing"]);
    world.succeed(prune).await;
    assert_eq!(world.number("SELECT count(*) FROM app_outbox").await, 0);
}

#[tokio::test]
async fn a_slot_whose_wal_is_missing_is_recovered_although_the_server_lists_it_as_usable() {
    let Some(installation) = installation_or_skip() else { return };
    let server = PrivatePostgres::start(&installation, &[("wal_level", "logical")]);
    let server = server.expect("a server");
    let Some(world) = InboxDatabase::create_at(&server.url("postgres")).await else { return };
    Workload::of_rows(5).insert(world.client()).await.expect("the rows are inserted");
    world.catch_up().await;
    let first = "SELECT pg_walfile_name(restart_lsn) FROM pg_replication_slots";
    let segment: String = world.client().query_one(first, &[]).await.expect("a slot").get(0);
    let more = Workload { first_number: 5, ..Workload::of_rows(7) };
    more.insert(world.client()).await.expect("the rows are inserted");
    world.execute("SELECT pg_switch_wal()").await;
    world.execute("CHECKPOINT").await;
    world.execute_on_server(&format!("rm pg_wal/{segment}")).await;

    let stopped = world.run(["run", "--until-caught-up"]).await;
    assert_refused(&stopped, 5, &["has already been removed", "walrelay slot recover"]);
    let told = world.succeed(["slot", "recover", "--yes"]).await;
    assert!(told.contains("7 row(s)"), "{told}");
    world.catch_up().await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
    // The slot is usable now, and a second recovery is refused.
    let refused = world.run(["slot", "recover", "--yes"]).await;
    assert_refused(&refused, 2, &["slot-not-lost"]);
    drop((world, server));
}
