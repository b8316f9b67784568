//! Planted bugs: each breaks one promise of a trait, and the judge must find a fault.

mod again;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pgoutput_parser::{Lsn, Position};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use walrelay_core::{
    Batch, CallCode, ClaimAnswer, ClaimKey, FailureClass, Finished, PublishFailure, RowToRecord,
    Topic,
};
use walrelay_outbox_store::{
    Due, Head, ParkedKey, PublicationCheck, RecordedPage, SlotFigures, Store, StoreFailure,
};
use walrelay_relay::stream::publisher::Publisher;
use walrelay_testkit::walsender::{Seen, Watcher};

use crate::harness::Harness;
use crate::judge::Judge;
use crate::pubsub::{PubSub, Request};
use crate::table::SessionTable;
use crate::world::locked;
pub(crate) use again::ReplayPublisher;

/// Bug: a session that ends abandons its requests before they have a reply.
#[derive(Clone, Default)]
pub(crate) struct Impatient {
    cut: Arc<Notify>,
}

impl Harness for Impatient {
    type Publisher = ImpatientPublisher;
    type Store = SessionTable;

    fn publisher(&self, pubsub: PubSub) -> ImpatientPublisher {
        ImpatientPublisher { pubsub, cut: Arc::clone(&self.cut), given_up: Arc::default() }
    }

    fn store(&self, table: SessionTable) -> SessionTable {
        table
    }

    fn connections_cut(&self) {
        self.cut.notify_waiters();
    }
}

/// Replies when the connection to the server is cut, while the request continues.
#[derive(Clone)]
pub(crate) struct ImpatientPublisher {
    pubsub: PubSub,
    cut: Arc<Notify>,
    given_up: Arc<Mutex<JoinSet<()>>>,
}

impl Publisher for ImpatientPublisher {
    fn publish(
        &self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static {
        let mut call = Box::pin(self.pubsub.publish(batch));
        let Self { cut, given_up, .. } = self.clone();
        async move {
            tokio::select! {
                biased;
                answer = &mut call => return answer,
                () = cut.notified() => {}
            }
            locked(&given_up).spawn(async move { drop(call.await) });
            Err(PublishFailure::new(FailureClass::Transient, CallCode::Cancelled, "given up"))
        }
    }
}

/// Bug: a keepalive inside a transaction is treated like one between transactions.
#[derive(Clone, Copy)]
pub(crate) struct ConfirmingKeepalivesInTransactions;

impl Harness for ConfirmingKeepalivesInTransactions {
    type Publisher = PubSub;
    type Store = SessionTable;

    fn publisher(&self, pubsub: PubSub) -> PubSub {
        pubsub
    }

    fn store(&self, table: SessionTable) -> SessionTable {
        table
    }

    fn watcher(&self, judge: Judge) -> Watcher {
        let mut keepalive = 0;
        Box::new(move |seen| {
            judge.seen(match seen {
                Seen::Status { flush, told } => Seen::Status { flush: flush.max(keepalive), told },
                Seen::KeepaliveInTransaction { wal_end } => {
                    keepalive = wal_end;
                    seen
                }
                Seen::Started { .. }
                | Seen::CopyStarted { .. }
                | Seen::Row { .. }
                | Seen::Ended => seen,
            });
        })
    }
}

/// A bug in a publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PublisherBug {
    /// A refused batch counts as stored.
    TakesRefusedForStored,
    /// A refused batch is retried behind the next batch of its key.
    RetriesBehindTheNext,
    /// A row that was refused as invalid is retried behind the next batch of its key.
    RetriesInvalidBehindTheNext,
}

/// A publisher with a bug.
#[derive(Clone)]
pub(crate) struct BuggyPublisher {
    bug: PublisherBug,
    pubsub: PubSub,
    postponed: Arc<Mutex<BTreeMap<(String, String), Request>>>,
}

impl Harness for PublisherBug {
    type Publisher = BuggyPublisher;
    type Store = SessionTable;

