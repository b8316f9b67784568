//! Tests of findings from invented facts, which a test server cannot produce.

#![expect(clippy::shadow_unrelated, reason = "each assertion is about facts of its own")]

use std::time::Duration;

use pgoutput_parser::Lsn;
use walrelay_core::{ColumnNames, ColumnUse};
use walrelay_errors::Code;
use walrelay_outbox_replay::{HolderActivity, ReleaseStage, SettledRecord, SlotRelease, SlotUser};
use walrelay_outbox_store::{DEFINITION_TABLE, Definition, Outbox, Shard};
use walrelay_pg_client::QualifiedName;
use walrelay_pg_replication::{
    Operation, PublicationScope, PublicationState, PublishedTable, SlotState, SlotType, WalStatus,
};

use super::facts::SchemaAccess;
use super::finding::FIX_OF_CODE;
use super::*;
use crate::sharding::Sharding;

fn outbox() -> QualifiedName {
    QualifiedName::new("public", "app_outbox")
}

fn request() -> PreflightRequest {
    let outbox = Outbox {
        slot: "walrelay".to_owned(),
        publication: "walrelay".to_owned(),
        tables: vec![outbox()],
        shard: Shard::WHOLE,
    };
    PreflightRequest {
        definition: Definition::of(&outbox, &ColumnNames::default()),
        outbox,
        shard_key: None,
        columns: Vec::new(),
    }
}

fn table(name: &str) -> TableFacts {
    TableFacts {
        name: QualifiedName::new("public", name),
        found: Some(FoundTable {
            kind: RelationKind::Table,
            columns: vec![("id".to_owned(), "uuid".to_owned())],
            unpublished: Vec::new(),
            unstreamed: None,
            missing_rights: Vec::new(),
            hidden_from: Vec::new(),
        }),
    }
}

/// Returns the facts of a database without problems.
fn facts() -> Facts {
    Facts {
        server: ServerFacts {
            version_num: 150_018,
            database: "app".to_owned(),
            encoding: "UTF8".to_owned(),
            mode: ServerMode::Primary,
            host: ServerHost::Other,
            wal_level: "logical".to_owned(),
            replication_slots_max: 5,
            replication_slots: 5,
            wal_senders_max: 10,
            wal_senders: 1,
            slot_wal_keep_bytes: Some(16 << 30),
            wal_sender_timeout: Some(Duration::from_secs(60)),
            local_time_zone: None,
            limits: vec![("temp_file_limit".to_owned(), "-1".to_owned())],
            system_identifier: Some("7".to_owned()),
        },
        role: RoleFacts {
            name: "postgres".to_owned(),
            may_replicate: true,
            connections_max: None,
            password_left: None,
        },
        slot: Some(SlotState {
            name: "walrelay".to_owned(),
            plugin: Some("pgoutput".to_owned()),
            slot_type: SlotType::Logical,
            database: Some("app".to_owned()),
            active_pid: None,
            restart_lsn: Some(Lsn::new(1)),
            confirmed_flush_lsn: Some(Lsn::new(2)),
            wal_status: Some(WalStatus::Reserved),
            safe_wal_size: None,
            two_phase: false,
            failover: None,
            invalidation_reason: None,
            conflicting: None,
            wal_end: Lsn::new(3),
        }),
        holder: None,
        publication: Some(PublicationState {
            name: "walrelay".to_owned(),
            scope: PublicationScope::Listed { schemas: Vec::new() },
            publishes: vec![Operation::Insert],
            tables: vec![PublishedTable { name: outbox(), row_filter: None, columns: None }],
            via_root: true,
        }),
        outbox_tables: vec![table("app_outbox")],
        schema: SchemaAccess::Usable,
        relay_tables: [DEFINITION_TABLE, "app_outbox_dispatch", "app_outbox_relay"]
            .map(table)
            .into(),
        definition: Some(request().definition),
        relay_row: Some(SettledRecord {
            system_identifier: "7".to_owned(),
            lsn: Lsn::new(2),
            xid: 700,
            wal_end: Some(Lsn::new(1 << 40)),
            operation: None,
            publication_gap: None,
        }),
        leftover_records: Vec::new(),
        release: None,
        sharding: Sharding::default(),
        filters: Vec::new(),
        neighbours: ExistingNames::default(),
    }
}

