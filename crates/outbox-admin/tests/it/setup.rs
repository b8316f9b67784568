//! Slot, publication, `init` and preflight on a real server.

use walrelay_core::{ColumnUse, Field, OnDead};
use walrelay_errors::Code;
use walrelay_outbox_admin::{
    CheckResult, ColumnRole, ExpectedColumn, Finding, InitOptions, InitPlan, PreflightRequest,
    init, preflight,
};
use walrelay_outbox_replay::AdminError;
use walrelay_outbox_store::{
    Definition, KeyPiece, Outbox, Shard, ShardKey, delete_relay_row, migrate,
};
use walrelay_pg_client::{QualifiedName, ServerErrorKind};
use walrelay_pg_replication::SlotError;
use walrelay_pg_replication::{
    Failover, Operation, PublicationScope, SlotType, advance_slot, create_slot, drop_slot,
    read_publication, read_slot,
};
use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::postgres::{TestClient, TestDatabase, installation_or_skip};

fn outbox() -> QualifiedName {
    QualifiedName::new("public", "app_outbox")
}

fn options(database: &TestDatabase) -> InitOptions {
    InitOptions::new(Outbox {
        slot: database.name().to_owned(),
        publication: "walrelay".to_owned(),
        tables: vec![outbox()],
        shard: Shard::WHOLE,
    })
}

fn request(options: &InitOptions) -> PreflightRequest {
    let column = |name: &str, field, role| ExpectedColumn {
        names: vec![name.to_owned()],
        used_by: ColumnUse::Field(field),
        role,
    };
    PreflightRequest {
        outbox: options.outbox.clone(),
        definition: Definition::of(&options.outbox, &options.columns),
        shard_key: options.shard_key.clone(),
        columns: vec![
            column("id", Field::Id, ColumnRole::Required),
            column("event_type", Field::EventType, ColumnRole::Required),
            column("payload", Field::Payload, ColumnRole::Payload),
            column("headers", Field::Headers, ColumnRole::Optional),
        ],
    }
}

async fn fresh() -> (TestDatabase, TestClient) {
    let database = TestDatabase::create().await;
    let session = database.connect().await;
    (database, session)
}

async fn findings(session: &TestClient, options: &InitOptions) -> Vec<Finding> {
    preflight(session, &request(options)).await.expect("the server answers")
}

/// Returns the codes of all errors. Warnings about the shared server's settings are left out.
fn problems(findings: &[Finding]) -> Vec<Code> {
    findings.iter().filter_map(Finding::error_code).collect()
}

/// Returns the finding with this result whose message contains the text.
fn found<'a>(findings: &'a [Finding], result: CheckResult, text: &str) -> &'a Finding {
    let is_it = |f: &&Finding| f.result == result && f.message.contains(text);
    findings.iter().find(is_it).unwrap_or_else(|| panic!("no {result:?} {text} in {findings:#?}"))
}

const INSERT: &str =
    "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
                      VALUES ('order', '1', 'made', 1, '{}')";

#[tokio::test]
async fn init_creates_what_is_missing_and_says_so() {
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    let session = database.connect().await;
    let options = options(&database);
    let slot = format!("slot {}", database.name());
    let everything = [
        "table public.app_outbox",
        "table public.app_outbox_definition",
        "table public.app_outbox_dispatch",
        "table public.app_outbox_relay",
        "table public.app_outbox_hold",
        "table public.app_outbox_aggregate",
        "table public.app_outbox_key",
        "table public.app_outbox_relay_time",
        "table public.app_outbox_replay",
        "table public.app_outbox_snapshot",
        "table public.app_outbox_partitioning",
        "publication walrelay",
        &slot,
    ];

    let first = init(&session, &options).await.unwrap();
    assert_eq!(first.created, everything);
    assert!(first.already_there.is_empty());
    assert!(problems(&findings(&session, &options).await).is_empty());

    let second = init(&session, &options).await.unwrap();
    assert!(second.created.is_empty(), "{second:?}");
    assert_eq!(second.already_there.len(), 14);
}

