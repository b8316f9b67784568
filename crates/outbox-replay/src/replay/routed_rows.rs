//! Rows of the outbox tables, routed as the relay routes them, for callers that do not publish
//! them.

use std::pin::pin;
use std::time::{Duration, SystemTime};

use futures_util::TryStreamExt as _;
use pgoutput_parser::{Begin, Change, Decoder, Lsn, PgTimestamp, encode};
use tokio::time::sleep;
use walrelay_core::{Routed, Router, RouterConfig};
use walrelay_pg_client::ConnectConfig;
use walrelay_relay::error::RelayError;
use walrelay_relay::stream::pipeline_error::PipelineError;

use crate::recovery::{PostgresRowReader, insert_of, reading, relation_of};
use crate::rows::unsettled_rows::{SourceTable, UnsettledRows};

/// The interval at which commits that wait for a synchronous standby are checked for visibility.
const VISIBLE_PAUSE: Duration = Duration::from_millis(100);

/// Reads the tables in the order of aggregate and version.
#[derive(Debug)]
pub struct RoutedRows {
    rows: PostgresRowReader,
    gap: UnsettledRows,
    tables: Vec<SourceTable>,
    router: RouterConfig,
}

impl RoutedRows {
    /// Connects. [`each`](Self::each) reads the rows.
    pub async fn connect(
        connect: &ConnectConfig,
        router: RouterConfig,
        (gap, tables): (UnsettledRows, Vec<SourceTable>),
    ) -> Result<Self, RelayError> {
        Ok(Self { rows: reading(connect).await?, gap, tables, router })
    }

    /// Calls `visit` with each row, in order. All have the position `commit_lsn`, and count from 0
    /// within it.
    pub async fn each<E: From<RelayError>>(
        &self,
        commit_lsn: Lsn,
        mut visit: impl AsyncFnMut(Routed) -> Result<(), E>,
    ) -> Result<(), E> {
        while !self.gap.is_visible(&self.rows.client).await.map_err(RelayError::from)? {
            sleep(VISIBLE_PAUSE).await;
        }
        let mut router = Router::new(self.router.clone());
        let mut decoder = Decoder::new();
        let commit_timestamp = PgTimestamp::from_system_time(SystemTime::now());
        let begin = Begin { final_lsn: commit_lsn, commit_timestamp, xid: 0 };
        decoder.decode(&encode::begin(&begin)).map_err(unreadable)?;
        for table in &self.tables {
            decoder.decode(&relation_of(table)).map_err(unreadable)?;
            self.each_of(table, (&mut decoder, &mut router), &mut visit).await?;
        }
        Ok(())
    }

    async fn each_of<E: From<RelayError>>(
        &self,
        table: &SourceTable,
        (decoder, router): (&mut Decoder, &mut Router),
        visit: &mut impl AsyncFnMut(Routed) -> Result<(), E>,
    ) -> Result<(), E> {
        let PostgresRowReader { client, text } = &self.rows;
        let rows = self.gap.rows(client, (table, *text)).await.map_err(RelayError::from)?;
        let mut rows = pin!(rows);
        while let Some(row) = rows.try_next().await.map_err(RelayError::from)? {
            let encoded = insert_of(table, &row);
            let change = decoder.decode(&encoded).map_err(unreadable)?;
            let Change::Insert(insert) = change else { continue };
            let routed = router.route(&insert).map_err(PipelineError::Row);
            visit(routed.map_err(RelayError::Session)?).await?;
        }
        Ok(())
    }
}

fn unreadable(source: pgoutput_parser::DecodeError) -> RelayError {
    RelayError::Session(PipelineError::Decode { at: Lsn::ZERO, source })
}
