//! Which change may begin beside which unfinished operation.
//!
//! [`conflicts`] is the only place that decides this. A protocol states what it wants, reads the
//! [`Facts`] once, and adds only checks that need a statement of the server.

use pgoutput_parser::Lsn;
use walrelay_outbox_replay::{ReplayReads, SlotOperation, SlotRelease, UnfinishedReplay};
use walrelay_outbox_store::Shard;

/// A change that an operator wants to begin, or to continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted<'a> {
    CreateAnchor,
    /// Gives up the WAL that an anchor retains before this position.
    MoveAnchor {
        name: &'a str,
        to: Lsn,
    },
    /// Moves the slot past rows.
    AdvanceSlot,
    DropSlot,
    RecoverSlot,
    ReleaseSlot,
    ResetSlot,
    ChangeShards,
    /// Begins a replay of the tables, which are those of all shards, to a topic.
    ReplayTables,
    /// Begins a replay of WAL to a topic.
    ReplayWal,
    ReplayInPlace,
    /// Deletes old rows.
    Prune,
}

/// What is under way beside the wanted change.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    pub slots: Vec<SlotFacts>,
    /// The number of shards, if the named slot is none of them.
    pub other_shards: Option<(u32, Shard)>,
    /// The change of the number of shards of this outbox, on whichever of its slots it is on record.
    pub resharding: Option<SlotOperation>,
    /// The unfinished replays of these slots: first those that pause the most keys.
    pub replays: Vec<UnfinishedReplay>,
    /// The server on which the positions of a replay are valid.
    pub system_identifier: String,
}

impl Facts {
    /// Returns whether an operation is on record for one of the slots.
    #[must_use]
    pub(super) fn has_operation(&self) -> bool {
        self.slots.iter().any(|it| it.operation.is_some())
    }

    /// Returns the release of the slot, if one is on record.
    #[must_use]
    pub(super) fn release(&self) -> Option<&SlotRelease> {
        self.slots.iter().find_map(|it| match it.operation.as_ref()? {
            SlotOperation::Release(release) => Some(release),
            SlotOperation::Reset(_) | SlotOperation::Recovery(_) | SlotOperation::Resharding(_) => {
                None
            }
        })
    }
}

/// What is under way on a slot.
#[derive(Debug, Clone, Default)]
pub(super) struct SlotFacts {
    pub slot: String,
    pub operation: Option<SlotOperation>,
    /// Names of the slot's anchors.
    pub anchors: Vec<String>,
}

/// What is in the way of a change.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Conflict<'a> {
    OtherShards {
        count: u32,
        wanted: Shard,
    },
    Operation {
        slot: &'a str,
        operation: &'a SlotOperation,
    },
    /// The number of shards changes, and the slot has no record of that yet.
    Resharding {
        slot: &'a str,
        change: &'a SlotOperation,
    },
    Replay(&'a UnfinishedReplay, ReplayConflict),
    Anchors {
        slot: &'a str,
        names: &'a [String],
    },
}

/// Why an unfinished replay is in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayConflict {
    /// Only the relay of the slot can end its pauses.
    PausesKeys,
    /// It could not continue after the change.
    CouldNotContinue,
    ReadsTables,
    /// It needs the WAL that this anchor retains.
    NeedsAnchor(String),
    /// Its rows would mix with those that the slot sends again.
    HasRows,
}