/// Returns all findings except passed checks after `change` is applied to good facts.
fn found(change: impl FnOnce(&mut Facts)) -> Vec<(CheckResult, String)> {
    let mut facts = facts();
    change(&mut facts);
    let findings = assess(&request(), &facts);
    let bad =
        findings.into_iter().filter(|finding| !matches!(finding.result, CheckResult::Passed(_)));
    bad.map(|finding| (finding.result, finding.fix)).collect()
}

fn only(change: impl FnOnce(&mut Facts)) -> (CheckResult, String) {
    let mut all = found(change);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn slot(facts: &mut Facts) -> &mut SlotState {
    facts.slot.as_mut().unwrap()
}

fn publication(facts: &mut Facts) -> &mut PublicationState {
    facts.publication.as_mut().unwrap()
}

#[test]
fn nothing_is_wrong_with_good_facts() {
    assert_eq!(found(|_| {}), []);
}

#[test]
fn the_server_has_to_be_new_enough_a_primary_and_logical() {
    let (result, _) = only(|f| f.server.version_num = 140_012);
    assert_eq!(result, CheckResult::Error(Code::ServerTooOld));
    let (result, _) = only(|f| f.server.mode = ServerMode::Standby);
    assert_eq!(result, CheckResult::Error(Code::ServerIsStandby));
    let (result, fix) = only(|f| f.server.wal_level = "replica".to_owned());
    assert_eq!(result, CheckResult::Error(Code::WalLevelNotLogical));
    assert!(fix.contains("restart"), "{fix}");
}

#[test]
fn on_supabase_the_fix_is_its_command() {
    let (_, fix) = only(|f| {
        f.server.host = ServerHost::Supabase;
        f.server.wal_level = "replica".to_owned();
    });
    assert!(fix.ends_with("postgres-config update --config wal_level=logical"), "{fix}");
    let without_right = |version| {
        only(|f| {
            f.server.host = ServerHost::Supabase;
            f.server.version_num = version;
            f.role.may_replicate = false;
        })
    };
    assert!(without_right(150_000).1.contains("before Postgres 17"));
    assert!(without_right(170_000).1.contains("create a role"));
    let (result, fix) = only(|f| {
        f.role.name = "Relay".into();
        f.role.may_replicate = false;
    });
    assert_eq!(
        (result, fix.as_str()),
        (
            CheckResult::Error(Code::ReplicationPermissionMissing),
            "as a superuser: ALTER ROLE \"Relay\" REPLICATION"
        )
    );
}

#[test]
fn a_full_server_is_an_error_only_while_our_slot_is_not_there() {
    assert_eq!(found(|f| f.server.replication_slots = 5), []);
    let full = found(|f| {
        f.slot = None;
        f.relay_row = None;
    });
    let results: Vec<_> = full.iter().map(|(result, _)| *result).collect();
    assert_eq!(
        results,
        [CheckResult::Error(Code::SlotsExhausted), CheckResult::Error(Code::SlotMissing)]
    );
    let (result, fix) = only(|f| f.server.wal_senders = 10);
    assert_eq!(result, CheckResult::Warning(Code::ConnectionsExhausted));
    assert!(fix.contains("max_wal_senders = '15'"), "{fix}");
}

#[test]
fn log_that_is_kept_without_limit_is_a_warning_and_supabases_default_is_none() {
    for keep in [None, Some(1 << 30)] {
        let (result, fix) = only(|f| f.server.slot_wal_keep_bytes = keep);
        assert_eq!(result, CheckResult::Warning(Code::WalRetentionUnsuitable), "{keep:?}");
        assert!(fix.contains("max_slot_wal_keep_size"), "{fix}");
    }
    assert_eq!(found(|f| f.server.slot_wal_keep_bytes = Some(4096 << 20)), []);
}

#[test]
fn a_limit_that_no_session_can_change_is_a_warning_with_its_setting() {
    let limited = |name: &str, value: &str| {
        only(|f| f.server.limits = vec![(name.to_owned(), value.to_owned())])
    };
    for (name, value, off) in [
        ("temp_file_limit", "1024", "-1"),
        ("old_snapshot_threshold", "60", "-1"),
        ("idle_replication_slot_timeout", "3600", "0"),
    ] {
        let (result, fix) = limited(name, value);
        assert_eq!(result, CheckResult::Warning(Code::ServerUnsuitable), "{name}");
        assert!(fix.contains(&format!("SET {name} = {off}")), "{fix}");
        assert_eq!(found(|f| f.server.limits = vec![(name.into(), off.into())]), []);
    }
    for connections_max in [Some(2), Some(5)] {
        let (result, _) = only(|f| f.role.connections_max = connections_max);
        assert_eq!(result, CheckResult::Warning(Code::ServerUnsuitable));
    }
    assert_eq!(found(|f| f.role.connections_max = Some(20)), []);
    let (result, fix) = only(|f| f.role.password_left = Some(Duration::from_hours(24)));
    assert_eq!(result, CheckResult::Warning(Code::ServerUnsuitable));
    assert!(fix.contains("VALID UNTIL"), "{fix}");
}

#[test]
fn a_generated_column_that_is_needed_is_an_error_and_another_is_not() {
    let mut facts = facts();
    let table = facts.outbox_tables[0].found.as_mut().unwrap();
    table.columns.push(("shard".to_owned(), "text".to_owned()));
    table.unpublished.push("shard".to_owned());
    let fine = assess(&request(), &facts);
    assert!(fine.iter().all(|finding| finding.error_code().is_none()), "{fine:?}");
    let needed = ExpectedColumn {
        names: vec!["shard".to_owned()],
        used_by: ColumnUse::OrderingKey,
        role: ColumnRole::Required,
    };
    let findings = assess(&PreflightRequest { columns: vec![needed], ..request() }, &facts);
    let wrong: Vec<_> = findings.iter().filter(|it| it.error_code().is_some()).collect();
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(wrong[0].message.contains("generated"), "{wrong:?}");
    assert!(wrong[0].fix.contains("for the ordering key"), "{wrong:?}");
}

#[test]
fn little_room_for_an_idle_slot_is_a_warning() {
    let (result, _) = only(|f| f.server.wal_sender_timeout = None);
    assert_eq!(result, CheckResult::Warning(Code::WalSenderTimeoutOff));
    for left in [-5, 0, 1 << 20] {
        let (result, _) = only(|f| {
            slot(f).safe_wal_size = Some(left);
            slot(f).wal_end = Lsn::new(16 << 30);
        });
        assert_eq!(result, CheckResult::Warning(Code::SlotAtRisk), "{left}");
    }
    for left in [2 << 30, 60 << 20] {
        assert_eq!(found(|f| slot(f).safe_wal_size = Some(left)), [], "of {left} bytes in all");
    }
    let (result, fix) = only(|f| slot(f).wal_status = Some(WalStatus::Unreserved));
    assert_eq!(result, CheckResult::Warning(Code::SlotAtRisk));
    assert!(fix.starts_with("start the relay now"), "{fix}");
}

#[test]
fn a_lost_slot_is_told_by_each_sign_of_it() {
    let signs: [fn(&mut SlotState); 3] = [
        |s| s.wal_status = Some(WalStatus::Lost),
        |s| s.invalidation_reason = Some("idle_timeout".to_owned()),
        |s| s.conflicting = Some(true),
    ];
    for sign in signs {
        let (result, fix) = only(|f| sign(slot(f)));
        assert_eq!(result, CheckResult::Error(Code::SlotLost));
        assert_eq!(fix, FIX_OF_CODE);
    }
}

#[test]
fn a_slot_whose_publication_was_changed_is_lost() {
    let gap = "exists, but its publication walrelay was dropped";
    let change = |facts: &mut Facts| {
        let row = facts.relay_row.as_mut().expect("a record");
        row.publication_gap = Some(gap.to_owned());
    };
    assert_eq!(only(change), (CheckResult::Error(Code::SlotLost), FIX_OF_CODE.to_owned()));
}

#[test]
fn a_slot_in_use_is_a_warning_unless_its_holder_is_a_relay() {
    let held = |application: &str, does| {
        let holder = SlotUser { pid: 4711, application: application.to_owned(), does };
        found(|facts| facts.holder = Some(holder))
    };
    for (application, does) in [
        ("debezium", HolderActivity::Streams),
        ("walrelay", HolderActivity::Makes),
        ("", HolderActivity::Unknown),
    ] {
        let found = held(application, does);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, CheckResult::Warning(Code::SlotHeld));
    }
    assert_eq!(held("walrelay", HolderActivity::Streams), []);
}

