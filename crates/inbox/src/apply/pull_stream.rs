//! The stream to Pub/Sub, open or closed until a time.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::StreamingPullRequest;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status};
use walrelay_core::{Backoff, CallCode, Random};
use walrelay_errors::Code as ErrorCode;
use walrelay_pubsub::{Delivered, StreamingPull, Subscriber, is_announced_end};

use crate::apply::pings::{PingTimes, Pings};
use crate::settings::{LEASE_SECONDS, Settings};

/// The ids in one request. A request may have 512 KiB, and an id has about 200 bytes.
const IDS_MAX: usize = 1_000;
/// The time that the service has to take the last requests.
const STREAM_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The wait before the stream is opened again.
const REOPEN_WAIT: Backoff =
    Backoff { base: Duration::from_millis(100), cap: Duration::from_secs(30) };

#[derive(Debug)]
enum State {
    Open(OpenStream),
    Closed { until: Instant },
}

struct OpenStream {
    pings: Pings,
    half: OwnHalf,
    responses: BoxStream<'static, Result<Delivered, Status>>,
}

/// Our half of the stream.
#[derive(Debug)]
enum OwnHalf {
    Open(Sender<StreamingPullRequest>),
    /// The service has answered no ping. It must end the stream until this time.
    Closed {
        until: Instant,
    },
}

/// The responses that the loop can take from the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Responses,
    /// No response, because the consumer has no capacity.
    Nothing,
}

#[derive(Debug)]
pub(crate) enum StreamEvent {
    Response(Box<Delivered>),
    Ended(StreamEnd),
    /// The stream has capacity for queued requests.
    Room,
}

#[derive(Debug)]
pub(crate) enum StreamEnd {
    /// The service announced the end, after all that it had sent.
    Announced(Status),
    /// The connection broke, and messages may be lost in transit.
    Broken(Status),
    /// The service did not answer, and messages may be lost in transit.
    Silent,
    /// The service answered no ping, and ended the stream when we closed our half. An emulator that
    /// is older than the pings does this.
    AsAsked,
}

/// The stream with its queued requests.
#[derive(Debug)]
pub(crate) struct PullStream {
    subscriber: Subscriber,
    first: StreamingPullRequest,
    /// The part of the client id that stays.
    name: String,
    times: PingTimes,
    state: State,
    /// Consecutive streams that ended without a response.
    failures: u32,
    /// Whether the service has answered since the last stream that failed.
    has_answered: bool,
    /// Acknowledgements to send, in order.
    acknowledgements: Vec<String>,
    renewals: Vec<String>,
}

/// Returns the first request of every stream, without a client id.
pub(crate) fn first_request(settings: &Settings, subscription: &str) -> StreamingPullRequest {
    let maximum = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    StreamingPullRequest {
        subscription: subscription.to_owned(),
        // With version 1, the service sends a keepalive on a quiet stream every half minute, and
        // expects pings.
        protocol_version: 1,
        stream_ack_deadline_seconds: LEASE_SECONDS,
        max_outstanding_messages: maximum(settings.messages_held()),
        max_outstanding_bytes: maximum(settings.max_in_flight_bytes),
        ..StreamingPullRequest::default()
    }
}

impl PullStream {
    /// Creates a closed stream of the consumer `name`.
    pub(crate) fn new(
        subscriber: Subscriber,
        first: StreamingPullRequest,
        name: &str,
        random: &mut Random,
    ) -> Self {
        let mut this = Self {
            subscriber,
            first,
            name: format!("walrelay-{name}"),
            times: PingTimes::DEFAULT,
            state: State::Closed { until: Instant::now() },
            failures: 0,
            has_answered: false,
            acknowledgements: Vec::new(),
            renewals: Vec::new(),
        };
        this.renew_client_id(random);
        this
    }

    /// Makes the service forget what it believes to have delivered here. It would send later messages
    /// of a key before those that were lost in transit.
    fn renew_client_id(&mut self, random: &mut Random) {
        self.first.client_id = format!("{}-{:08x}", self.name, random.next_u32());
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    pub(crate) const fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Returns the time of the next ping, or of the next attempt to open the stream.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        match &self.state {
            State::Open(OpenStream { half: OwnHalf::Open(_), pings, .. }) => Some(pings.next()),
            State::Open(_) => None,
            State::Closed { until } => Some(*until),
        }
    }

    /// Opens a closed stream if its time has come. Returns whether it did. An error appears only in
    /// the first response.
    pub(crate) fn open(&mut self, now: Instant) -> bool {
        let State::Closed { until } = self.state else { return false };
        if until > now {
            return false;
        }
        let StreamingPull { requests, responses } = self.subscriber.pull(self.first.clone());
        let (pings, half) = (Pings::new(self.times, now), OwnHalf::Open(requests));
        self.state = State::Open(OpenStream { pings, half, responses });
        true
    }

