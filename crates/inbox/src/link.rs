//! The stream to Pub/Sub: open, or closed until a time.

use std::time::Duration;

use futures_util::StreamExt as _;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::StreamingPullRequest;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::Instant;
use tonic::{Code, Status};
use walrelay_core::Random;
use walrelay_inbox_core::Backoff;
use walrelay_pubsub::{Delivered, StreamingPull, Subscriber};

/// A lease on the stream. Long enough that a renewal may be seconds late, short enough that what a
/// dead consumer held soon goes to another.
pub(crate) const LEASE: Duration = Duration::from_secs(20);
const LEASE_SECONDS: i32 = 20;

/// Ids in one request, which may have 512 KiB; an id has about 200 bytes.
const IDS_MAX: usize = 1_000;
/// How often a quiet stream is told that we are there, as the official clients do.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long the service has to take our last words.
const GOODBYE: Duration = Duration::from_secs(2);

const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_LONGEST: Duration = Duration::from_secs(30);

#[derive(Debug)]
enum State {
    Open(StreamingPull),
    Closed { until: Instant },
}

/// What is to be heard of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Whatever comes.
    Responses,
    /// There is no room for more.
    Nothing,
}

/// What happened on the stream.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A response; an error is the end of the stream.
    Response(Box<Result<Delivered, Status>>),
    /// There is room for what waits.
    Room,
}

/// The stream, whatever its state.
#[derive(Debug)]
pub(crate) struct Link {
    subscriber: Subscriber,
    first: StreamingPullRequest,
    state: State,
    backoff: Backoff,
    /// To be acknowledged, in order; not sent yet.
    acknowledgements: Vec<String>,
    renewals: Vec<String>,
    spoke_at: Instant,
}

impl Link {
    pub(crate) fn new(subscriber: Subscriber, first: StreamingPullRequest) -> Self {
        let first = StreamingPullRequest { stream_ack_deadline_seconds: LEASE_SECONDS, ..first };
        let now = Instant::now();
        Self {
            subscriber,
            first,
            state: State::Closed { until: now },
            backoff: Backoff::new(BACKOFF_FIRST, BACKOFF_LONGEST),
            acknowledgements: Vec::new(),
            renewals: Vec::new(),
            spoke_at: now,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// When the stream is to be opened again; `None` while it is open.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        match self.state {
            State::Open(_) => Some(self.spoke_at + KEEPALIVE),
            State::Closed { until } => Some(until),
        }
    }

    /// Opens the stream if it is closed and its time has come; whether it did. Nothing has been
    /// exchanged by then: what is wrong is the first response.
    pub(crate) fn open(&mut self, now: Instant) -> bool {
        let State::Closed { until } = self.state else { return false };
        if until > now {
            return false;
        }
        self.state = State::Open(self.subscriber.pull(self.first.clone()));
        self.spoke_at = now;
        true
    }