    fn publisher(&self, pubsub: PubSub) -> BuggyPublisher {
        BuggyPublisher { bug: *self, pubsub, postponed: Arc::default() }
    }

    fn store(&self, table: SessionTable) -> SessionTable {
        table
    }
}

impl Publisher for BuggyPublisher {
    fn publish(
        &self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static {
        let request = Request::of(batch);
        let answer = self.pubsub.publish(batch);
        let Self { bug, pubsub, postponed } = self.clone();
        async move {
            let answer = answer.await;
            let key = (request.topic.clone(), request.key().to_owned());
            let before = postponed.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            if let Some(before) = before {
                // The result does not matter: the fault is its place in the order.
                drop(pubsub.send(&before).await);
            }
            let ids = request.messages.iter().map(|(row, ..)| format!("m{row}")).collect();
            let class = answer.as_ref().err().map(|failure| failure.class);
            let postpone = |refused| {
                postponed.lock().unwrap_or_else(PoisonError::into_inner).insert(key, refused);
            };
            match (bug, class) {
                (PublisherBug::RetriesInvalidBehindTheNext, Some(FailureClass::Row)) => {
                    postpone(request);
                    return answer;
                }
                (PublisherBug::RetriesBehindTheNext, Some(FailureClass::Transient)) => {
                    postpone(request);
                }
                (PublisherBug::TakesRefusedForStored, Some(FailureClass::Transient)) => {}
                _ => return answer,
            }
            Ok(ids)
        }
    }
}

/// A bug in a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreBug {
    /// Rows count as recorded before they are, and are then lost.
    SettlesBeforeDurable,
    /// Rows are claimed in reverse order.
    ClaimsBackwards,
    /// A key whose rows are not due is treated like a key without rows.
    ForgetsWhatIsHeld,
    /// A claim of a parked key always reports that its rows are held.
    HoldsForEver,
    /// Outcomes are not written.
    ForgetsOutcomes,
    /// A new session reads no parked keys.
    ForgetsParkedKeys,
    /// A new session reads no holds of replays.
    ForgetsHolds,
    /// A new session reads no recorded rows behind the slot's position.
    ForgetsRecordedRows,
}

/// A store with a bug.
pub(crate) struct BuggyStore {
    bug: StoreBug,
    table: SessionTable,
}

impl Harness for StoreBug {
    type Publisher = PubSub;
    type Store = BuggyStore;

    fn publisher(&self, pubsub: PubSub) -> PubSub {
        pubsub
    }

    fn store(&self, table: SessionTable) -> BuggyStore {
        BuggyStore { bug: *self, table }
    }
}

impl Store for BuggyStore {
    async fn parked_keys(
        &mut self,
        each: &mut (dyn FnMut(ParkedKey) + Send),
    ) -> Result<usize, StoreFailure> {
        let mut nobody = |_| {};
        let told = match self.bug {
            StoreBug::ForgetsParkedKeys => &mut nobody,
            StoreBug::ForgetsHolds => {
                self.table.forget_holds();
                each
            }
            StoreBug::ForgetsRecordedRows
            | StoreBug::SettlesBeforeDurable
            | StoreBug::ClaimsBackwards
            | StoreBug::ForgetsWhatIsHeld
            | StoreBug::HoldsForEver
            | StoreBug::ForgetsOutcomes => each,
        };
        self.table.parked_keys(told).await
    }

    async fn recorded_from(
        &mut self,
        from: Position,
        rows_max: u32,
    ) -> Result<RecordedPage, StoreFailure> {
        match self.bug {
            StoreBug::ForgetsRecordedRows => Ok(RecordedPage::default()),
            StoreBug::SettlesBeforeDurable
            | StoreBug::ClaimsBackwards
            | StoreBug::ForgetsWhatIsHeld
            | StoreBug::HoldsForEver
            | StoreBug::ForgetsParkedKeys
            | StoreBug::ForgetsHolds
            | StoreBug::ForgetsOutcomes => self.table.recorded_from(from, rows_max).await,
        }
    }