    /// Waits for the next event on the stream. Responses are read only if they are wanted. The first
    /// one is always read, because only reading opens the stream.
    ///
    /// # Cancel safety
    ///
    /// No data is lost if the future is dropped.
    pub(crate) async fn heard(&mut self, wanted: Wanted) -> StreamEvent {
        let is_waiting = self.is_waiting();
        let State::Open(open) = &mut self.state else { return std::future::pending().await };
        let OpenStream { pings, half, responses } = open;
        let reads = wanted == Wanted::Responses || !pings.has_response();
        if !reads {
            let now = Instant::now();
            pings.not_reading(now);
            if let OwnHalf::Closed { until } = half {
                *until = pings.end_at(now);
            }
            if !is_waiting {
                return std::future::pending().await;
            }
        }
        loop {
            let (requests, silent_at) = match &*half {
                OwnHalf::Open(requests) => (Some(requests), pings.silent_at()),
                OwnHalf::Closed { until } => (None, Some(*until)),
            };
            let is_closing = requests.is_none();
            let closed = || Status::unavailable("the service has closed the stream");
            tokio::select! {
                biased;
                response = responses.next(), if reads => {
                    return match response {
                        Some(Ok(response)) => {
                            pings.answered();
                            StreamEvent::Response(Box::new(response))
                        }
                        Some(Err(status)) => StreamEvent::Ended(StreamEnd::of(status)),
                        None if is_closing => StreamEvent::Ended(StreamEnd::AsAsked),
                        None => StreamEvent::Ended(StreamEnd::Announced(closed())),
                    };
                }
                has_room = room(requests), if is_waiting => {
                    return match has_room {
                        true => StreamEvent::Room,
                        // Responses that nobody has read may be in our buffers.
                        false => StreamEvent::Ended(StreamEnd::Broken(closed())),
                    };
                }
                () = until(silent_at), if reads => match half {
                    OwnHalf::Closed { .. } => return StreamEvent::Ended(StreamEnd::Silent),
                    // A live service ends its half after ours.
                    OwnHalf::Open(_) => *half = OwnHalf::Closed { until: pings.end_at(Instant::now()) },
                },
            }
        }
    }

    /// Notes a response, which proves that the stream works.
    pub(crate) fn worked(&mut self) {
        self.failures = 0;
        self.has_answered = true;
    }

    /// Closes the stream, until the back-off is over unless the service works.
    pub(crate) fn ended(&mut self, end: &StreamEnd, now: Instant, random: &mut Random) {
        // All held leases are renewed when the stream opens again.
        self.renewals.clear();
        if matches!(end, StreamEnd::AsAsked) {
            self.worked();
            self.state = State::Closed { until: now };
            return;
        }
        self.has_answered = false;
        self.failures = self.failures.saturating_add(1);
        let wait = REOPEN_WAIT.delay(self.failures, random.next_u32());
        self.state = State::Closed { until: now + wait };
        match end {
            StreamEnd::Announced(_) | StreamEnd::AsAsked => {}
            StreamEnd::Broken(_) => self.renew_client_id(random),
            StreamEnd::Silent => {
                self.renew_client_id(random);
                // The same front end may lose the next stream, too.
                self.subscriber = self.subscriber.reconnected();
            }
        }
    }

    /// Returns whether the stream has failed several times in a row.
    pub(crate) const fn is_failing(&self) -> bool {
        self.failures >= 3
    }

    /// Returns whether all acknowledgements are sent.
    pub(crate) const fn is_settled(&self) -> bool {
        self.acknowledgements.is_empty()
    }

    pub(crate) fn acknowledge(&mut self, ids: Vec<String>) {
        self.acknowledgements.extend(ids);
    }

    pub(crate) fn renew(&mut self, ids: Vec<String>) {
        self.renewals.extend(ids);
    }

    /// Returns whether requests wait for capacity on the stream.
    fn is_waiting(&self) -> bool {
        let is_open = matches!(self.state, State::Open(OpenStream { half: OwnHalf::Open(_), .. }));
        is_open && !(self.acknowledgements.is_empty() && self.renewals.is_empty())
    }

