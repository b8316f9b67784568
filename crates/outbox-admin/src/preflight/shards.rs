//! Findings about shards: their number, and whether each row is on exactly one shard.

use walrelay_errors::Code;
use walrelay_outbox_replay::describe_shards;
use walrelay_outbox_store::Outbox;
use walrelay_pg_client::quote_identifier;

use super::facts::Facts;
use super::finding::{FIX_OF_CODE, Findings};
use super::request::PreflightRequest;

/// The fix for an ordering key that does not fit the shards.
const FORMER_KEY: &str = "configure the ordering key that the shards were made for";

/// Returns whether the outbox has another number of shards, and none of this number.
pub(super) fn is_of_another_number(request: &PreflightRequest, facts: &Facts) -> bool {
    let count = request.outbox.shard.count();
    let is_ours = facts.slot.is_some() || facts.relay_row.is_some();
    !is_ours && facts.sharding.other_than(count).is_some()
}

/// Checks the number first. With another number, everything else is missing because of it.
pub(super) fn shard_findings(findings: &mut Findings, request: &PreflightRequest, facts: &Facts) {
    let shard = request.outbox.shard;
    let subject = match shard.is_whole() {
        true => "shards".to_owned(),
        false => format!("shard {shard}"),
    };
    let start = findings.len();
    if let Some(count) = facts.sharding.other_than(shard.count()) {
        let is_another = is_of_another_number(request, facts);
        let message = match is_another {
            true => format!(
                "the outbox has {} here, and this is not one of them",
                describe_shards(count)
            ),
            false => format!("there are also slots or records of {}", describe_shards(count)),
        };
        match is_another {
            true => findings.error(Code::ShardsDiffer, &subject, message, FIX_OF_CODE),
            false => findings.warning(Code::ShardsDiffer, &subject, message, FIX_OF_CODE),
        }
    }
    if !shard.is_whole() && !is_of_another_number(request, facts) {
        key_findings(findings, &subject, request, facts);
        if findings.is_fine_since(start) {
            let message = "has the rows that the ordering key gives it, and no others";
            findings.ok("shards", &subject, message);
        }
    }
}

/// Checks that the filter of each table follows from the ordering key. With another filter, rows
/// would be on no shard, or rows of one key on several.
fn key_findings(findings: &mut Findings, subject: &str, request: &PreflightRequest, facts: &Facts) {
    if request.shard_key.is_none() {
        findings.error(
            Code::ShardsDiffer,
            subject,
            "the ordering key names no column: all rows have one key, and would be on one shard",
            FORMER_KEY,
        );
        return;
    }
    let Some(publication) = &facts.publication else { return };
    let Outbox { tables, .. } = &request.outbox;
    for (table, expected) in tables.iter().zip(&facts.filters) {
        let Some(published) = publication.listed(table) else { continue };
        let Some(expected) = expected else {
            findings.error(
                Code::ShardsDiffer,
                subject,
                format!("rows of {table} cannot be divided by the ordering key: it lacks a column of it, or one is of a type that no row filter takes"),
                FORMER_KEY,
            );
            continue;
        };
        if published.row_filter.as_ref() == Some(expected) {
            continue;
        }
        let has = published
            .row_filter
            .as_deref()
            .map_or("no filter".to_owned(), |it| format!("the filter {it}"));
        let name = quote_identifier(&publication.name);
        findings.error(
            Code::ShardsDiffer,
            subject,
            format!("publication {name} has {has} on {table}, and the ordering key needs {expected}: rows would be on no shard, or those of a key on several"),
            format!(
                "if the ordering key was changed, restore it; if the publication was changed, run ALTER PUBLICATION {name} \
                 SET TABLE … WHERE …, and check for rows that were inserted meanwhile"
            ),
        );
    }
}