#[tokio::test]
async fn the_printed_plan_does_what_init_does() {
    let (database, session) = fresh().await;
    let options = options(&database);
    let plan = InitPlan::new(&options).unwrap();

    for _ in 0..2 {
        // One statement at a time, as psql sends the script.
        for step in plan.steps() {
            session.run(&step.sql).await;
        }
    }

    assert!(init(&session, &options).await.unwrap().created.is_empty());
    let script = plan.script();
    assert!(plan.steps().iter().all(|step| script.contains(step.sql.trim_end())), "{script}");
    assert!(script.contains("WITH (publish = 'insert'"), "{script}");
}

#[tokio::test]
async fn the_new_slot_decodes_what_is_inserted_afterwards() {
    let (database, session) = fresh().await;
    let options = options(&database);
    init(&session, &options).await.unwrap();
    session.run(INSERT).await;
    session.run("DELETE FROM app_outbox").await;

    let peek = format!(
        "SELECT string_agg(chr(get_byte(data, 0)), '') FROM pg_logical_slot_peek_binary_changes(
           '{}', NULL, NULL, 'proto_version', '1', 'publication_names', 'walrelay')",
        database.name()
    );
    assert_eq!(session.text(&peek).await, "BRIC", "begin, relation, insert, commit");
    let slot = read_slot(&session, database.name()).await.unwrap().unwrap();
    assert!(slot.lag_bytes().unwrap() > 0 && slot.retained_bytes() >= slot.lag_bytes(), "{slot:?}");
}

#[tokio::test]
async fn init_adds_tables_to_a_publication_and_never_replaces_it() {
    let (database, session) = fresh().await;
    let mut options = options(&database);
    init(&session, &options).await.unwrap();
    let oid = "SELECT oid::text FROM pg_publication WHERE pubname = 'walrelay'";
    let before = session.text(oid).await;
    session
        .run("CREATE SCHEMA billing; CREATE TABLE billing.events (id int) PARTITION BY LIST (id)")
        .await;
    options.outbox.tables.push(QualifiedName::new("billing", "events"));
    let lacking = findings(&session, &options).await;
    assert!(problems(&lacking).contains(&Code::OutboxDiffers), "{lacking:#?}");

    let report = init(&session, &options).await.unwrap();

    assert_eq!(report.created, ["table billing.events in publication walrelay"]);
    assert_eq!(session.text(oid).await, before);
    let publication = read_publication(&session, "walrelay").await.unwrap().unwrap();
    assert_eq!(publication.publishes, [Operation::Insert]);
    assert_eq!(publication.scope, PublicationScope::Listed { schemas: Vec::new() });
    assert!(publication.via_root);
    let tables: Vec<String> = publication.tables.iter().map(|t| t.name.to_string()).collect();
    assert_eq!(tables, ["billing.events", "public.app_outbox"]);
}

#[tokio::test]
async fn a_slot_older_than_its_publication_is_refused_both_ways() {
    let (database, session) = fresh().await;
    let options = options(&database);
    create_slot(&session, database.name(), Failover::No).await.unwrap();

    let refused = init(&session, &options).await.unwrap_err();
    assert!(matches!(refused, AdminError::SlotBeforePublication { .. }), "{refused:?}");

    let plan = InitPlan::new(&options).unwrap();
    let mut failed = Vec::new();
    for step in plan.steps() {
        if let Err(error) = session.batch_execute(&step.sql).await {
            failed.push(error.as_db_error().unwrap().message().to_owned());
        }
    }
    assert_eq!(
        failed,
        [format!(
            "slot {} is older than publication walrelay, which does not exist",
            database.name()
        ),]
    );
}

#[tokio::test]
async fn a_slot_of_another_kind_is_refused() {
    let (database, session) = fresh().await;
    let options = options(&database);
    let create = [
        (
            format!("SELECT pg_create_physical_replication_slot('{}')", options.outbox.slot),
            "physical",
        ),
        (
            format!(
                "SELECT pg_create_logical_replication_slot('{}', 'test_decoding')",
                options.outbox.slot
            ),
            "test_decoding",
        ),
        (
            format!(
                "SELECT pg_create_logical_replication_slot('{}', 'pgoutput', false, true)",
                options.outbox.slot
            ),
            "prepared transactions",
        ),
    ];
    for (sql, problem) in create {
        session.run(&sql).await;
        let refused = init(&session, &options).await.unwrap_err();
        assert!(matches!(refused, AdminError::SlotUnusable { .. }), "{refused:?}");
        assert!(refused.to_string().contains(problem), "{refused}");
        let finding = findings(&session, &options).await;
        found(&finding, CheckResult::Error(Code::SlotUnsuitable), problem);
        drop_slot(&session, &options.outbox.slot).await.unwrap();
    }
    let elsewhere = TestDatabase::create().await;
    create_slot(elsewhere.client(), &options.outbox.slot, Failover::No).await.unwrap();
    let refused = init(&session, &options).await.unwrap_err();
    assert!(refused.to_string().contains(elsewhere.name()), "{refused}");
}

