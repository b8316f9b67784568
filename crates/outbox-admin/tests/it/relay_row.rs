//! The relay's own row, and the sessions that write it.

use std::time::Duration;

use pgoutput_parser::Lsn;
use walrelay_outbox_admin::{InitOptions, init};
use walrelay_outbox_replay::{
    SettledBound, SlotOperation, SlotRecovery, SlotSnapshot, begin_recovery, finish_part,
    finish_recovery, move_recovery_to_server, read_operation, store_slot_snapshot,
};
use walrelay_outbox_store::{
    DispatchStore, Horizon, Outbox, RetrySelection, SessionStore, Shard, Store, delete_relay_row,
    is_same_origin, read_horizon, read_relay_row, take_relay_row,
};
use walrelay_pg_client::{ConnectConfig, PgEnv, QualifiedName, connect_sql};
use walrelay_pg_replication::{Failover, read_server_identity};
use walrelay_testkit::postgres::{TestClient, TestDatabase};

/// Returns the options of `init`. The slot has the database's name.
fn options(database: &TestDatabase) -> InitOptions {
    InitOptions::new(Outbox {
        slot: database.name().to_owned(),
        publication: "walrelay".to_owned(),
        tables: vec![QualifiedName::new("public", "app_outbox")],
        shard: Shard::WHOLE,
    })
}

/// Creates a database with the objects of `init`, without its record of the slot.
async fn initialised() -> (TestDatabase, TestClient) {
    let database = TestDatabase::create().await;
    let session = database.connect().await;
    init(&session, &options(&database)).await.expect("init succeeds");
    // As after a slot that somebody else created: the session records it.
    delete_relay_row(&session, database.name()).await.expect("the record is deleted");
    (database, session)
}

#[tokio::test]
async fn init_records_the_slot_as_the_first_session_of_a_relay_would() {
    let database = TestDatabase::create().await;
    let session = database.connect().await;
    let options = options(&database);
    let slot = options.outbox.slot.as_str();
    init(&session, &options).await.unwrap();
    let recorded = read_relay_row(&session, slot).await.unwrap().expect("init records the slot");
    assert!(is_same_origin(&session, slot, &options.outbox.tables).await.unwrap());
    // A kill between the slot and its record leaves the record to the next `init`, or to a relay.
    delete_relay_row(&session, slot).await.unwrap();
    init(&session, &options).await.unwrap();
    let again = read_relay_row(&session, slot).await.unwrap().expect("a second run records it");
    delete_relay_row(&session, slot).await.unwrap();
    take_relay_row(&session, slot, &recorded.system_identifier, recorded.timeline).await.unwrap();
    let by_relay = read_relay_row(&session, slot).await.unwrap().expect("a session records it");
    for row in [recorded, again] {
        assert_eq!(
            (
                &row.system_identifier,
                row.timeline,
                row.generation,
                row.settled_lsn,
                row.settled_xid
            ),
            (
                &by_relay.system_identifier,
                by_relay.timeline,
                by_relay.generation,
                by_relay.settled_lsn,
                by_relay.settled_xid
            )
        );
    }
}

#[tokio::test]
async fn the_relay_row_reads_back_as_written() {
    let (database, session) = initialised().await;
    assert_eq!(read_relay_row(&session, database.name()).await.unwrap(), None);
    let own = take_relay_row(&session, database.name(), "77", 3).await.unwrap();
    let begun = read_relay_row(&session, database.name()).await.unwrap().unwrap();
    assert_eq!((begun.system_identifier.as_str(), begun.timeline, begun.generation), ("77", 3, 1));
    let far = begun.settled_lsn.as_u64() + 0x1000;
    for (lsn, xid) in [(far, Some(u64::MAX / 4)), (far + 8, None), (far + 9, Some(u64::MAX))] {
        assert!(own.write(&session, Lsn::new(lsn), xid, 0).await.unwrap().is_some());
        let row = read_relay_row(&session, database.name()).await.unwrap().unwrap();
        assert_eq!(row.settled_lsn.as_u64(), lsn);
        assert_eq!(row.settled_xid, xid.unwrap_or(u64::MAX / 4));
    }
    // The settled position never moves back.
    assert!(own.write(&session, Lsn::new(1), Some(1), 0).await.unwrap().is_some());
    let row = read_relay_row(&session, database.name()).await.unwrap().unwrap();
    assert_eq!((row.settled_lsn.as_u64(), row.settled_xid), (far + 9, u64::MAX));
}