/// Returns what is in the way of the wanted change, if anything is.
#[must_use]
pub(super) fn conflicts<'f>(wanted: Wanted<'_>, facts: &'f Facts) -> Option<Conflict<'f>> {
    if let Some((count, shard)) = facts.other_shards.filter(|_| wanted.is_of_one_slot()) {
        return Some(Conflict::OtherShards { count, wanted: shard });
    }
    let begun = || facts.slots.iter().filter_map(|it| Some((&it.slot, it.operation.as_ref()?)));
    if let Some((slot, operation)) = begun().find(|(_, it)| !wanted.may_run_beside(it)) {
        return Some(Conflict::Operation { slot, operation });
    }
    // It passed the other rules when it began, and has to be able to end.
    if begun().any(|(_, operation)| wanted.continues(operation)) {
        return None;
    }
    let change = facts.resharding.as_ref().filter(|_| !wanted.may_run_while_resharding());
    if let Some((change, of)) = change.zip(facts.slots.first()) {
        return Some(Conflict::Resharding { slot: &of.slot, change });
    }
    let system = facts.system_identifier.as_str();
    let replay_conflict =
        |it: &'f UnfinishedReplay| Some(Conflict::Replay(it, wanted.replay_conflict(it, system)?));
    // The replay comes before its anchor, because an anchor that it needs cannot be dropped.
    facts.replays.iter().find_map(replay_conflict).or_else(|| {
        let anchored = facts.slots.iter().find(|it| !it.anchors.is_empty());
        let anchored = anchored.filter(|_| wanted == Wanted::ChangeShards)?;
        Some(Conflict::Anchors { slot: &anchored.slot, names: &anchored.anchors })
    })
}

