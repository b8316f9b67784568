//! The table of the simulation, on virtual time.

use std::time::Duration;

use walrelay_core::OnDead;
use walrelay_testkit::seed::Seed;
use walrelay_testkit::walsender::ScriptedServer;

use super::script;
use super::subject::{LEASE, Subject};
use crate::judge::{self, Judge};
use crate::rows::TABLE;
use crate::table::{Intervals, Rules, SessionTable, Table};

pub(crate) struct Simulated {
    table: Table,
    session: SessionTable,
}

impl Simulated {
    pub(crate) fn new(on_dead: OnDead) -> Self {
        // What the judge finds in it does not matter here: nothing was committed.
        let judge = Judge::new(judge::Rules {
            dead_rows_hold: on_dead == OnDead::Hold,
            unsettled_bytes_max: usize::MAX,
            request_messages_max: usize::MAX,
            request_bytes_max: usize::MAX,
            status_timeout: Duration::MAX,
            take_over_after: Duration::ZERO,
        });
        let server = ScriptedServer::new(TABLE, Box::new(|_| {}));
        let rules = Rules { on_dead, per_key_rows: 500, lease: LEASE, recorded_page: u32::MAX };
        let table = Table::new(rules, Intervals::HEALTHY, Seed::new(1), judge, server);
        Self { session: SessionTable::new(table.clone(), 0), table }
    }
}

impl Subject for Simulated {
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

    async fn contents(&mut self) -> Vec<String> {
        let contents = self.table.contents();
        let lines = contents.into_iter().map(|(commit_lsn, status, attempts, due_in)| {
            let status = format!("{status:?}").to_lowercase();
            format!("  {commit_lsn} {status} {attempts} {}", script::rough(due_in))
        });
        lines.collect()
    }
}