    async fn park(&mut self, rows_to_record: &[RowToRecord]) -> Result<(), StoreFailure> {
        match self.bug {
            StoreBug::SettlesBeforeDurable => Ok(()),
            StoreBug::ClaimsBackwards
            | StoreBug::ForgetsWhatIsHeld
            | StoreBug::HoldsForEver
            | StoreBug::ForgetsOutcomes
            | StoreBug::ForgetsParkedKeys
            | StoreBug::ForgetsHolds
            | StoreBug::ForgetsRecordedRows => self.table.park(rows_to_record).await,
        }
    }

    async fn finish(&mut self, finished: &[Finished]) -> Result<(), StoreFailure> {
        match self.bug {
            StoreBug::ForgetsOutcomes => Ok(()),
            StoreBug::ClaimsBackwards
            | StoreBug::ForgetsWhatIsHeld
            | StoreBug::HoldsForEver
            | StoreBug::SettlesBeforeDurable
            | StoreBug::ForgetsParkedKeys
            | StoreBug::ForgetsHolds
            | StoreBug::ForgetsRecordedRows => self.table.finish(finished).await,
        }
    }

    async fn claim(
        &mut self,
        keys: &[ClaimKey],
        bytes_max: usize,
        through: Position,
    ) -> Result<Vec<ClaimAnswer>, StoreFailure> {
        let answers = match self.bug {
            StoreBug::HoldsForEver => Vec::new(),
            StoreBug::ClaimsBackwards
            | StoreBug::ForgetsWhatIsHeld
            | StoreBug::ForgetsOutcomes
            | StoreBug::SettlesBeforeDurable
            | StoreBug::ForgetsParkedKeys
            | StoreBug::ForgetsHolds
            | StoreBug::ForgetsRecordedRows => self.table.claim(keys, bytes_max, through).await?,
        };
        let held_for = Some(Duration::from_secs(1));
        Ok(match self.bug {
            StoreBug::HoldsForEver => {
                keys.iter().map(|_| ClaimAnswer { rows: Vec::new(), held_for }).collect()
            }
            StoreBug::ClaimsBackwards => answers
                .into_iter()
                .map(|mut claimed| {
                    claimed.rows.reverse();
                    claimed
                })
                .collect(),
            StoreBug::ForgetsWhatIsHeld => answers
                .into_iter()
                .map(|ClaimAnswer { rows, .. }| ClaimAnswer { rows, held_for: None })
                .collect(),
            StoreBug::ForgetsOutcomes
            | StoreBug::SettlesBeforeDurable
            | StoreBug::ForgetsParkedKeys
            | StoreBug::ForgetsHolds
            | StoreBug::ForgetsRecordedRows => answers,
        })
    }

    async fn due_keys(&mut self, except: &[Topic]) -> Result<Due, StoreFailure> {
        self.table.due_keys(except).await
    }

    async fn has_spilled_before(&mut self, end: Lsn) -> Result<bool, StoreFailure> {
        self.table.has_spilled_before(end).await
    }

    async fn heads_after(&mut self, after: Option<&Head>) -> Result<Vec<Head>, StoreFailure> {
        self.table.heads_after(after).await
    }

    async fn watch(&mut self) -> Result<PublicationCheck, StoreFailure> {
        self.table.watch().await
    }

    async fn note_settled(&mut self, settled: Lsn, published: u64) -> Result<(), StoreFailure> {
        self.table.note_settled(settled, published).await
    }

    async fn notice(&mut self) {
        self.table.notice().await;
    }

    async fn survey(&mut self) -> Result<SlotFigures, StoreFailure> {
        self.table.survey().await
    }

    async fn prune(&mut self, retention: Duration) -> Result<u64, StoreFailure> {
        self.table.prune(retention).await
    }
}