/// Returns the message of the first finding with this code.
fn message(code: Code, change: impl FnOnce(&mut Facts)) -> String {
    let mut facts = facts();
    change(&mut facts);
    let findings = assess(&request(), &facts);
    let found = findings.into_iter().find(|finding| finding.code() == Some(code));
    found.unwrap_or_else(|| panic!("no finding {code:?}")).message
}

#[test]
fn the_record_of_another_slot_that_does_not_exist_is_a_warning() {
    let leftover = |age| {
        message(Code::SlotRecordLeftOver, |f| {
            f.leftover_records = vec![LeftoverRecord { slot: "other".to_owned(), age }];
        })
    };
    assert!(leftover(Duration::from_hours(72)).contains("its record of 3 days ago does"));
    assert!(leftover(Duration::from_secs(9)).contains("its record of less than an hour ago does"));
    assert!(found(|f| f.leftover_records.clear()).is_empty());
}

#[test]
fn a_message_about_a_mistyped_name_has_the_similar_one_and_no_fix_drops_the_slot() {
    let publication = message(Code::PublicationMissing, |f| {
        f.publication = None;
        f.neighbours.publications = vec!["other".to_owned(), "walrelay_".to_owned()];
    });
    assert_eq!(publication, "does not exist, but walrelay_ does");
    let slot = message(Code::SlotMissing, |f| {
        f.slot = None;
        f.relay_row = None;
        f.neighbours.slots = vec!["walreley".to_owned()];
    });
    assert_eq!(slot, "does not exist, but walreley does");
    let table = |names: &[&str]| {
        message(Code::OutboxTableMissing, |f| {
            f.outbox_tables[0].found = None;
            f.neighbours.tables = names.iter().map(|name| format!("public.{name}")).collect();
        })
    };
    assert_eq!(table(&["app_outbx"]), "does not exist, but public.app_outbx does");
    let of_consumer = table(&["app_inbox", "app_inbox_consumer", "app_inbox_key"]);
    assert_eq!(of_consumer, "does not exist: this looks like a consumer's database");
    let own_alone = ["app_inbox", "app_outbox_hold", "app_outbox_relay", "app_outbox_aggregate"];
    assert_eq!(table(&own_alone), "does not exist");
    let fixes = found(|f| f.publication = None);
    assert!(fixes.iter().all(|(_, fix)| fix.starts_with("name the publication")), "{fixes:?}");
}