#[tokio::test]
async fn a_slot_is_created_moved_forward_and_dropped() {
    let (database, session) = fresh().await;
    let name = database.name();
    assert!(read_slot(&session, name).await.unwrap().is_none());

    let start = create_slot(&session, name, Failover::No).await.unwrap();
    let slot = read_slot(&session, name).await.unwrap().unwrap();
    assert_eq!((slot.slot_type, slot.plugin.as_deref()), (SlotType::Logical, Some("pgoutput")));
    assert_eq!((slot.database.as_deref(), slot.active_pid), (Some(name), None));
    assert_eq!((slot.confirmed_flush_lsn, slot.two_phase), (Some(start), false));
    assert!(!slot.is_lost() && slot.mismatch(name).is_none());

    session.run("SELECT pg_logical_emit_message(true, 'x', 'y')").await;
    let end: String = session.text("SELECT pg_current_wal_lsn()::text").await;
    let moved = advance_slot(&session, name, end.parse().unwrap()).await.unwrap();
    assert!(moved > start);
    assert!(advance_slot(&session, name, start).await.is_err(), "never back");
    drop_slot(&session, name).await.unwrap();
    assert!(matches!(drop_slot(&session, name).await, Err(SlotError::SlotMissing { .. })));
    for bad in ["", "Upper", "with-dash", &"x".repeat(64)] {
        let refused = create_slot(&session, bad, Failover::No).await.unwrap_err();
        assert!(matches!(refused, SlotError::SlotName { .. }), "{bad:?}: {refused:?}");
    }
}

#[tokio::test]
async fn a_failover_slot_needs_a_server_that_knows_them() {
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    let session = database.connect().await;
    let options = InitOptions { failover: Failover::Yes, ..options(&database) };
    let done = init(&session, &options).await;
    if database.server_version() < 17 {
        assert!(matches!(done, Err(AdminError::Slot(SlotError::ServerTooOld { .. }))), "{done:?}");
        assert!(
            read_publication(&session, "walrelay").await.unwrap().is_none(),
            "nothing was touched"
        );
    } else {
        done.unwrap();
        let slot = read_slot(&session, database.name()).await.unwrap().unwrap();
        assert_eq!(slot.failover, Some(true));
    }
}

/// Returns the options of all four shards, with these pieces of the key.
fn shards(database: &TestDatabase, pieces: &[KeyPiece]) -> Vec<InitOptions> {
    let whole = options(database);
    let shard_key = Some(ShardKey { pieces: pieces.to_vec() });
    let of_shard = |outbox| InitOptions { outbox, shard_key: shard_key.clone(), ..whole.clone() };
    whole.outbox.shards(4).into_iter().map(of_shard).collect()
}

fn column(name: &str) -> KeyPiece {
    KeyPiece::Column(vec!["not_there".to_owned(), name.to_owned()])
}

/// Returns how many inserts each shard's slot streams.
async fn streamed(session: &TestClient, shards: &[InitOptions]) -> Vec<u32> {
    let mut streamed = Vec::new();
    for InitOptions { outbox, .. } in shards {
        let peek = format!(
            "SELECT count(*) FILTER (WHERE get_byte(data, 0) = ascii('I'))::text
               FROM pg_logical_slot_peek_binary_changes('{}', NULL, NULL, 'proto_version', '1', 'publication_names', '{}')",
            outbox.slot, outbox.publication
        );
        streamed.push(session.text(&peek).await.parse().expect("a number"));
    }
    streamed
}

