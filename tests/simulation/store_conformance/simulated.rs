//! The table of the simulation, in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use walrelay_core::OnDead;
use walrelay_testkit::seed::Seed;
use walrelay_testkit::walsender::ScriptedServer;

use super::script;
use super::store_under_test::{LEASE, StoreUnderTest};
use crate::judge::{self, Judge, Row};
use crate::rows::TABLE;
use crate::table::{Intervals, Rules, SessionTable, Table};

pub(crate) struct Simulated {
    table: Table,
    session: SessionTable,
    /// The last replay of each key.
    replays: BTreeMap<usize, u32>,
    replay_count: u32,
}

impl Simulated {
    pub(crate) fn new(on_dead: OnDead, before: u64) -> Self {
        // The findings of this judge do not matter, because nothing was committed.
        let judge = Judge::new(judge::Rules {
            dead_rows_hold: on_dead == OnDead::Hold,
            unsettled_bytes_max: usize::MAX,
            request_messages_max: usize::MAX,
            request_bytes_max: usize::MAX,
            status_timeout: Duration::MAX,
            take_over_after: Duration::ZERO,
        });
        let server = ScriptedServer::new(TABLE, Box::new(|_| {}));
        let recorded_page = u32::MAX;
        let rules = Rules { on_dead, per_key_rows: 500, lease: LEASE, recorded_page, before };
        let table = Table::new(rules, Intervals::HEALTHY, Seed::new(1), judge, server);
        let session = SessionTable::new(table.clone(), 0);
        Self { session, table, replays: BTreeMap::new(), replay_count: 0 }
    }
}

impl StoreUnderTest for Simulated {
    type Store = SessionTable;

    fn store(&mut self) -> &mut SessionTable {
        &mut self.session
    }

    async fn elapse(&mut self, time: Duration) {
        tokio::time::advance(time).await;
    }

    async fn retry_dead(&mut self) {
        let dead = self.table.rows(&[judge::Status::Dead]);
        self.table.retry(|row, _| dead.contains(&row));
    }

    async fn retry_topic(&mut self, topic: &str) {
        self.table.retry(|_, of_row| of_row == topic);
    }

    async fn discard(&mut self, row: u64) {
        self.table.discard(row.try_into().expect("a small number"));
    }

    async fn hold(&mut self, key: usize) {
        let (topic, ordering_key) = script::key(key);
        if self.table.place_hold(topic, ordering_key) {
            self.replay_count += 1;
            self.replays.insert(key, self.replay_count);
        }
    }

    async fn add_history(&mut self, key: usize, row: u64) {
        let Some(replay) = self.replays.get(&key) else { return };
        let (topic, ordering_key) = script::key(key);
        let number: u32 = row.try_into().expect("a small number");
        let row = Row {
            number: 1_000 * replay + number,
            topic: topic.to_owned(),
            key: ordering_key.to_owned(),
            payload: "7".repeat(40),
            is_unroutable: false,
            commit_lsn: row,
            end_lsn: row,
            tx_index: 0,
        };
        let held = self.table.held();
        let of_key = held.iter().find(|one| one.topic == row.topic && one.key == row.key);
        if of_key.is_some_and(|one| row.is_through(one.through)) {
            self.table.add_history(&row);
        }
    }

    async fn lift(&mut self, key: usize) {
        let (topic, ordering_key) = script::key(key);
        self.table.lift_hold(topic, ordering_key);
    }

    async fn contents(&mut self) -> Vec<String> {
        let contents = self.table.contents();
        let lines = contents.into_iter().map(|(commit_lsn, status, attempts, due_in)| {
            let status = format!("{status:?}").to_lowercase();
            format!("  {commit_lsn} {status} {attempts} {}", script::rounded_minutes(due_in))
        });
        let holds = self.table.holds().into_iter().map(|(topic, key, through)| {
            let (number, index) = through.unzip();
            format!("  {topic} {key} held {number:?} {index:?}")
        });
        lines.chain(holds).collect()
    }
}