#[test]
fn a_schema_that_the_role_cannot_use_is_one_error_with_its_fix() {
    let (result, fix) = only(|f| {
        f.schema = SchemaAccess::Denied;
        f.relay_tables[0].found.as_mut().unwrap().missing_rights = vec!["SELECT".to_owned()];
    });
    assert_eq!(result, CheckResult::Error(Code::DispatchPermissionMissing));
    assert_eq!(fix, "as its owner: GRANT USAGE ON SCHEMA public TO postgres");
    let (missing, fix) = only(|f| {
        f.schema = SchemaAccess::Missing;
        f.relay_tables[0].found = None;
    });
    assert_eq!(missing, CheckResult::Error(Code::DispatchTableMissing));
    assert_eq!(fix, FIX_OF_CODE);
}

#[test]
fn a_database_that_is_not_set_up_is_one_error() {
    let (result, fix) = only(|f| {
        f.server.replication_slots = 0;
        f.relay_tables.iter_mut().for_each(|table| table.found = None);
        f.publication = None;
        f.slot = None;
        f.definition = None;
        f.outbox_tables[0].found = None;
    });
    assert_eq!(result, CheckResult::Error(Code::DispatchTableMissing));
    assert_eq!(fix, FIX_OF_CODE);
}

#[test]
fn a_publication_of_more_than_the_rows_of_outboxes_or_without_inserts_is_an_error() {
    type Change = fn(&mut PublicationState);
    let changes: [(&str, Change); 4] = [
        ("SET (publish = 'insert')", |p| p.publishes.clear()),
        ("another publication FOR TABLE", |p| p.scope = PublicationScope::AllTables),
        ("DROP TABLES IN SCHEMA", |p| {
            p.scope = PublicationScope::Listed { schemas: vec!["public".to_owned()] };
        }),
        ("ADD TABLE", |p| p.tables.clear()),
    ];
    for (expected, change) in changes {
        let (result, fix) = only(|f| change(publication(f)));
        assert_eq!(result, CheckResult::Error(Code::PublicationUnsuitable));
        assert!(fix.contains(expected), "{fix}");
    }
}

#[test]
fn a_publication_of_more_than_inserts_is_a_warning_with_its_fix() {
    let (result, fix) = only(|f| {
        publication(f).publishes.extend([Operation::Update, Operation::Delete]);
    });
    assert_eq!(result, CheckResult::Warning(Code::PublicationUnsuitable));
    assert_eq!(fix, "ALTER PUBLICATION walrelay SET (publish = 'insert')");
}

