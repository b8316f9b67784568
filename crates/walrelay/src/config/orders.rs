//! What is to be published again: plain data, checked by whoever built it.

use std::time::SystemTime;

use pgoutput_parser::Lsn;
use walrelay_core::{ColumnNames, Matching};
use walrelay_outbox_admin::Again;
use walrelay_relay::replay::{DeadRows, Destination, Keeping, Rate};
use walrelay_relay::settings::Settings;

/// How a lost slot is recovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoverOrder {
    /// Takes the place of what is on record.
    pub since: Option<SystemTime>,
    /// Which column is what.
    pub columns: Box<ColumnNames>,
}

/// How far a slot is advanced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdvanceOrder {
    /// A position of the transaction.
    pub to: Lsn,
    /// How many rows are given up by it.
    pub discard_rows: u64,
    /// Which column is what.
    pub columns: Box<ColumnNames>,
}

/// What a slot is reset to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetOrder {
    /// The anchor.
    pub anchor: String,
    /// Where the stream starts; where the anchor stands without it.
    pub to: Option<Place>,
    /// Which rows of dispatch state are published again too.
    pub again: Again,
    /// Whether rows may be skipped.
    pub skipping: Skipping,
    /// How many rows are given up by it.
    pub discard_rows: u64,
    /// Which column is what.
    pub columns: Box<ColumnNames>,
}

/// Whether rows may be skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skipping {
    /// Not without a word.
    Refused,
    /// By `--skip-events`.
    Agreed,
}

/// A place in the log, as operators name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A position.
    Lsn(Lsn),
    /// A moment.
    Time(SystemTime),
}

/// Everything `walrelay replay` needs.
#[derive(Debug, Clone)]
pub struct ReplayConfig {
    /// The relay's own settings, as far as a replay shares them.
    pub settings: Settings,
    /// What to do.
    pub action: ReplayAction,
}

/// What to replay.
#[derive(Debug, Clone)]
pub enum ReplayAction {
    /// Something new.
    Begin(ReplayOrder),
    /// The rest of one that was interrupted.
    Resume {
        /// Its id.
        id: String,
        /// What becomes from then on of rows that Pub/Sub would never take, where that is said anew.
        dead_rows: Option<DeadRows>,
    },
    /// Give one up that is in place.
    Abandon {
        /// Its id.
        id: String,
    },
}

/// A new replay.
#[derive(Debug, Clone)]
pub struct ReplayOrder {
    /// Whose log; the nearest one that reaches back far enough without it.
    pub anchor: Option<String>,
    /// Where it begins; where the anchor stands without it.
    pub from: Option<Place>,
    /// Where it ends; at the end of the log without it.
    pub to: Option<Place>,
    /// Which rows.
    pub matching: Matching,
    /// Where it publishes.
    pub destination: Destination,
    /// How fast.
    pub rate: Option<Rate>,
    /// What becomes of rows that Pub/Sub would never take.
    pub dead_rows: DeadRows,
    /// Whether anything is published and written down.
    pub keeping: Keeping,
}

/// Everything `walrelay backfill` needs.
#[derive(Debug, Clone)]
pub struct BackfillConfig {
    /// The relay's own settings, as far as a backfill shares them.
    pub settings: Settings,
    /// What to do.
    pub action: BackfillAction,
}

/// What to backfill.
#[derive(Debug, Clone)]
pub enum BackfillAction {
    /// Something new.
    Begin(BackfillOrder),
    /// The rest of one that was interrupted.
    Resume {
        /// Its id.
        id: String,
        /// What becomes from then on of rows that Pub/Sub would never take, where that is said anew.
        dead_rows: Option<DeadRows>,
    },
    /// Give one up that is in place.
    Abandon {
        /// Its id.
        id: String,
    },
}

/// A new backfill.
#[derive(Debug, Clone)]
pub struct BackfillOrder {
    /// Events of this moment or later.
    pub since: Option<SystemTime>,
    /// Which rows.
    pub matching: Matching,
    /// Rows with these event ids; all where none is named.
    pub event_ids: Vec<String>,
    /// Where it publishes.
    pub destination: Destination,
    /// Columns that give the order within an aggregate.
    pub order_by: Vec<String>,
    /// How fast.
    pub rate: Option<Rate>,
    /// What becomes of rows that Pub/Sub would never take.
    pub dead_rows: DeadRows,
    /// Whether anything is published and written down.
    pub keeping: Keeping,
}