#[tokio::test]
async fn shards_publish_each_row_once_whatever_columns_make_its_key() {
    let keys = [
        vec![column("aggregateid")],
        vec![
            column("aggregatetype"),
            KeyPiece::Literal("it's\\-".to_owned()),
            column("aggregateid"),
        ],
        vec![column("version"), column("id"), KeyPiece::Literal(String::new())],
        vec![column("odd Name")],
        vec![column("short"), column("flag"), column("amount")],
    ];
    for key in &keys {
        publish_by(key).await;
    }
}

async fn publish_by(key: &[KeyPiece]) {
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    let session = database.connect().await;
    migrate(&session, &[outbox()]).await.expect("the server does");
    session
        .run(
            "ALTER TABLE app_outbox ADD \"odd Name\" text COLLATE \"C\", ADD short varchar(9), ADD flag bool,
                                    ADD amount numeric",
        )
        .await;
    let shards = shards(&database, key);
    for options in &shards {
        init(&session, options).await.expect("the server does");
        // A second run must be safe.
        init(&session, options).await.expect("the server does");
    }
    for options in &shards {
        let found = findings(&session, options).await;
        assert!(problems(&found).is_empty(), "{found:#?}");
    }
    session
        .run(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, \"odd Name\", short, flag, amount)
             SELECT 'order', n, 'made', n, '{}', nullif(n::text, '7'), left(n::text, 2), n % 2 = 0, nullif(n, 9)
               FROM generate_series(1, 100) n",
        )
        .await;
    let streamed = streamed(&session, &shards).await;
    assert_eq!(streamed.iter().sum::<u32>(), 100, "{key:?}: {streamed:?}");
    assert!(streamed.iter().all(|rows| *rows > 0), "{key:?}: {streamed:?}");
}

#[tokio::test]
async fn a_key_that_no_filter_takes_is_refused_and_another_filter_is_found() {
    let (database, session) = fresh().await;
    migrate(&session, &[outbox()]).await.unwrap();
    session.run("CREATE TYPE mood AS ENUM ('good'); ALTER TABLE app_outbox ADD mood mood").await;
    for name in ["mood", "occurred_at", "missing"] {
        let refused = init(&session, &shards(&database, &[column(name)])[0]).await.unwrap_err();
        let text = format!("{refused:?}");
        assert!(text.contains("cannot be divided into shards"), "{text}");
        assert_eq!(refused.server_kind(), Some(ServerErrorKind::OutboxUnfit), "{text}");
    }
    let shards = shards(&database, &[column("aggregateid")]);
    for options in &shards {
        init(&session, options).await.unwrap();
    }
    let tampered = &shards[2];
    session
        .run(&format!(
            "ALTER PUBLICATION {} SET TABLE app_outbox WHERE (hashtext(aggregateid) & 3 = 1)",
            tampered.outbox.publication
        ))
        .await;
    let found = findings(&session, tampered).await;
    assert_eq!(problems(&found), [Code::ShardsDiffer]);
    // The filters belong to another key than the configured key.
    let other_key = Some(ShardKey { pieces: vec![column("aggregatetype")] });
    let other = InitOptions { shard_key: other_key, ..shards[0].clone() };
    assert_eq!(problems(&findings(&session, &other).await), [Code::ShardsDiffer]);
    let no_key = InitOptions { shard_key: None, ..shards[0].clone() };
    assert_eq!(problems(&findings(&session, &no_key).await), [Code::ShardsDiffer]);
}

#[tokio::test]
async fn another_number_of_shards_is_refused_beside_those_that_are_there() {
    let (database, session) = fresh().await;
    let key = Some(ShardKey { pieces: vec![column("aggregateid")] });
    let whole = options(&database);
    init(&session, &shards(&database, &[column("aggregateid")])[1]).await.unwrap();
    for count in [1, 2] {
        let outbox = whole.outbox.of_shard(Shard::all(count).next().unwrap());
        let other = InitOptions { outbox, shard_key: key.clone(), ..whole.clone() };
        let refused = init(&session, &other).await.unwrap_err();
        assert!(matches!(refused, AdminError::OtherNumber { count: 4, .. }), "{refused:?}");
        let found = findings(&session, &other).await;
        assert_eq!(problems(&found), [Code::ShardsDiffer], "{found:#?}");
    }
}

