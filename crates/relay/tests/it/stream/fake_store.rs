//! Test rows, and a dispatch state that logs its commands and fails on request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgoutput_parser::{Lsn, PgTimestamp, Position};
use tokio::time::{Instant, sleep, sleep_until};
use walrelay_core::{
    Backoff, Batch, ClaimAnswer, ClaimKey, Finished, LanePolicy, Lanes, Message, OnDead, Outcome,
    RecordReason, RowToRecord, Topic, Tracker,
};
use walrelay_outbox_store::{
    Condition, Due, Head, ParkedKey, PublicationCheck, RecordedPage, SlotFigures, Store,
    StoreFailure,
};

/// The latency of every store command.
pub(crate) const LATENCY: Duration = Duration::from_millis(1);

/// A fake dispatch state. Clones share it.
#[derive(Clone)]
pub(crate) struct FakeStore(Arc<Mutex<State>>);

struct State {
    opened: Instant,
    /// The commands received so far, with their times.
    told: Vec<(Duration, String)>,
    /// How often commands of this name still fail.
    failing: BTreeMap<String, u32>,
    is_stopping: bool,
    latency: Duration,
    /// The time of an operator's notification.
    notice_at: Option<Instant>,
    /// The remaining steps of commands that run in steps, by command.
    steps_left: BTreeMap<String, u32>,
}

impl FakeStore {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            opened: Instant::now(),
            told: Vec::new(),
            failing: BTreeMap::new(),
            is_stopping: false,
            latency: LATENCY,
            notice_at: None,
            steps_left: BTreeMap::new(),
        })))
    }

    /// Makes the next `times` commands of this name fail.
    pub(crate) fn fails(&self, name: &str, times: u32) {
        self.0.lock().unwrap().failing.insert(name.to_owned(), times);
    }

    /// Starts a shutdown of the server.
    pub(crate) fn stops(&self) {
        self.0.lock().unwrap().is_stopping = true;
    }

    pub(crate) fn takes(&self, latency: Duration) {
        self.0.lock().unwrap().latency = latency;
    }

    /// Schedules an operator's notification.
    pub(crate) fn notices(&self, at: Instant) {
        self.0.lock().unwrap().notice_at = Some(at);
    }

    /// Makes commands of this name report more work for so many steps.
    pub(crate) fn has_more_for(&self, name: &str, steps: u32) {
        self.0.lock().unwrap().steps_left.insert(name.to_owned(), steps);
    }

    fn has_more(&self, name: &str) -> bool {
        match self.0.lock().unwrap().steps_left.get_mut(name) {
            Some(steps) if *steps > 0 => {
                *steps -= 1;
                true
            }
            _ => false,
        }
    }

    /// Returns the commands received so far, in order.
    pub(crate) fn told(&self) -> Vec<String> {
        self.0.lock().unwrap().told.iter().map(|(_, command)| command.clone()).collect()
    }

    /// Returns the time since it was opened.
    pub(crate) fn elapsed(&self) -> Duration {
        self.0.lock().unwrap().opened.elapsed()
    }

    /// Returns the times of commands with this prefix, since it was opened.
    pub(crate) fn times_of(&self, command: &str) -> Vec<Duration> {
        let state = self.0.lock().unwrap();
        let told = state.told.iter().filter(|(_, told)| told.starts_with(command));
        told.map(|(at, _)| *at).collect()
    }

    async fn command(&self, name: &str, what: String) -> Result<(), StoreFailure> {
        let latency = {
            let mut state = self.0.lock().unwrap();
            let at = state.opened.elapsed();
            state.told.push((at, format!("{name} {what}").trim_end().to_owned()));
            state.latency
        };
        sleep(latency).await;
        let mut state = self.0.lock().unwrap();
        if state.is_stopping {
            return Err(StoreFailure::ShuttingDown);
        }
        match state.failing.get_mut(name) {
            Some(times) if *times > 0 => {
                *times -= 1;
                Err(StoreFailure::Unavailable("made up".into()))
            }
            _ => Ok(()),
        }
    }
}

fn ids<'a>(messages: impl Iterator<Item = &'a Message>) -> String {
    messages.map(Message::event_id).collect::<Vec<_>>().join(",")
}

impl Store for FakeStore {
    async fn parked_keys(
        &mut self,
        _each: &mut (dyn FnMut(ParkedKey) + Send),
    ) -> Result<usize, StoreFailure> {
        Ok(0)
    }

    async fn recorded_from(
        &mut self,
        from: Position,
        _rows_max: u32,
    ) -> Result<RecordedPage, StoreFailure> {
        self.command("recorded", from.to_string()).await?;
        Ok(RecordedPage::default())
    }

    async fn park(&mut self, rows: &[RowToRecord]) -> Result<(), StoreFailure> {
        self.command("park", ids(rows.iter().map(|row| &row.message))).await
    }

