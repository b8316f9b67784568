//! A simulated Pub/Sub with faults: by topic, by key, by row, or for all requests.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;
use prost::Message as _;
use tokio::time::{Instant, sleep};
use walrelay_core::{Batch, CallCode, FailureClass, PublishFailure, WalBudget};
use walrelay_relay::stream::publisher::Publisher;
use walrelay_testkit::seed::Seed;

use crate::judge::{AbandonedFate, Answer, Judge, PublishedMessage, RowNumber};

/// The fault rates of healthy requests in per mille, and the longest latency.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Intervals {
    pub(crate) latency_max: Duration,
    pub(crate) transient: u64,
    pub(crate) lost_reply: u64,
    pub(crate) slow: u64,
    pub(crate) black_hole: u64,
}

impl Intervals {
    pub(crate) const HEALTHY: Self = Self {
        latency_max: Duration::from_millis(20),
        transient: 0,
        lost_reply: 0,
        slow: 0,
        black_hole: 0,
    };
}

/// A scope that is refused for a while.
#[derive(Debug, Clone)]
pub(crate) struct InjectedFailure {
    /// `None` means every topic.
    pub(crate) topic: Option<String>,
    /// `None` means every key.
    pub(crate) key: Option<String>,
    pub(crate) until: Instant,
    pub(crate) class: FailureClass,
}

struct State {
    seed: Seed,
    intervals: Intervals,
    sick: Vec<InjectedFailure>,
    poison: BTreeSet<RowNumber>,
    /// Abandoned requests: the time at which each arrives, and its fate.
    abandoned: Vec<(Instant, u64, AbandonedFate)>,
}

/// The service. Clones share its state.
#[derive(Clone)]
pub(crate) struct PubSub {
    state: Arc<Mutex<State>>,
    judge: Judge,
    /// The publishing process.
    process: u64,
}

/// The client cancels a request after this time.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

const TRANSIENT: &[CallCode] = &[
    CallCode::Unavailable,
    CallCode::DeadlineExceeded,
    CallCode::Internal,
    CallCode::Aborted,
    CallCode::ResourceExhausted,
];

const OPERATOR: &[CallCode] =
    &[CallCode::NotFound, CallCode::PermissionDenied, CallCode::Unauthenticated];

/// The fate of a request.
struct Fate {
    before: Duration,
    is_stored: bool,
    after: Duration,
    failure: Option<PublishFailure>,
}

impl PubSub {
    pub(crate) fn new(intervals: Intervals, seed: Seed, judge: Judge) -> Self {
        let (sick, poison, abandoned) = (Vec::new(), BTreeSet::new(), Vec::new());
        let state = State { seed, intervals, sick, poison, abandoned };
        Self { state: Arc::new(Mutex::new(state)), judge, process: 0 }
    }

    /// Returns the same service, as this process publishes to it.
    pub(crate) fn of_process(&self, process: u64) -> Self {
        Self { process, ..self.clone() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn inject_failure(&self, sickness: InjectedFailure) {
        self.state().sick.push(sickness);
    }

    pub(crate) fn poison(&self, row: RowNumber) {
        self.state().poison.insert(row);
    }

    pub(crate) fn is_poison(&self, row: RowNumber) -> bool {
        self.state().poison.contains(&row)
    }

    /// From now on, only poison rows are refused.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        state.intervals = Intervals::HEALTHY;
        state.sick.clear();
    }

    /// Lets requests whose sender is gone arrive or disappear.
    pub(crate) fn deliver_abandoned_requests(&self) {
        let now = Instant::now();
        let mut due = Vec::new();
        self.state().abandoned.retain(|(at, call, landing)| {
            if *at <= now {
                due.push((*call, *landing));
            }
            *at > now
        });
        due.into_iter().for_each(|(call, landing)| self.judge.landed(call, landing));
    }

    /// Records an abandoned request. `before` is its fate so far.
    fn lose(&self, call: u64, before: AbandonedFate) {
        self.judge.dropped(call);
        let mut state = self.state();
        let delay = state.seed.time(Duration::ZERO, Duration::from_secs(3));
        let landing = match before == AbandonedFate::Lost && state.seed.chance(500) {
            true => AbandonedFate::Stored,
            false => AbandonedFate::Lost,
        };
        let at = match state.seed.chance(500) {
            true => Instant::now(),
            false => Instant::now() + delay,
        };
        state.abandoned.push((at, call, landing));
    }
}

impl State {
    fn fate(&mut self, topic: &str, key: &str, rows: &[RowNumber]) -> Fate {
        let now = Instant::now();
        let Intervals { latency_max, transient, lost_reply, slow, black_hole } = self.intervals;
        let mut before = self.seed.time(Duration::ZERO, latency_max);
        if self.seed.chance(slow) {
            before += self.seed.time(Duration::ZERO, Duration::from_secs(5));
        }
        let after = self.seed.time(Duration::ZERO, latency_max);
        self.sick.retain(|sickness| sickness.until > now);
        let matches = |wanted: &Option<String>, found: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        let sickness =
            self.sick.iter().find(|sick| matches(&sick.topic, topic) && matches(&sick.key, key));
        let class = sickness.map(|sickness| sickness.class);
        let refused = |failure| Fate { before, is_stored: false, after, failure: Some(failure) };
        match class {
            Some(FailureClass::Operator) => return refused(operator(&mut self.seed)),
            Some(FailureClass::Row) => return refused(invalid()),
            Some(FailureClass::Transient) => return refused(transient_failure(&mut self.seed)),
            None => {}
        }
        if rows.iter().any(|row| self.poison.contains(row)) {
            return refused(invalid());
        }
        if self.seed.chance(black_hole) {
            let is_stored = self.seed.chance(500);
            let failure = failure(FailureClass::Transient, CallCode::DeadlineExceeded);
            let silence = REQUEST_TIMEOUT.saturating_sub(before);
            return Fate { before, is_stored, after: silence, failure: Some(failure) };
        }
        if self.seed.chance(transient) {
            return refused(transient_failure(&mut self.seed));
        }
        let is_lost = self.seed.chance(lost_reply);
        let failure = is_lost.then(|| transient_failure(&mut self.seed));
        Fate { before, is_stored: true, after, failure }
    }
}

fn failure(class: FailureClass, code: CallCode) -> PublishFailure {
    let congestion = matches!(code, CallCode::DeadlineExceeded | CallCode::ResourceExhausted);
    PublishFailure { congestion, ..PublishFailure::new(class, code, "made up") }
}

fn transient_failure(seed: &mut Seed) -> PublishFailure {
    failure(FailureClass::Transient, *seed.pick(TRANSIENT))
}

fn operator(seed: &mut Seed) -> PublishFailure {
    failure(FailureClass::Operator, *seed.pick(OPERATOR))
}

fn invalid() -> PublishFailure {
    failure(FailureClass::Row, CallCode::InvalidArgument)
}

/// A request in flight. If it is dropped, its reply has no receiver.
struct Out {
    pubsub: PubSub,
    call: u64,
    sent_at: Instant,
    state: OutState,
}

/// As in production.
const GIVEN_UP_AFTER: Duration = WalBudget::PATIENCE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutState {
    Unstored,
    Stored,
    Answered,
}

impl Drop for Out {
    fn drop(&mut self) {
        // The relay cancels only calls that had no reply for this long.
        if self.state != OutState::Answered && self.sent_at.elapsed() >= GIVEN_UP_AFTER {
            self.pubsub.judge.given_up(self.call);
        }
        match self.state {
            OutState::Unstored => self.pubsub.lose(self.call, AbandonedFate::Lost),
            OutState::Stored => self.pubsub.lose(self.call, AbandonedFate::Stored),
            OutState::Answered => {}
        }
    }
}

/// The content of a request, without its bytes.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) topic: String,
    /// Row, key, bytes.
    pub(crate) messages: Vec<(RowNumber, String, usize)>,
}