#[tokio::test]
async fn preflight_reports_everything_at_once() {
    let (database, session) = fresh().await;
    let options = options(&database);
    let empty = findings(&session, &options).await;
    assert_eq!(problems(&empty), [Code::DispatchTableMissing], "nothing is set up");
    session.run("CREATE TABLE app_outbox_hold ()").await;
    let rest = findings(&session, &options).await;
    assert_eq!(
        problems(&rest),
        [
            Code::OutboxTableMissing,
            Code::PublicationMissing,
            Code::SlotMissing,
            Code::DispatchTableMissing,
            Code::DispatchTableMissing,
            Code::DispatchTableMissing,
        ]
    );
    found(&empty, CheckResult::Passed("wal-level"), "is logical");
    found(&empty, CheckResult::Passed("wal-senders"), "in use");
}

#[tokio::test]
async fn preflight_tells_a_lost_slot_from_a_first_start() {
    let (database, session) = fresh().await;
    let options = options(&database);
    init(&session, &options).await.unwrap();
    let here = session.text("SELECT system_identifier::text FROM pg_control_system()").await;
    write_relay_row(&session, &options.outbox.slot, &here, "0/10").await;
    drop_slot(&session, &options.outbox.slot).await.unwrap();

    assert_eq!(problems(&findings(&session, &options).await), [Code::SlotLost]);
    delete_relay_row(&session, &options.outbox.slot).await.unwrap();
    assert_eq!(problems(&findings(&session, &options).await), [Code::SlotMissing]);
    write_relay_row(&session, &options.outbox.slot, "1", "0/10").await;
    let restored = findings(&session, &options).await;
    assert_eq!(problems(&restored), [Code::SlotLost, Code::PositionsOfAnotherServer]);
}

#[tokio::test]
async fn preflight_names_what_is_wrong_with_tables_and_publication() {
    let (database, session) = fresh().await;
    let options = options(&database);
    session
        .run(
            "CREATE TABLE app_outbox (id bigint, type text, payload hstore_like, noise text);"
                .replace("hstore_like", "point")
                .as_str(),
        )
        .await;
    init(&session, &options).await.unwrap();
    session
        .run(
            "CREATE TABLE other (id int PRIMARY KEY);
             ALTER PUBLICATION walrelay SET (publish = 'insert, update, truncate');
             ALTER PUBLICATION walrelay SET TABLE app_outbox (id, type), other",
        )
        .await;

    let all = findings(&session, &options).await;

    let column =
        found(&all, CheckResult::Error(Code::OutboxColumnMissing), "has no column event_type");
    assert_eq!(column.subject, "table public.app_outbox");
    assert_eq!(column.message, "has no column event_type");
    assert_eq!(
        column.fix,
        "name the right column for the event type; there are id, type, payload, noise"
    );
    found(&all, CheckResult::Warning(Code::PayloadTypeConverted), "text form");
    let publication = CheckResult::Error(Code::PublicationUnsuitable);
    let surplus = CheckResult::Warning(Code::PublicationUnsuitable);
    found(&all, surplus, "publishes update, truncate");
    found(&all, publication, "leaves out column event_type");
    found(&all, publication, "also publishes public.other");
    session.run("DROP PUBLICATION walrelay; CREATE PUBLICATION walrelay FOR ALL TABLES WITH (publish = 'insert')").await;
    found(&findings(&session, &options).await, publication, "ALL TABLES");
    session.run("DROP TABLE app_outbox; CREATE UNLOGGED TABLE app_outbox (id int)").await;
    let unlogged = CheckResult::Error(Code::OutboxTableUnsuitable);
    found(&findings(&session, &options).await, unlogged, "unlogged");
}

