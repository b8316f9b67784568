//! The rows of a run: their tables, keys and payloads, and how they are committed.

use walrelay_testkit::seed::Seed;
use walrelay_testkit::walsender::{Log, OpenTransaction, OutboxTable, RowRecord};

use crate::harness::Harness;
use crate::judge::Row;
use crate::plan::{RowKind, RowSpec};
use crate::world::{InboxDatabase, locked};

pub(crate) const TABLE: OutboxTable = OutboxTable {
    relation_id: 16_400,
    schema: "public",
    name: "app_outbox",
    columns: &[
        ("id", 25),
        ("aggregatetype", 25),
        ("aggregateid", 25),
        ("event_type", 25),
        ("version", 20),
        ("schema_version", 23),
        ("payload", 3_802),
        ("headers", 3_802),
        ("occurred_at", 1_184),
    ],
};

impl<F: Harness> InboxDatabase<F> {
    pub(crate) fn commit_rows(&self, specs: &[RowSpec]) {
        let mut transaction = self.server.write(Log::begin);
        let rows: Vec<_> = specs.iter().map(|spec| self.row_of(*spec)).collect();
        for row in &rows {
            let columns = columns(row);
            self.server.write(|log| log.insert(&mut transaction, columns, RowRecord::Own));
        }
        self.seal(transaction, rows);
    }

    pub(crate) fn names(&self, seed: &mut Seed) -> RowPlanNames {
        let topic = topic_name(seed.between(1, self.plan.rows.topics));
        RowPlanNames { topic, key: format!("k{}", seed.between(1, self.plan.rows.keys)) }
    }

    /// Returns the chosen key of the first topic, or a random key.
    pub(crate) fn named_or_drawn(&self, key: Option<u64>, seed: &mut Seed) -> RowPlanNames {
        match key {
            Some(key) => RowPlanNames { topic: topic_name(1), key: format!("k{key}") },
            None => self.names(seed),
        }
    }

    /// Commits one transaction with rows of one key.
    pub(crate) fn commit_run(&self, names: &RowPlanNames, count: usize, kind: RowKind) {
        let mut transaction = self.server.write(Log::begin);
        let new_row = |_| self.new_row(names.topic.clone(), names.key.clone(), kind, 10);
        let rows: Vec<_> = (0..count).map(new_row).collect();
        for row in &rows {
            let columns = columns(row);
            self.server.write(|log| log.insert(&mut transaction, columns, RowRecord::Own));
        }
        self.seal(transaction, rows);
    }

    /// Writes interleaved transactions. They commit in random order, and some are rolled back.
    pub(crate) fn commit(&self, row_counts: &[usize], seed: &mut Seed) {
        let mut left = row_counts.to_vec();
        let mut open: Vec<_> =
            row_counts.iter().map(|_| (self.server.write(Log::begin), Vec::new())).collect();
        while left.iter().any(|count| *count > 0) {
            let index = seed.count(0, left.len() - 1);
            if left[index] == 0 {
                continue;
            }
            left[index] -= 1;
            let row = self.row(seed);
            let record = if seed.chance(200) { RowRecord::Shared } else { RowRecord::Own };
            let (transaction, rows) = &mut open[index];
            self.server.write(|log| log.insert(transaction, columns(&row), record));
            rows.push(row);
        }
        while !open.is_empty() {
            let (transaction, rows) = open.swap_remove(seed.count(0, open.len() - 1));
            if seed.chance(100) {
                self.server.write(|log| log.roll_back(transaction));
                continue;
            }
            self.seal(transaction, rows);
        }
    }

    /// Commits the transaction, and reports its rows to the judge.
    fn seal(&self, transaction: OpenTransaction, mut rows: Vec<Row>) {
        let (commit_lsn, end_lsn) = self.server.write(|log| log.commit(transaction));
        for (row, tx_index) in rows.iter_mut().zip(0..) {
            (row.commit_lsn, row.end_lsn, row.tx_index) = (commit_lsn, end_lsn, tx_index);
        }
        self.judge.committed(rows);
    }

    fn row(&self, seed: &mut Seed) -> Row {
        let RowPlanNames { topic, mut key } = self.names(seed);
        let plan = self.plan.rows;
        if seed.chance(plan.unkeyed_per_mille) {
            key.clear();
        }
        let kind =
            match (seed.chance(plan.poison_per_mille), seed.chance(plan.unroutable_per_mille)) {
                (_, true) => RowKind::Unroutable,
                (true, false) => RowKind::Poison,
                (false, false) => RowKind::Good,
            };
        self.new_row(topic, key, kind, seed.count(0, plan.payload_bytes_max))
    }

    fn row_of(&self, RowSpec { key, kind }: RowSpec) -> Row {
        self.new_row(topic_name(1), format!("k{key}"), kind, 10)
    }

    fn new_row(&self, topic: String, key: String, kind: RowKind, padding: usize) -> Row {
        let number = {
            let mut count = locked(&self.row_count);
            *count += 1;
            *count
        };
        if kind == RowKind::Poison {
            self.pubsub.poison(number);
        }
        Row {
            number,
            topic,
            key,
            payload: format!("{{\"row\":{number},\"padding\":\"{}\"}}", "x".repeat(padding)),
            is_unroutable: kind == RowKind::Unroutable,
            commit_lsn: 0,
            end_lsn: 0,
            tx_index: 0,
        }
    }
}

pub(crate) struct RowPlanNames {
    pub(crate) topic: String,
    pub(crate) key: String,
}

fn topic_name(number: u64) -> String {
    format!("projects/sim/topics/t{number}.events")
}

fn columns(row: &Row) -> Vec<Option<String>> {
    let aggregate_type = row.topic.trim_start_matches("projects/sim/topics/");
    let headers = if row.is_unroutable { "[\"no object\"]" } else { "{\"trace\":\"none\"}" };
    vec![
        Some(format!("e{}", row.number)),
        Some(aggregate_type.trim_end_matches(".events").into()),
        Some(row.key.clone()),
        Some("made_up".into()),
        Some(row.number.to_string()),
        Some("1".into()),
        Some(row.payload.clone()),
        Some(headers.into()),
        Some("2026-01-01 12:00:00.000001+00".into()),
    ]
}