#[tokio::test]
async fn published_rows_are_counted_in_all_and_for_the_day() {
    let (database, session) = initialised().await;
    let own = take_relay_row(&session, database.name(), "77", 1).await.unwrap();
    let published = async || {
        let row = read_relay_row(&session, database.name()).await.unwrap().unwrap();
        row.published.map(|it| (it.rows, it.today))
    };
    assert_eq!(published().await, None);
    for rows in [3, 0, 4] {
        assert!(own.write(&session, Lsn::new(1), None, rows).await.unwrap().is_some());
    }
    assert_eq!(published().await, Some((7, 7)));
    session
        .run("UPDATE app_outbox_relay SET published = published || '{\"day\": \"2020-01-01\"}'")
        .await;
    assert_eq!(published().await, Some((7, 0)), "none of this day");
    assert!(own.write(&session, Lsn::new(1), None, 2).await.unwrap().is_some());
    assert_eq!(published().await, Some((9, 2)));
}

#[tokio::test]
async fn a_row_of_another_timeline_or_generation_is_not_written() {
    let (database, session) = initialised().await;
    let before = take_relay_row(&session, database.name(), "77", 1).await.unwrap();
    let settled = async || read_relay_row(&session, database.name()).await.unwrap().unwrap();
    let begun = settled().await;
    let beyond = Lsn::new(begun.settled_lsn.as_u64() + 8);

    let promoted = take_relay_row(&session, database.name(), "77", 2).await.unwrap();
    assert_eq!(before.write(&session, beyond, None, 0).await.unwrap(), None);
    assert_eq!(settled().await.settled_lsn, begun.settled_lsn);
    session.run("UPDATE app_outbox_relay SET generation = generation + 1").await;
    assert_eq!(promoted.write(&session, beyond, None, 0).await.unwrap(), None);
    let reset = take_relay_row(&session, database.name(), "77", 2).await.unwrap();
    let written = reset.write(&session, beyond, None, 0).await.unwrap().unwrap();
    assert_eq!(written.confirmed, begun.settled_lsn, "how far the slot is confirmed");
    let now = read_horizon(&session).await.unwrap();
    let Horizon { xmin, wal_end } = written.horizon;
    assert!(xmin <= now.xmin && wal_end <= now.wal_end, "{:?}, then {now:?}", written.horizon);
    assert!(wal_end > beyond, "the horizon of the write, not of the row");
    assert_eq!(settled().await.settled_lsn, beyond);
}

/// Records the settings of the last transaction that wrote the relay's row.
const RECORD_SETTINGS_SQL: &str = "
    CREATE TABLE public.settings_seen (name text PRIMARY KEY, setting text NOT NULL);
    CREATE FUNCTION public.keep_settings() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      INSERT INTO public.settings_seen SELECT name, setting FROM pg_catalog.pg_settings
      ON CONFLICT (name) DO UPDATE SET setting = excluded.setting;
      RETURN NEW;
    END $$;
    CREATE TRIGGER keep BEFORE INSERT OR UPDATE ON public.app_outbox_relay
      FOR EACH ROW EXECUTE FUNCTION public.keep_settings()";

#[tokio::test]
async fn a_session_that_writes_sets_what_it_depends_on() {
    let (database, session) = initialised().await;
    session.run(RECORD_SETTINGS_SQL).await;
    let name = database.name();
    // Settings of one role in one database have the highest priority.
    for setting in [
        "synchronous_commit = off",
        "statement_timeout = '7s'",
        "lock_timeout = '7s'",
        "idle_in_transaction_session_timeout = '7s'",
        "default_transaction_read_only = on",
        "search_path = nowhere",
    ] {
        session.run(&format!("ALTER ROLE CURRENT_USER IN DATABASE {name} SET {setting}")).await;
    }
    let connect = ConnectConfig::parse(database.url(), &PgEnv::default()).unwrap();
    let client = connect_sql(&connect).await.unwrap();
    let server = read_server_identity(&client).await.unwrap();
    let store = DispatchStore::new(database.name().to_owned());
    let lease = Duration::from_secs(60);
    let mut writing = SessionStore::begin(connect, client, store, server, lease).await.unwrap();

    writing.parked_keys(&mut |_| {}).await.unwrap();

    let expected = [
        ("synchronous_commit", "on"),
        ("statement_timeout", "60000"),
        ("lock_timeout", "10000"),
        ("idle_in_transaction_session_timeout", "60000"),
        ("default_transaction_read_only", "off"),
        ("search_path", "pg_catalog, pg_temp"),
    ];
    for (setting, value) in expected {
        let sql = format!("SELECT setting FROM settings_seen WHERE name = '{setting}'");
        assert_eq!(session.text(&sql).await, value, "{setting}");
    }
}