#[test]
fn a_database_without_an_encoding_is_a_warning() {
    let (result, _) = only(|f| f.server.encoding = "SQL_ASCII".to_owned());
    assert_eq!(result, CheckResult::Warning(Code::DatabaseEncodingUnchecked));
    assert_eq!(found(|f| f.server.encoding = "LATIN1".to_owned()), []);
}

#[test]
fn partitions_need_their_root() {
    let partitioned = |f: &mut Facts| {
        f.outbox_tables[0].found.as_mut().unwrap().kind = RelationKind::Partitioned;
    };
    assert_eq!(found(partitioned), []);
    let (result, _) = only(|f| {
        partitioned(f);
        publication(f).via_root = false;
    });
    assert_eq!(result, CheckResult::Error(Code::PublicationUnsuitable));
}

#[test]
fn a_table_of_the_relay_that_a_crash_would_empty_is_refused() {
    let (result, fix) = only(|f| {
        f.relay_tables[0].found.as_mut().unwrap().kind = RelationKind::Unlogged;
    });
    assert_eq!(result, CheckResult::Error(Code::DispatchTableUnlogged));
    assert!(fix.ends_with("SET LOGGED"), "{fix}");
}

#[test]
fn positions_of_another_server_are_refused() {
    let (result, _) = only(|f| f.server.system_identifier = Some("8".to_owned()));
    assert_eq!(result, CheckResult::Error(Code::PositionsOfAnotherServer));
    assert_eq!(found(|f| f.server.system_identifier = None), []);
}

#[test]
fn a_slot_that_may_have_been_carried_over_is_not_compared_with_positions_of_another_server() {
    let carried_over = |f: &mut Facts| {
        f.server.system_identifier = Some("8".to_owned());
        slot(f).restart_lsn = Some(Lsn::new(3));
    };
    let (result, _) = only(carried_over);
    assert_eq!(result, CheckResult::Error(Code::PositionsOfAnotherServer));
    let another = Code::PositionsOfAnotherServer;
    assert!(message(another, carried_over).contains("pg_upgrade may have carried"));
    let without_slot = |f: &mut Facts| {
        f.server.system_identifier = Some("8".to_owned());
        f.slot = None;
    };
    assert!(!message(another, without_slot).contains("pg_upgrade"));
    let lost = found(without_slot);
    assert!(
        lost.iter().any(|(result, _)| *result == CheckResult::Error(Code::SlotLost)),
        "{lost:?}"
    );
}

#[test]
fn a_release_is_no_loss_on_its_server_and_never_leads_to_giving_rows_up() {
    let with = |stage: ReleaseStage, version: i32| {
        found(|facts| {
            if stage == ReleaseStage::Released {
                facts.slot = None;
                facts.server.replication_slots -= 1;
            }
            facts.relay_row.as_mut().unwrap().operation = Some("release".to_owned());
            let system_identifier = "7".to_owned();
            let release = SlotRelease { system_identifier, version, stage };
            facts.release = Some(ReleaseFacts { release, what: "a release".to_owned() });
        })
    };
    let here = i32::try_from(facts().server.version_num).unwrap();
    let codes = |stage, version| {
        let found = with(stage, version);
        assert!(found.iter().all(|(_, fix)| !fix.contains("discard-rows")), "{found:?}");
        found.into_iter().map(|(result, _)| result).collect::<Vec<_>>()
    };
    let begun = [CheckResult::Error(Code::ReleaseInProgress)];
    assert_eq!(codes(ReleaseStage::Draining, here), begun);
    let prepared = [CheckResult::Error(Code::SlotReleased)];
    assert_eq!(codes(ReleaseStage::Released, here), prepared);
    let happened = [CheckResult::Error(Code::SlotLost)];
    assert_eq!(codes(ReleaseStage::Released, here - 1), happened);
}

#[test]
fn a_slot_that_begins_behind_what_is_on_record_is_another_one() {
    let with = |settled: u64, restart: u64, wal_end: u64| {
        let found = found(|facts| {
            let row = facts.relay_row.as_mut().unwrap();
            (row.lsn, row.wal_end) = (Lsn::new(settled), Some(Lsn::new(wal_end)));
            slot(facts).restart_lsn = Some(Lsn::new(restart));
        });
        found.iter().any(|(result, _)| *result == CheckResult::Error(Code::SlotLost))
    };
    assert!(!with(100, 100, 100), "where it was left");
    assert!(with(100, 101, 200), "a gap");
    assert!(with(101, 50, 100), "the log ends before what was published");
}