    async fn finish(&mut self, finished: &[Finished]) -> Result<(), StoreFailure> {
        self.command("finish", ids(finished.iter().map(|row| &row.message))).await
    }

    async fn claim(
        &mut self,
        keys: &[ClaimKey],
        max: usize,
        _: Position,
    ) -> Result<Vec<ClaimAnswer>, StoreFailure> {
        let names: Vec<_> = keys.iter().map(|key| &*key.ordering_key).collect();
        self.command("claim", format!("{} {max}", names.join(","))).await?;
        let rows = |key: &ClaimKey| vec![(message(9, &key.ordering_key), 0)];
        Ok(keys.iter().map(|key| ClaimAnswer { rows: rows(key), held_for: None }).collect())
    }

    async fn has_spilled_before(&mut self, _: Lsn) -> Result<bool, StoreFailure> {
        Ok(false)
    }

    async fn heads_after(&mut self, _: Option<&Head>) -> Result<Vec<Head>, StoreFailure> {
        Ok(Vec::new())
    }

    async fn due_keys(&mut self, except: &[Topic]) -> Result<Due, StoreFailure> {
        self.command("due", except.join(",")).await?;
        let keys = vec![(Topic::from("orders"), "due".to_owned())];
        Ok(Due { keys, has_more: self.has_more("due") })
    }

    async fn note_settled(&mut self, settled: Lsn, _: u64) -> Result<(), StoreFailure> {
        self.command("settled", settled.to_string()).await
    }

    async fn note_condition(&mut self, condition: &Condition) -> Result<(), StoreFailure> {
        self.command("condition", format!("{condition:?}")).await
    }

    async fn notice(&mut self) {
        let at = self.0.lock().unwrap().notice_at;
        match at {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
        self.0.lock().unwrap().notice_at = None;
    }

    async fn watch(&mut self) -> Result<PublicationCheck, StoreFailure> {
        Ok(PublicationCheck::Changing)
    }

    async fn survey(&mut self) -> Result<SlotFigures, StoreFailure> {
        self.command("survey", String::new()).await?;
        Ok(SlotFigures {
            is_counting: self.has_more("survey"),
            lag_seconds: Some(7.0),
            commit_wait_seconds: 0.0,
            ..SlotFigures::default()
        })
    }

    async fn prune(&mut self, retention: Duration) -> Result<u64, StoreFailure> {
        self.command("prune", format!("{}s", retention.as_secs())).await?;
        Ok(u64::from(self.has_more("prune")))
    }
}

pub(crate) fn message(row: u32, key: &str) -> Message {
    let mut body = vec![0x0A, 1, b'x', 0x2A, u8::try_from(key.len()).unwrap()];
    body.extend_from_slice(key.as_bytes());
    let position = Position { commit_lsn: Lsn::new(u64::from(row)), tx_index: 0 };
    Message::from_encoded(Topic::from("orders"), position, &row.to_string(), &body).unwrap()
}

pub(crate) fn rows_to_record(rows: &[u32]) -> Vec<RowToRecord> {
    let mut tracker = Tracker::new();
    tracker.begin(PgTimestamp::from_micros(0));
    let row = |row: &u32| RowToRecord {
        lane: None,
        message: message(*row, "k"),
        ticket: tracker.open(),
        reason: RecordReason::Queued,
    };
    rows.iter().map(row).collect()
}

/// Returns outcomes of claimed rows.
pub(crate) fn finished(rows: &[u32]) -> Vec<Finished> {
    let row = |row: &u32| Finished {
        message: message(*row, "k"),
        outcome: Outcome::Published { message_id: "m".to_owned() },
    };
    rows.iter().map(row).collect()
}

pub(crate) fn lanes() -> Lanes {
    let second = Duration::from_secs(1);
    let backoff = Backoff { base: second, cap: second };
    let policy = LanePolicy {
        batch_messages: 10,
        batch_bytes: 1_000,
        transient: backoff,
        operator: backoff,
        redelivery: backoff,
        park_after: second,
        max_attempts: 1,
        parked_lanes: 10,
        on_dead: OnDead::Continue,
    };
    Lanes::new(policy, 1)
}

/// Returns parked keys that are due.
pub(crate) fn claims(keys: &[&str]) -> Vec<ClaimKey> {
    let (mut lanes, now) = (lanes(), Instant::now().into_std());
    for key in keys {
        lanes.load_parked(&Topic::from("orders"), key, None, now);
    }
    lanes.wake(now);
    lanes.claims(keys.len(), now)
}

pub(crate) fn batches(keys: &[&str]) -> Vec<Batch> {
    let (mut lanes, now) = (lanes(), Instant::now().into_std());
    let mut tracker = Tracker::new();
    tracker.begin(PgTimestamp::from_micros(0));
    for (row, key) in (0..).zip(keys) {
        lanes.push(message(row, key), tracker.open());
    }
    std::iter::from_fn(|| lanes.next_batch(now)).collect()
}