impl Wanted<'_> {
    /// Returns whether the change belongs to one slot, so that the slot has to be one of the shards.
    const fn is_of_one_slot(self) -> bool {
        match self {
            Self::ChangeShards | Self::ReplayTables | Self::Prune => false,
            Self::CreateAnchor
            | Self::MoveAnchor { .. }
            | Self::AdvanceSlot
            | Self::DropSlot
            | Self::RecoverSlot
            | Self::ReleaseSlot
            | Self::ResetSlot
            | Self::ReplayWal
            | Self::ReplayInPlace => true,
        }
    }

    /// Returns whether this operation on the slot is no obstacle.
    const fn may_run_beside(self, operation: &SlotOperation) -> bool {
        use SlotOperation as O;
        match self {
            // It finishes any operation on record, but only the change of the shards sees all slots.
            Self::RecoverSlot => !matches!(operation, O::Resharding(_)),
            Self::ReleaseSlot => matches!(operation, O::Release(_)),
            Self::ResetSlot => matches!(operation, O::Reset(_)),
            Self::ChangeShards => matches!(operation, O::Resharding(_)),
            // They read anchors or tables, and not the slot.
            Self::ReplayTables | Self::ReplayWal => true,
            // A recovery reads rows below the settled horizon.
            Self::Prune => !matches!(operation, O::Recovery(_)),
            Self::CreateAnchor
            | Self::MoveAnchor { .. }
            | Self::AdvanceSlot
            | Self::DropSlot
            | Self::ReplayInPlace => false,
        }
    }

    /// Returns whether the command continues this operation. A change of the shards checks
    /// everything again, because it can be cancelled until it switches.
    const fn continues(self, operation: &SlotOperation) -> bool {
        matches!(self, Self::RecoverSlot | Self::ReleaseSlot | Self::ResetSlot)
            && self.may_run_beside(operation)
    }

    /// Returns whether the number of shards can still change beside this. The change drops the old
    /// slots, and needs them unchanged before it is on record for them.
    const fn may_run_while_resharding(self) -> bool {
        match self {
            // They remove what is in the way of the change, or do not touch the slots.
            Self::MoveAnchor { .. } | Self::RecoverSlot | Self::ChangeShards | Self::Prune => true,
            Self::CreateAnchor
            | Self::AdvanceSlot
            | Self::DropSlot
            | Self::ReleaseSlot
            | Self::ResetSlot
            | Self::ReplayTables
            | Self::ReplayWal
            | Self::ReplayInPlace => false,
        }
    }

    fn replay_conflict(self, replay: &UnfinishedReplay, system: &str) -> Option<ReplayConflict> {
        let pauses = (replay.keys > 0).then_some(ReplayConflict::PausesKeys);
        match self {
            Self::DropSlot => pauses,
            Self::ResetSlot => pauses.or((replay.rows > 0).then_some(ReplayConflict::HasRows)),
            Self::ReleaseSlot | Self::ChangeShards => {
                replay.needs_its_slot().then_some(ReplayConflict::CouldNotContinue)
            }
            Self::MoveAnchor { name, to } => {
                let needs = matches!(replay.reads(), Some(ReplayReads::Anchor(it))
                    if it.name == name && it.system_identifier == system && it.from < to);
                needs.then(|| ReplayConflict::NeedsAnchor(name.to_owned()))
            }
            Self::Prune => {
                let reads = replay.reads() == Some(&ReplayReads::Tables);
                pauses.or(reads.then_some(ReplayConflict::ReadsTables))
            }
            Self::CreateAnchor
            | Self::AdvanceSlot
            | Self::RecoverSlot
            | Self::ReplayTables
            | Self::ReplayWal
            | Self::ReplayInPlace => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use walrelay_outbox_replay::{
        Again, AnchorReads, ReleaseStage, Reset, Resharding, SettledBound, SlotRecovery,
    };
    use walrelay_pg_replication::Failover;

    use super::*;

    const ANCHOR: &str = "daily";

    fn wanted() -> [(&'static str, Wanted<'static>); 12] {
        [
            ("anchor create", Wanted::CreateAnchor),
            ("anchor advance, drop", Wanted::MoveAnchor { name: ANCHOR, to: Lsn::new(2) }),
            ("advance", Wanted::AdvanceSlot),
            ("drop", Wanted::DropSlot),
            ("recover", Wanted::RecoverSlot),
            ("release", Wanted::ReleaseSlot),
            ("reset", Wanted::ResetSlot),
            ("reshard", Wanted::ChangeShards),
            ("replay tables", Wanted::ReplayTables),
            ("replay WAL", Wanted::ReplayWal),
            ("replay in place", Wanted::ReplayInPlace),
            ("prune", Wanted::Prune),
        ]
    }

    fn recovery() -> SlotOperation {
        SlotOperation::Recovery(SlotRecovery {
            id: "r".to_owned(),
            failover: Failover::No,
            bound: SettledBound::Horizon,
            unpublished_where: None,
            parts: Vec::new(),
            settled_snapshot: None,
        })
    }

    fn release(stage: ReleaseStage) -> SlotOperation {
        SlotOperation::Release(SlotRelease {
            system_identifier: "s".to_owned(),
            version: 17,
            stage,
        })
    }

    fn resharding() -> SlotOperation {
        SlotOperation::Resharding(Resharding { from: 1, to: 2 })
    }

    fn of_slot() -> Facts {
        Facts { slots: vec![SlotFacts::default()], ..Facts::default() }
    }

    fn on_slot(operation: SlotOperation) -> Facts {
        let slot = SlotFacts { operation: Some(operation), ..SlotFacts::default() };
        Facts { slots: vec![slot], ..Facts::default() }
    }

    fn replay(topic: Option<&str>, source: Option<ReplayReads>, keys: u64) -> UnfinishedReplay {
        UnfinishedReplay {
            id: "p".to_owned(),
            slot: "walrelay".to_owned(),
            source,
            topic: topic.map(ToOwned::to_owned),
            keys,
            rows: 0,
            is_being_done: false,
        }
    }

    fn wal(from: u64) -> ReplayReads {
        ReplayReads::Anchor(AnchorReads {
            name: ANCHOR.to_owned(),
            system_identifier: "s".to_owned(),
            from: Lsn::new(from),
        })
    }

    fn facts() -> Vec<(&'static str, Facts)> {
        let reset = SlotOperation::Reset(Reset {
            anchor_slot: "walrelay_anchor_daily".to_owned(),
            target: Lsn::new(1),
            failover: Failover::No,
            again: Again::Published,
        });
        let beside = |replay| Facts {
            replays: vec![replay],
            system_identifier: "s".to_owned(),
            ..Facts::default()
        };
        let anchored = SlotFacts { anchors: vec![ANCHOR.to_owned()], ..SlotFacts::default() };
        let queued = UnfinishedReplay { rows: 5, ..replay(None, Some(wal(1)), 0) };
        let left = UnfinishedReplay { rows: 5, ..replay(None, None, 0) };
        vec![
            ("nothing", Facts::default()),
            ("other shards", Facts { other_shards: Some((2, Shard::WHOLE)), ..Facts::default() }),
            ("reset", on_slot(reset)),
            ("recovery", on_slot(recovery())),
            ("draining", on_slot(release(ReleaseStage::Draining))),
            ("released", on_slot(release(ReleaseStage::Released))),
            ("resharded", on_slot(resharding())),
            ("resharding beside", Facts { resharding: Some(resharding()), ..of_slot() }),
            ("tables to topic", beside(replay(Some("t"), Some(ReplayReads::Tables), 0))),
            ("WAL to topic", beside(replay(Some("t"), Some(wal(1)), 0))),
            ("WAL to topic, past it", beside(replay(Some("t"), Some(wal(2)), 0))),
            ("in place, pausing", beside(replay(None, Some(wal(1)), 3))),
            ("in place, publishing", beside(queued)),
            ("in place, cancelled", beside(left)),
            ("anchor", Facts { slots: vec![anchored], ..Facts::default() }),
        ]
    }

    fn sign(conflict: Option<Conflict<'_>>) -> char {
        match conflict {
            None => '.',
            Some(Conflict::OtherShards { .. }) => 'S',
            Some(Conflict::Operation { .. }) => 'O',
            Some(Conflict::Resharding { .. }) => 'C',
            Some(Conflict::Anchors { .. }) => 'A',
            Some(Conflict::Replay(_, why)) => match why {
                ReplayConflict::PausesKeys => 'k',
                ReplayConflict::CouldNotContinue => 'c',
                ReplayConflict::ReadsTables => 't',
                ReplayConflict::NeedsAnchor(_) => 'a',
                ReplayConflict::HasRows => 'r',
            },
        }
    }

    /// Each fact against each command, in the order of [`wanted`].
    const TABLE: &str = "
nothing               ............
other shards          SSSSSSS..SS.
reset                 OOOO.O.O..O.
recovery              OOOO.OOO..OO
draining              OOOO..OO..O.
released              OOOO..OO..O.
resharded             OOOOOOO...O.
resharding beside     C.CC.CC.CCC.
tables to topic       .....c.c...t
WAL to topic          .a...c.c....
WAL to topic, past it .....c.c....
in place, pausing     .a.k.ckc...k
in place, publishing  ......r.....
in place, cancelled   ......r.....
anchor                .......A....
";

    #[test]
    fn each_command_is_decided_against_each_operation_and_each_replay() {
        let line = |(name, facts): (&str, Facts)| {
            let signs = wanted().map(|(_, wanted)| sign(conflicts(wanted, &facts)));
            format!("{name:<21} {}\n", signs.iter().collect::<String>())
        };
        let table: String = facts().into_iter().map(line).collect();
        assert_eq!(format!("\n{table}"), TABLE);
    }

    #[test]
    fn a_command_that_continues_its_own_operation_is_not_stopped_by_what_came_later() {
        let pausing = replay(None, Some(wal(1)), 3);
        for (operation, wanted) in [
            (release(ReleaseStage::Draining), Wanted::ReleaseSlot),
            (recovery(), Wanted::RecoverSlot),
        ] {
            let (replays, resharding) = (vec![pausing.clone()], Some(resharding()));
            let facts = Facts { replays, resharding, ..on_slot(operation) };
            assert_eq!(conflicts(wanted, &facts), None);
        }
        let again = Facts { replays: vec![pausing], ..on_slot(resharding()) };
        assert!(conflicts(Wanted::ChangeShards, &again).is_some(), "it can still be cancelled");
    }

    #[test]
    fn a_replay_of_another_server_needs_no_anchor_here() {
        let replays = vec![replay(Some("t"), Some(wal(1)), 0)];
        let facts = Facts { replays, system_identifier: "other".to_owned(), ..Facts::default() };
        let wanted = Wanted::MoveAnchor { name: ANCHOR, to: Lsn::new(u64::MAX) };
        assert_eq!(conflicts(wanted, &facts), None);
    }
}
