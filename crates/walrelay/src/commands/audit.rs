//! `walrelay audit`: checks that every published event is in each consumer's inbox.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde_json::{Value, json};
use walrelay_inbox::Messages;
use walrelay_inbox::operator::audit::{
    AuditTarget, AuditedTable, Findings, Scope, audit, count_in_dispatch, settled_by,
};
use walrelay_pg_client::{SqlClient, connect_sql};
use walrelay_pubsub::Subscriber;
use walrelay_relay::observe::report::rfc3339;

use super::shared::columns::column_of;
use super::shared::preconditions::{every_shard, refuse_unrecorded, refuse_without_outbox};
use super::trace::open_inboxes;
use crate::config::{AuditConfig, OutputFormat};
use crate::error::Error;
use crate::output::{print, visible};

/// Number of missing events that the text report lists, and the JSON report, without `--all`.
const NAMED: usize = 20;
const LISTED: usize = 1_000;

/// Compares outbox and inboxes, and prints the findings.
///
/// # Errors
///
/// A database cannot be reached or refuses, no row is known to be settled, or an event is missing.
pub async fn execute(config: AuditConfig) -> Result<(), Error> {
    execute_plainly(config).await.map_err(Error::for_read_only_command)
}

async fn execute_plainly(config: AuditConfig) -> Result<(), Error> {
    let outbox = connect_sql(&config.database.connect).await?;
    refuse_without_outbox(&outbox, &config.database.outbox).await?;
    let scope = scope(&outbox, &config).await?;
    let count_in_dispatch = count_in_dispatch(&outbox, &scope).await?;
    let mut reports: Vec<(String, Findings)> = Vec::new();
    if let Some((subscription, endpoint)) = &config.subscription {
        let messages = Messages::read(&Subscriber::connect(endpoint)?, subscription).await?;
        let findings = audit(&outbox, AuditTarget::Subscription(&messages), &scope).await?;
        reports.push((subscription.clone(), findings));
    } else {
        let inboxes = open_inboxes(&outbox, &config.inboxes).await?;
        if inboxes.is_empty() {
            return Err(Error::Unfit {
                what: "the outbox's database has no consumer, and nothing is proved without one"
                    .to_owned(),
                hint: "name each consumer and its database: --inbox NAME=postgresql://..., or, of consumers without an \
                       inbox, a subscription that nobody else reads: --subscription S",
            });
        }
        for inbox in inboxes {
            let against = AuditTarget::Inbox(inbox.client(&outbox), &inbox.consumer);
            reports
                .push((inbox.consumer.name().to_owned(), audit(&outbox, against, &scope).await?));
            inbox.close().await;
        }
    }
    outbox.close().await;
    print(&match config.format {
        OutputFormat::Json => format!("{:#}\n", as_json(&reports, &count_in_dispatch)),
        OutputFormat::Text => {
            as_text(&reports, &count_in_dispatch, if config.all { usize::MAX } else { NAMED })
        }
    })?;
    let lacking = reports.iter().filter(|(_, findings)| findings.missing_count > 0);
    let lacking =
        lacking.map(|(name, its)| format!("{} lacks {}", visible(name), its.missing_count));
    match lacking.collect::<Vec<_>>().as_slice() {
        [] => Ok(()),
        lacking => Err(Error::Missing { lacking: lacking.join(", ") }),
    }
}

async fn scope(outbox: &SqlClient, config: &AuditConfig) -> Result<Scope, Error> {
    let shards = every_shard(outbox, &config.database.outbox).await?;
    for shard in &shards {
        refuse_unrecorded(outbox, &shard.slot).await?;
    }
    let mut tables = Vec::new();
    for table in &config.database.outbox.tables {
        let id = column_of(outbox, table, &config.id).await?;
        let occurred_at = column_of(outbox, table, &config.occurred_at).await?;
        let aggregate_type = match &config.aggregate_type {
            Some(names) => Some(column_of(outbox, table, names).await?),
            None => None,
        };
        tables.push(AuditedTable::new(table.clone(), &id, &occurred_at, aggregate_type.as_deref()));
    }
    let slots: Vec<String> = shards.into_iter().map(|shard| shard.slot).collect();
    Ok(Scope {
        settled_by: settled_by(outbox, &slots).await?,
        slots,
        tables,
        since: config.since,
        until: SystemTime::now().checked_sub(config.grace).unwrap_or(SystemTime::UNIX_EPOCH),
        aggregate_types: config.aggregate_types.clone(),
        listed: if config.all { usize::MAX } else { LISTED },
    })
}