    /// What happens next on the stream; responses only if they are wanted.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn heard(&mut self, wanted: Wanted) -> Heard {
        let is_waiting = self.is_waiting();
        let wants_responses = wanted == Wanted::Responses;
        let State::Open(pull) = &mut self.state else { return std::future::pending().await };
        if !wants_responses && !is_waiting {
            return std::future::pending().await;
        }
        let closed = || Err(Status::unavailable("the service has closed the stream"));
        tokio::select! {
            biased;
            response = pull.responses.next(), if wants_responses => {
                Heard::Response(Box::new(response.unwrap_or_else(closed)))
            }
            permit = pull.requests.reserve(), if is_waiting => match permit {
                Ok(_) => Heard::Room,
                Err(_) => Heard::Response(Box::new(closed())),
            }
        }
    }

    /// Something came: the stream works.
    pub(crate) fn worked(&mut self) {
        self.backoff.worked();
    }

    /// The stream has ended.
    pub(crate) fn ended(&mut self, now: Instant, random: &mut Random) {
        self.state = State::Closed { until: now + self.backoff.failed(random) };
        // Everything that is held is renewed when the stream opens again.
        self.renewals.clear();
    }

    /// Whether the stream has not worked for several tries.
    pub(crate) const fn is_failing(&self) -> bool {
        self.backoff.tries() >= 3
    }

    /// Whether everything has been said.
    pub(crate) const fn is_settled(&self) -> bool {
        self.acknowledgements.is_empty()
    }

    pub(crate) fn acknowledge(&mut self, ids: Vec<String>) {
        self.acknowledgements.extend(ids);
    }

    pub(crate) fn renew(&mut self, ids: Vec<String>) {
        self.renewals.extend(ids);
    }

    /// Whether something waits for room on the stream.
    fn is_waiting(&self) -> bool {
        self.is_open() && !(self.acknowledgements.is_empty() && self.renewals.is_empty())
    }

    /// Writes what fits. Acknowledgements leave in order, one request after the other (C7).
    pub(crate) fn flush(&mut self, now: Instant) {
        let State::Open(pull) = &mut self.state else { return };
        loop {
            let acknowledged = self.acknowledgements.len().min(IDS_MAX);
            let renewed = self.renewals.len().min(IDS_MAX - acknowledged);
            if acknowledged + renewed == 0 && self.spoke_at + KEEPALIVE > now {
                return;
            }
            let permit = match pull.requests.try_reserve() {
                Ok(permit) => permit,
                // The end of the stream is told by its responses.
                Err(TrySendError::Full(()) | TrySendError::Closed(())) => {
                    self.spoke_at = now;
                    return;
                }
            };
            permit.send(StreamingPullRequest {
                ack_ids: self.acknowledgements.drain(..acknowledged).collect(),
                modify_deadline_ack_ids: self.renewals.drain(..renewed).collect(),
                modify_deadline_seconds: vec![LEASE_SECONDS; renewed],
                ..StreamingPullRequest::default()
            });
            self.spoke_at = now;
        }
    }

    /// Says what is left to say, hands back what is not wanted, and closes. What cannot be said in
    /// time is said by leases that run out.
    pub(crate) async fn close(&mut self, returned: Vec<String>) {
        let closed = State::Closed { until: Instant::now() };
        let State::Open(pull) = std::mem::replace(&mut self.state, closed) else { return };
        let StreamingPull { requests, mut responses } = pull;
        let acknowledgements = std::mem::take(&mut self.acknowledgements);
        let last = acknowledgements.chunks(IDS_MAX).map(acknowledging);
        let last = last.chain(returned.chunks(IDS_MAX).map(returning));
        let goodbye = async {
            say(requests, last).await;
            // The service answers the end of our half with the end of its own. What it has delivered until then
            // nobody has read: it came while we drained, or is what we have just handed back.
            let mut unread = Vec::new();
            while let Some(Ok(response)) = responses.next().await {
                unread.extend(response.messages.into_iter().map(|received| received.ack_id));
            }
            drop(responses);
            for ids in unread.chunks(IDS_MAX) {
                self.subscriber.hand_back(&self.first.subscription, ids.to_vec()).await?;
            }
            Ok::<(), Status>(())
        };
        match tokio::time::timeout(GOODBYE, goodbye).await {
            Ok(Ok(())) => {}
            Ok(Err(status)) => tracing::debug!(%status, "what came last could not be handed back"),
            Err(_) => tracing::debug!("the stream did not end in time"),
        }
    }
}

/// Sends these, and ends our half of the stream.
async fn say(
    requests: Sender<StreamingPullRequest>,
    all: impl Iterator<Item = StreamingPullRequest>,
) {
    for request in all {
        if requests.send(request).await.is_err() {
            return;
        }
    }
}

fn acknowledging(ids: &[String]) -> StreamingPullRequest {
    StreamingPullRequest { ack_ids: ids.to_vec(), ..StreamingPullRequest::default() }
}

/// A lease of no time: for whoever comes next.
fn returning(ids: &[String]) -> StreamingPullRequest {
    StreamingPullRequest {
        modify_deadline_ack_ids: ids.to_vec(),
        modify_deadline_seconds: vec![0; ids.len()],
        ..StreamingPullRequest::default()
    }
}

/// What a person has to do about the end of a stream; `None` when it passes by itself.
pub(crate) fn operator_hint(status: &Status, subscription: &str) -> Option<String> {
    match status.code() {
        Code::NotFound => Some(format!(
            "subscription {subscription} does not exist: correct it, or create it with `walrelay consumer init … --create`"
        )),
        Code::PermissionDenied => Some(format!(
            "let the service account pull: roles/pubsub.subscriber on {subscription}"
        )),
        Code::Unauthenticated => Some(
            "give the consumer credentials: attach a service account, or set GOOGLE_APPLICATION_CREDENTIALS".into(),
        ),
        Code::FailedPrecondition => Some(format!(
            "{subscription} cannot be pulled: it may be a push, BigQuery or Cloud Storage subscription, or detached"
        )),
        Code::InvalidArgument | Code::Unimplemented => {
            Some("check --subscription and --endpoint".into())
        }
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::AlreadyExists
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::OutOfRange
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => None,
    }
}

/// The code as the manual writes it.
pub(crate) fn code_name(status: &Status) -> &'static str {
    walrelay_pubsub::classify(status.code(), "").code
}