    /// Sends as many requests as fit. Acknowledgements leave in order, one request after the other
    /// (C7).
    pub(crate) fn flush(&mut self, now: Instant) {
        let State::Open(OpenStream { pings, half: OwnHalf::Open(requests), .. }) = &mut self.state
        else {
            return;
        };
        loop {
            let acknowledged = self.acknowledgements.len().min(IDS_MAX);
            let renewed = self.renewals.len().min(IDS_MAX - acknowledged);
            let is_ping = pings.next() <= now;
            if acknowledged + renewed == 0 && !is_ping {
                return;
            }
            let permit = match requests.try_reserve() {
                Ok(permit) => permit,
                // The responses report the end of the stream.
                Err(TrySendError::Full(()) | TrySendError::Closed(())) if is_ping => {
                    return pings.delayed(now);
                }
                Err(TrySendError::Full(()) | TrySendError::Closed(())) => return,
            };
            if is_ping {
                pings.sent(now);
                permit.send(StreamingPullRequest::default());
                continue;
            }
            permit.send(StreamingPullRequest {
                ack_ids: self.acknowledgements.drain(..acknowledged).collect(),
                modify_deadline_ack_ids: self.renewals.drain(..renewed).collect(),
                modify_deadline_seconds: vec![LEASE_SECONDS; renewed],
                ..StreamingPullRequest::default()
            });
        }
    }

    /// Sends the remaining acknowledgements, nacks the returned messages, and closes the stream. If
    /// time runs out, the leases of the other messages expire.
    pub(crate) async fn close(&mut self, returned: Vec<String>) {
        let closed = State::Closed { until: Instant::now() };
        let State::Open(open) = std::mem::replace(&mut self.state, closed) else { return };
        let OpenStream { half: OwnHalf::Open(requests), mut responses, .. } = open else { return };
        let acknowledgements = std::mem::take(&mut self.acknowledgements);
        let last = acknowledgements.chunks(IDS_MAX).map(acknowledging);
        let last = last.chain(returned.chunks(IDS_MAX).map(returning));
        let goodbye = async {
            say(requests, last).await;
            // The service answers the end of our half with the end of its own. Nobody has read the
            // messages delivered until then. They arrived during the drain, or are redeliveries of
            // the nacked messages.
            let mut unread = Vec::new();
            while let Some(Ok(response)) = responses.next().await {
                unread.extend(response.messages().flatten().map(|received| received.ack_id));
            }
            drop(responses);
            for ids in unread.chunks(IDS_MAX) {
                self.subscriber.hand_back(&self.first.subscription, ids.to_vec()).await?;
            }
            Ok::<(), Status>(())
        };
        match tokio::time::timeout(STREAM_CLOSE_TIMEOUT, goodbye).await {
            Ok(Ok(())) => {}
            Ok(Err(status)) => tracing::debug!(%status, "what came last could not be handed back"),
            Err(_) => tracing::debug!("the stream did not end in time"),
        }
    }
}

impl StreamEnd {
    fn of(status: Status) -> Self {
        match is_announced_end(&status) {
            true => Self::Announced(status),
            false => Self::Broken(status),
        }
    }

    pub(crate) fn status(self) -> Status {
        match self {
            Self::Announced(status) | Self::Broken(status) => status,
            Self::Silent => Status::deadline_exceeded(SILENT),
            Self::AsAsked => Status::ok("the service has closed the stream"),
        }
    }
}

/// The report of a service that does not answer.
const SILENT: &str = "no answer on the stream, which is opened again";

impl std::fmt::Debug for OpenStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pings, half, responses: _ } = self;
        f.debug_struct("OpenStream")
            .field("pings", pings)
            .field("half", half)
            .finish_non_exhaustive()
    }
}

/// Waits until the stream has capacity for a request. Returns false if the stream has ended.
async fn room(requests: Option<&Sender<StreamingPullRequest>>) -> bool {
    match requests {
        Some(requests) => requests.reserve().await.is_ok(),
        None => std::future::pending().await,
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Sends the requests, and ends our half of the stream.
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

/// Returns a nack: a request that sets the leases to zero, so that another consumer receives the
/// messages.
fn returning(ids: &[String]) -> StreamingPullRequest {
    StreamingPullRequest {
        modify_deadline_ack_ids: ids.to_vec(),
        modify_deadline_seconds: vec![0; ids.len()],
        ..StreamingPullRequest::default()
    }
}

/// Returns the fix for the end of a stream. `None` if the cause passes by itself.
pub(crate) fn operator_fix(status: &Status, subscription: &str) -> Option<String> {
    match status.code() {
        Code::NotFound => Some(format!(
            "subscription {subscription} does not exist: correct its name, or create it"
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
            Some("check the names of the subscription and the endpoint".into())
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

pub(crate) fn error_code(status: &Status) -> ErrorCode {
    let code = walrelay_pubsub::call_code(status.code());
    match code == CallCode::NotFound {
        true => ErrorCode::SubscriptionNotFound,
        false => walrelay_pubsub::code_of_call(code),
    }
}

/// Returns the code as the manual spells it.
pub(crate) fn code_name(status: &Status) -> &'static str {
    walrelay_pubsub::call_code(status.code()).as_str()
}

#[cfg(test)]
mod tests;