#[tokio::test]
async fn a_session_is_told_what_operators_do() {
    let (database, mut operator) = initialised().await;
    let connect = ConnectConfig::parse(database.url(), &PgEnv::default()).unwrap();
    let client = connect_sql(&connect).await.unwrap();
    let server = read_server_identity(&client).await.unwrap();
    let store = DispatchStore::new(database.name().to_owned());
    let lease = Duration::from_secs(60);
    let mut session =
        SessionStore::begin(connect, client, store.clone(), server, lease).await.unwrap();
    let nothing = tokio::time::timeout(Duration::from_millis(1), session.notice()).await;
    assert!(nothing.is_err(), "told before anything was done");

    store.retry(&mut operator, &RetrySelection::AllDead).await.unwrap();

    let told = tokio::time::timeout(Duration::from_secs(30), session.notice()).await;
    told.expect("the session is told");
}

/// Runs as a transaction of its own.
const ASSIGN_XID: &str = "SELECT pg_current_xact_id()";

#[tokio::test]
async fn a_horizon_stays_below_transactions_that_are_open() {
    let (database, session) = initialised().await;
    let mut other = database.connect().await;
    let open = other.transaction().await.unwrap();
    let row = open.query_one("SELECT pg_current_xact_id()::text", &[]).await.unwrap();
    let open_xid: u64 = row.get::<_, String>(0).parse().unwrap();
    session.run(ASSIGN_XID).await;

    let during = read_horizon(&session).await.unwrap();
    assert!(during.xmin <= open_xid, "{during:?} against {open_xid}");
    open.commit().await.unwrap();
    session.run(ASSIGN_XID).await;
    let end: String = session.text("SELECT pg_current_wal_insert_lsn()::text").await;
    walrelay_testkit::wait_until(
        std::time::Duration::from_secs(10),
        "the horizon to pass",
        async || {
            let after = read_horizon(&session).await.unwrap();
            assert!(after.wal_end >= end.parse().unwrap());
            (after.xmin > open_xid).then_some(())
        },
    )
    .await;
}

#[tokio::test]
async fn a_record_from_a_dump_is_of_another_origin_however_alike_the_servers_are() {
    let (database, session) = initialised().await;
    let slot = database.name();
    let tables = [QualifiedName::new("public", "app_outbox")];
    let is_same = async || is_same_origin(&session, slot, &tables).await.unwrap();
    let own = take_relay_row(&session, slot, "77", 1).await.unwrap();
    assert!(!is_same().await, "no session has recorded the origin");
    let origin = "UPDATE app_outbox_relay SET origin = jsonb_build_object(
           'database', (SELECT oid::text FROM pg_database WHERE datname = current_database()),
           'tables', jsonb_build_object('public.app_outbox', 'app_outbox'::regclass::oid::text))";
    session.run(origin).await;
    assert!(is_same().await);
    assert!(own.write(&session, Lsn::new(u64::MAX / 2), None, 0).await.unwrap().is_some());
    session.run("VACUUM (FULL, FREEZE) app_outbox_relay").await;
    assert!(is_same().await, "a frozen record is as good, and an upgrade copies it");

    // A dump has each value of the record, and a restore writes them in a transaction of its own.
    let restore =
        "CREATE TABLE dump AS SELECT * FROM app_outbox_relay; DELETE FROM app_outbox_relay;
         INSERT INTO app_outbox_relay SELECT * FROM dump";
    session.run(restore).await;
    assert!(!is_same().await);
    assert!(own.write(&session, Lsn::new(u64::MAX / 2 + 8), None, 0).await.unwrap().is_some());
    assert!(!is_same().await, "a later write does not hide it");
}