#[tokio::test]
async fn preflight_sees_what_a_role_may_not_do() {
    let (database, session) = fresh().await;
    let options = options(&database);
    init(&session, &options).await.unwrap();
    let role = format!("{}_role", database.name());
    session.run(&format!("CREATE ROLE {role} LOGIN")).await;
    let relay = TestClient::as_role(&database, &role).await;

    let bare = findings(&relay, &options).await;
    assert_eq!(
        problems(&bare),
        [
            Code::ReplicationPermissionMissing,
            Code::DispatchPermissionMissing,
            Code::DispatchPermissionMissing,
            Code::DispatchRowsHidden,
            Code::DispatchPermissionMissing,
            Code::DispatchRowsHidden,
            Code::DispatchPermissionMissing,
            Code::DispatchRowsHidden,
        ]
    );
    // Amazon RDS has this role in place of the attribute.
    session
        .run(
            "DO $$ BEGIN CREATE ROLE rds_replication;
               EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$",
        )
        .await;
    session.run(&format!("GRANT rds_replication TO {role}")).await;
    let member = problems(&findings(&relay, &options).await);
    assert!(!member.contains(&Code::ReplicationPermissionMissing), "{member:?}");
    session.run(&format!("REVOKE rds_replication FROM {role}")).await;
    // The statements from the findings and from docs/how-to/deploy/roles.md are enough.
    session
        .run(&format!(
            "ALTER ROLE {role} REPLICATION;
             GRANT SELECT ON app_outbox_definition TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON app_outbox_dispatch, app_outbox_relay, app_outbox_hold TO {role};
             CREATE POLICY walrelay ON app_outbox_dispatch TO {role} USING (true) WITH CHECK (true);
             CREATE POLICY walrelay ON app_outbox_relay TO {role} USING (true) WITH CHECK (true);
             CREATE POLICY walrelay ON app_outbox_hold TO {role} USING (true) WITH CHECK (true)"
        ))
        .await;
    let granted = findings(&relay, &options).await;
    assert!(problems(&granted).is_empty(), "{granted:#?}");
    let settled = session.text("SELECT pg_current_wal_flush_lsn()::text").await;
    write_relay_row(&relay, &options.outbox.slot, "1", &settled).await;
    let store = walrelay_outbox_store::DispatchStore::new(options.outbox.slot.clone())
        .with_on_dead(OnDead::Hold);
    assert!(store.parked_keys(&relay).await.unwrap().is_empty());
    assert_eq!(problems(&findings(&relay, &options).await), [Code::PositionsOfAnotherServer]);
    // A policy for SELECT only is not enough.
    session.run("ALTER POLICY walrelay ON app_outbox_dispatch RENAME TO x; DROP POLICY x ON app_outbox_dispatch").await;
    session
        .run(&format!("CREATE POLICY w ON app_outbox_dispatch FOR SELECT TO {role} USING (true)"))
        .await;
    let narrow = findings(&relay, &options).await;
    let hidden = CheckResult::Error(Code::DispatchRowsHidden);
    found(&narrow, hidden, "for INSERT, UPDATE, DELETE");
    drop(relay);
    session.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// Writes a row as another relay may have left it. Its other values do not matter.
async fn write_relay_row(session: &TestClient, slot: &str, system_identifier: &str, settled: &str) {
    let sql = "INSERT INTO app_outbox_relay
                      (slot, system_identifier, timeline, generation, settled_lsn, settled_xid)
               VALUES ($1, $2, 1, 1, $3::text::pg_lsn, '7')
               ON CONFLICT (slot) DO UPDATE SET system_identifier = excluded.system_identifier";
    let written = session.execute(sql, &[&slot, &system_identifier, &settled]).await;
    written.expect("the row is written");
}

#[tokio::test]
async fn a_slot_that_fell_too_far_behind_is_lost() {
    let Some(installation) = installation_or_skip() else { return };
    let settings =
        [("max_slot_wal_keep_size", "1MB"), ("min_wal_size", "32MB"), ("max_wal_size", "32MB")];
    let server = PrivatePostgres::start(&installation, &settings).unwrap();
    let database = TestDatabase::create_at(&server.url("postgres")).await;
    let session = database.connect().await;
    let options = options(&database);
    init(&session, &options).await.unwrap();
    let capped = findings(&session, &options).await;
    found(&capped, CheckResult::Warning(Code::WalRetentionUnsuitable), "the slot is lost");

    for _ in 0..3 {
        session.run("SELECT pg_logical_emit_message(false, 'x', 'y'), pg_switch_wal()").await;
        session.run("CHECKPOINT").await;
    }

    let slot = read_slot(&session, &options.outbox.slot).await.unwrap().unwrap();
    assert!(slot.is_lost(), "{slot:?}");
    assert_eq!(problems(&findings(&session, &options).await), [Code::SlotLost]);
    let refused = init(&session, &options).await.unwrap_err();
    assert!(matches!(refused, AdminError::SlotLost { .. }), "{refused:?}");
}
