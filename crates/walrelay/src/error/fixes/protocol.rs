//! The next step after a protocol's refusal, with the names of the case. Protocols return data, and
//! only this program names commands and options.

use walrelay_errors::Coded as _;
use walrelay_outbox_admin::ReshardingRefusal;
use walrelay_outbox_admin::protocols::{ProtocolError, ReplayConflict, SkippedRows};
use walrelay_outbox_replay::{ReleaseStage, Resharding, SlotOperation};

/// Returns the fix of this case. `None` if the fix of the error's code is enough.
pub(crate) fn fix_of(error: &ProtocolError) -> Option<String> {
    use ProtocolError as E;
    Some(match error {
        E::Operator(error) => return error.fix(),
        E::Archive(error) => return error.fix(),
        E::ReplayInTheWay { replay, why: ReplayConflict::HasRows } => format!(
            "let the relay publish them, or cancel the replay: `walrelay replay cancel {}`",
            replay.id
        ),
        E::ReplayInTheWay { replay, .. } => unfinished_replay(&replay.id),
        E::UnpublishedColumnMissing { .. } | E::UnpublishedColumnNeverNull { .. } => {
            "name the column that the other publisher sets when it has published a row: --unpublished-column"
                .to_owned()
        }
        E::ConditionRefused { .. } => "correct --unpublished-where: a condition on columns of each outbox table, with constants and \
             immutable functions, as in 'status <> 2'; it has no subquery, no other table, and nothing that changes with \
             time, such as now()"
            .to_owned(),
        E::Reshard(refusal) => reshard(*refusal).to_owned(),
        E::DropLosesRows { rows, .. } => format!(
            "start the relay to publish them first, or accept the loss: `walrelay slot drop --discard-rows {rows}`"
        ),
        E::RecordLosesRows { slot, rows } => format!(
            "if a relay uses the slot, run `walrelay slot recover --slot {slot}`, which publishes them. If none does, \
             delete the record with --discard-rows {rows}"
        ),
        E::SkippedRowsDiffer { skipped, .. } => skipped_rows(skipped),
        E::TargetPastSettled { .. } => "name an earlier place, or none".to_owned(),
        E::SlotUnrecorded { .. }
        | E::TimeUnknown { .. }
        | E::ResetCancelled { .. }
        | E::ReshardRunning
        | E::UnsendableRowBefore { .. }
        | E::TargetOutOfRange { .. }
        | E::TargetPastWal { .. }
        | E::AnchorExists { .. }
        | E::AnchorAhead { .. }
        | E::SlotAhead { .. }
        | E::TargetPastSlot { .. }
        | E::SlotExists { .. }
        | E::TopicTemplate { .. } => fixed_text(error)?.to_owned(),
        E::AnchorsInTheWay { names, .. } => {
            let drops: Vec<String> =
                names.iter().map(|name| format!("`walrelay anchor drop {name}`")).collect();
            format!("run {}; stop a relay with --anchor-keep first", drops.join(", "))
        }
        E::AttributeColumnMissing { .. } => {
            "add the column to each outbox table, or correct --attribute-columns".to_owned()
        }
        E::EarlierRows { .. } => "to publish them, run `walrelay init --backfill`; if they need no publishing, run \
             `walrelay init --skip-existing-rows`"
            .to_owned(),
        E::Admin(_)
        | E::Relay(_)
        | E::Postgres(_)
        | E::PubSub(_)
        | E::Interrupted
        | E::WalLevel { .. }
        | E::NoOutbox { .. }
        | E::PublicationMissing { .. }
        | E::TopicMissing { .. }
        | E::PruneDenied { .. } => return None,
    })
}

/// Returns the fix of a refusal whose fix names nothing of the case.
#[expect(clippy::wildcard_enum_match_arm, reason = "the caller matches every other variant")]
fn fixed_text(error: &ProtocolError) -> Option<&'static str> {
    use ProtocolError as E;
    Some(match error {
        E::SlotUnrecorded { .. } => "let `walrelay run` record it first, or correct --slot",
        E::TimeUnknown { .. } => {
            "name a later time, or a position with its LSN; for older rows start from an anchor (`walrelay anchor \
             list`), or publish them from the table (`walrelay replay start --source table --from-time`)"
        }
        E::ResetCancelled { .. } => {
            "start the relay, which continues as before; `walrelay anchor list` shows which anchors there are"
        }
        E::ReshardRunning => "wait until it is done",
        E::UnsendableRowBefore { .. } => {
            "skip that transaction alone first: name its position with `walrelay slot advance --to-lsn`"
        }
        E::TargetOutOfRange { .. } => {
            "name a place in between, or an anchor that reaches farther back"
        }
        E::TargetPastWal { .. } => "name a position of a row that the slot is to skip",
        E::AnchorExists { .. } => {
            "choose another name, or move it with `walrelay anchor advance NAME`"
        }
        E::AnchorAhead { .. } | E::SlotAhead { .. } => {
            "slots never go back: name a later position; to publish rows again, run `walrelay replay start`"
        }
        E::TargetPastSlot { .. } => {
            "an anchor stays behind its slot: name an earlier place, or none"
        }
        E::SlotExists { .. } => {
            "`walrelay replay start --source table --to-topic TOPIC` publishes rows of the table to another topic"
        }
        E::TopicTemplate { .. } => "start another replay with another --to-topic",
        _ => return None,
    })
}

/// Returns the command that finishes an operation on the slot.
pub(crate) fn finishing_command(operation: &SlotOperation) -> String {
    match operation {
        SlotOperation::Reset(_) | SlotOperation::Recovery(_) => "walrelay run".to_owned(),
        SlotOperation::Release(release) => match release.stage {
            ReleaseStage::Draining => "walrelay slot release".to_owned(),
            ReleaseStage::Released => "walrelay slot recover".to_owned(),
        },
        SlotOperation::Resharding(Resharding { to, .. }) => {
            format!("walrelay reshard --shards {to}")
        }
    }
}

/// Returns the commands that end an unfinished replay.
pub(crate) fn unfinished_replay(id: &str) -> String {
    format!(
        "let it finish (`walrelay replay resume {id}`), or cancel it: `walrelay replay cancel {id}`"
    )
}

const fn reshard(refusal: ReshardingRefusal) -> &'static str {
    match refusal {
        ReshardingRefusal::NotSetUp => {
            "correct --slot, or set it up: `walrelay init`, with --shards where it is to be divided"
        }
        ReshardingRefusal::SeveralNumbers(..) => {
            "walrelay did not make them so: `walrelay check` shows them; remove those that no relay has used"
        }
        ReshardingRefusal::Incomplete { .. } => {
            "`walrelay init` with the number that there is makes what is missing; a slot that was lost is \
             recovered first: `walrelay slot recover`"
        }
        ReshardingRefusal::AnotherBegun(_) => {
            "finish it with its new number; before the switch, the old number cancels it"
        }
    }
}

fn skipped_rows(skipped: &SkippedRows) -> String {
    let rows = skipped.inserts;
    match (rows, skipped.are_sendable()) {
        (0, _) => "leave --discard-rows out".to_owned(),
        (_, true) => format!(
            "start the relay to publish them first, or name an earlier position; --discard-rows {rows} accepts that they \
             are skipped, and they can then be published from the table"
        ),
        // The relay stops at a row that the server cannot send, so it cannot publish these rows
        // first.
        (_, false) => format!(
            "the relay cannot pass a row that the server cannot send: --discard-rows {rows} accepts that these rows are \
             skipped; those that the server can send can then be published from the table"
        ),
    }
}