#[tokio::test]
async fn rows_that_another_server_recorded_are_before_every_position_of_this_one() {
    let (database, session) = initialised().await;
    let slot = database.name();
    take_relay_row(&session, slot, "77", 1).await.unwrap();
    let recorded = format!(
        "INSERT INTO app_outbox_dispatch (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status)
         VALUES ('{slot}', 'third', 'FFFFFF/9', 0, 't', 'k', '', 'retrying'),
                ('{slot}', 'first', '1/7', 1, 't', 'k', '', 'retrying'),
                ('{slot}', 'second', '1/7', 2, 't', 'k', '', 'dead'),
                ('other', 'kept', '1/7', 0, 't', 'k', '', 'retrying')"
    );
    session.run(&recorded).await;
    let order = "SELECT string_agg(format('%s %s.%s', event_id, commit_lsn, tx_index), ', '
                        ORDER BY slot <> 'other', commit_lsn, tx_index) FROM app_outbox_dispatch";
    let recovery = SlotRecovery {
        id: "1".to_owned(),
        failover: Failover::No,
        bound: SettledBound::Since(std::time::SystemTime::now()),
        unpublished_where: None,
        parts: Vec::new(),
        settled_snapshot: None,
    };
    let here = |id| (id, 1);
    assert!(begin_recovery(&session, slot, &recovery, here("78")).await.unwrap());
    let moved = "kept 1/7.0, first 0/1.1, second 0/1.2, third 0/2.0";
    assert_eq!(session.text(order).await, moved);

    // On the same server the positions stay valid.
    session.run("UPDATE app_outbox_dispatch SET commit_lsn = '5/5' WHERE event_id = 'third'").await;
    session.run("UPDATE app_outbox_relay SET operation = NULL").await;
    assert!(begin_recovery(&session, slot, &recovery, here("78")).await.unwrap());
    assert!(session.text(order).await.ends_with("third 5/5.0"));
    move_recovery_to_server(&session, slot, here("79")).await.unwrap();
    assert_eq!(session.text(order).await, moved);
}

#[tokio::test]
async fn the_horizon_stays_until_the_last_part_of_a_recovery_is_finished() {
    let (database, session) = initialised().await;
    let slot = database.name();
    let own = take_relay_row(&session, slot, "77", 1).await.unwrap();
    let before = read_relay_row(&session, slot).await.unwrap().unwrap();
    let recovery = SlotRecovery {
        id: "1".to_owned(),
        failover: Failover::No,
        bound: SettledBound::Horizon,
        unpublished_where: None,
        parts: Vec::new(),
        settled_snapshot: None,
    };
    assert!(begin_recovery(&session, slot, &recovery, ("77", 1)).await.unwrap());
    let own = take_relay_row(&session, slot, "77", own.timeline).await.unwrap();
    let begun = before.settled_lsn.as_u64();
    let part = |n: u64| SlotSnapshot {
        consistent_point: Lsn::new(begun + 0x100 * n),
        snapshot: format!("{0}:{0}:", 1_000_000 * n),
    };
    let on_record = async || read_operation(&session, slot).await.unwrap();
    for number in [1, 2] {
        store_slot_snapshot(&session, slot, &part(number)).await.unwrap();
        // The session that holds the slot confirms it, and has seen a later horizon.
        let confirmed = Lsn::new(begun + 0x100 * number + 8);
        assert!(own.write(&session, confirmed, Some(u64::MAX), 0).await.unwrap().is_some());
        let row = read_relay_row(&session, slot).await.unwrap().unwrap();
        assert_eq!((row.settled_lsn, row.settled_xid), (confirmed, before.settled_xid));
    }
    let both = SlotRecovery { parts: vec![part(1), part(2)], ..recovery };
    assert_eq!(on_record().await, Some(SlotOperation::Recovery(both.clone())));

    finish_part(&session, slot).await.unwrap();
    let settled_snapshot = Some(part(1).snapshot);
    let rest = SlotRecovery { parts: vec![part(2)], settled_snapshot, ..both };
    assert_eq!(on_record().await, Some(SlotOperation::Recovery(rest)));
    assert_eq!(
        read_relay_row(&session, slot).await.unwrap().unwrap().settled_xid,
        before.settled_xid
    );
    finish_recovery(&session, slot).await.unwrap();
    let done = read_relay_row(&session, slot).await.unwrap().unwrap();
    assert_eq!((done.operation, done.settled_xid), (None, 2_000_000));
    assert_eq!(done.settled_lsn.as_u64(), begun + 0x208, "the slot is confirmed up to there");
}