impl Request {
    pub(crate) fn of(batch: &Batch) -> Self {
        let messages = batch.messages().map(|message| {
            let number = number_of(message.event_id());
            (number, message.ordering_key().to_owned(), message.request_field().len())
        });
        Self { topic: batch.topic().to_string(), messages: messages.collect() }
    }

    pub(crate) fn key(&self) -> &str {
        self.messages.first().map_or("", |(_, key, _)| key)
    }

    fn rows(&self) -> Vec<RowNumber> {
        self.messages.iter().map(|(number, ..)| *number).collect()
    }
}

impl PubSub {
    /// Sends one request.
    pub(crate) fn send(
        &self,
        request: &Request,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + use<> {
        self.deliver_abandoned_requests();
        let call = self.judge.sent(self.process, &request.topic, &request.messages);
        let rows = request.rows();
        let fate = self.state().fate(&request.topic, request.key(), &rows);
        let pubsub = self.clone();
        async move {
            let Fate { before, is_stored, after, failure } = fate;
            let judge = pubsub.judge.clone();
            let sent_at = Instant::now();
            let mut out = Out { pubsub, call, sent_at, state: OutState::Unstored };
            sleep(before).await;
            if is_stored {
                judge.stored(call);
                out.state = OutState::Stored;
            }
            sleep(after).await;
            judge.answered(call, answer(out.state, failure.as_ref()));
            out.state = OutState::Answered;
            match failure {
                Some(failure) => Err(failure),
                None => Ok(rows.iter().map(|row| format!("m{call}-{row}")).collect()),
            }
        }
    }
}

impl Publisher for PubSub {
    fn publish(
        &self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static {
        for message in batch.messages() {
            let mark = mark_of(message.body());
            let published = PublishedMessage {
                position: position_of(message),
                body: message.body(),
                mark: mark.as_deref(),
            };
            self.judge.check_content(batch.topic(), number_of(message.event_id()), published);
        }
        self.send(&Request::of(batch))
    }
}

fn answer(state: OutState, failure: Option<&PublishFailure>) -> Answer {
    match failure {
        None => Answer::Ok,
        Some(failure) if state == OutState::Stored => Answer::LostReply(failure.code.as_str()),
        Some(failure) if failure.class == FailureClass::Row => Answer::Invalid,
        Some(failure) => Answer::Refused(failure.code.as_str()),
    }
}

/// Returns the number in an event id, of a row or of a replayed row. Returns a number that no row
/// has if the id is foreign.
pub(crate) fn number_of(event_id: &str) -> RowNumber {
    let digits = event_id.strip_prefix(['e', 'r']);
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(RowNumber::MAX)
}

/// Returns the replay id in the message.
fn mark_of(body: &[u8]) -> Option<String> {
    let message = PubsubMessage::decode(body).ok()?;
    message.attributes.get("replay_id").cloned()
}

fn position_of(message: &walrelay_core::Message) -> (u64, u32) {
    let position = message.position();
    (position.commit_lsn.as_u64(), position.tx_index)
}