fn as_json(reports: &[(String, Findings)], count_in_dispatch: &BTreeMap<String, i64>) -> Value {
    let consumers = reports.iter().map(|(name, findings)| {
        let missing = findings.missing.iter();
        let missing =
            missing.map(|(id, at)| json!({ "event_id": id, "occurred_at": rfc3339(*at) }));
        json!({
            "consumer": name,
            "rows": findings.rows,
            "left_out": findings.left_out,
            "since": findings.since.map(rfc3339),
            "missing": findings.missing_count,
            "first_seen": findings.first_seen.map(rfc3339),
            "missing_events": missing.collect::<Vec<_>>(),
            "inbox": findings.inbox,
        })
    });
    json!({ "consumers": consumers.collect::<Vec<_>>(), "held_back": count_in_dispatch })
}

fn as_text(
    reports: &[(String, Findings)],
    count_in_dispatch: &BTreeMap<String, i64>,
    named: usize,
) -> String {
    let mut text = String::new();
    for (name, findings) in reports {
        let since = findings.since.map(|at| format!(" since {}", rfc3339(at))).unwrap_or_default();
        let verdict = match findings.missing_count {
            0 => "all are there".to_owned(),
            missing => format!("{missing} are MISSING"),
        };
        text.push_str(&format!(
            "{}: {} settled event(s){since}, {verdict}\n",
            visible(name),
            findings.rows
        ));
        text.push_str(&counted("  there", &findings.inbox));
        if findings.left_out > 0 {
            text.push_str(&format!(
                "  left out: {} row(s) that are not settled yet, or younger than --grace\n",
                findings.left_out
            ));
        }
        for (id, at) in findings.missing.iter().take(named) {
            text.push_str(&format!("  missing: {}, occurred at {}\n", visible(id), rfc3339(*at)));
        }
        let others = findings.missing_count.saturating_sub(named as u64);
        if others > 0 {
            text.push_str(&format!("  and {others} others: --all names them\n"));
        }
        if let Some(first) = findings.first_seen.filter(|_| findings.is_younger()) {
            let first = rfc3339(first);
            text.push_str(&format!(
                "  all of them occurred before the first event that it has: if it was set up then, --from-time {first} \
                 leaves out what it never was to have\n"
            ));
        }
    }
    text.push_str(&counted("held back by the relay, in no inbox", count_in_dispatch));
    text
}

fn counted(what: &str, counts: &BTreeMap<String, i64>) -> String {
    if counts.is_empty() {
        return String::new();
    }
    let counts: Vec<_> = counts.iter().map(|(status, count)| format!("{count} {status}")).collect();
    format!("{what}: {}\n", counts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_counted_and_the_first_are_named() {
        let missing = (0..30).map(|n| (format!("e-{n}"), SystemTime::UNIX_EPOCH)).collect();
        let inbox = BTreeMap::from([("done".to_owned(), 70), ("dead".to_owned(), 2)]);
        let findings = Findings {
            rows: 100,
            missing,
            missing_count: 30,
            inbox,
            left_out: 2,
            ..Findings::default()
        };
        let reports = [("ledger".to_owned(), findings)];
        let text = as_text(&reports, &BTreeMap::new(), NAMED);
        assert!(text.starts_with("ledger: 100 settled event(s), 30 are MISSING\n"), "{text}");
        assert!(text.contains("there: 2 dead, 70 done\n"), "{text}");
        assert_eq!(text.matches("missing: ").count(), NAMED, "{text}");
        assert!(text.contains("and 10 others: --all names them\n"), "{text}");

        let all = as_text(&reports, &BTreeMap::new(), usize::MAX);
        assert_eq!(all.matches("missing: ").count(), 30, "{all}");
        assert!(!all.contains("others"), "{all}");
    }
}
