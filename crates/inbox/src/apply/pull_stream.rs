//! The stream to Pub/Sub, open or closed until a time.

use std::time::Duration;

use futures_util::StreamExt as _;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::StreamingPullRequest;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::Instant;
use tonic::{Code, Status};
use walrelay_core::{Backoff, CallCode, Random};
use walrelay_errors::Code as ErrorCode;
use walrelay_pubsub::{Delivered, StreamingPull, Subscriber};

use crate::settings::Settings;

/// The lease on the stream. Renewals may be seconds late, and another consumer soon receives the
/// messages of a dead one.
pub(crate) const LEASE: Duration = Duration::from_secs(20);
const LEASE_SECONDS: i32 = 20;

/// The ids in one request. A request may have 512 KiB, and an id has about 200 bytes.
const IDS_MAX: usize = 1_000;
/// The interval of pings, also on a busy stream, as in the official clients.
const PING_EVERY: Duration = Duration::from_secs(30);
/// The wait before a ping for which the stream had no capacity is sent again.
const PING_RETRY: Duration = Duration::from_secs(1);
/// The time that the service has to take the last requests.
const STREAM_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The wait before the stream is opened again.
const REOPEN_WAIT: Backoff =
    Backoff { base: Duration::from_millis(100), cap: Duration::from_secs(30) };

#[derive(Debug)]
enum State {
    Open(StreamingPull),
    Closed { until: Instant },
}

/// The responses that the loop can take from the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Any response.
    Responses,
    /// No response, because the consumer has no capacity.
    Nothing,
}

/// An event on the stream.
#[derive(Debug)]
pub(crate) enum StreamEvent {
    /// A response. An error is the end of the stream.
    Response(Box<Result<Delivered, Status>>),
    /// The stream has capacity for queued requests.
    Room,
}

/// The stream with its queued requests.
#[derive(Debug)]
pub(crate) struct PullStream {
    subscriber: Subscriber,
    first: StreamingPullRequest,
    state: State,
    /// Consecutive streams that ended without a response.
    failures: u32,
    /// Acknowledgements to send, in order.
    acknowledgements: Vec<String>,
    renewals: Vec<String>,
    /// The time of the next ping: an empty request, which the service answers.
    ping_at: Instant,
    /// Whether the service has answered on the open stream.
    has_answered: bool,
}

/// Returns the first request of every stream of a process.
pub(crate) fn first_request(
    settings: &Settings,
    subscription: &str,
    process: u32,
) -> StreamingPullRequest {
    let maximum = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    StreamingPullRequest {
        subscription: subscription.to_owned(),
        // The client id is equal in every stream of this process, so that the service keeps keys
        // here. With version 1, the service sends a keepalive on a quiet stream every half minute.
        protocol_version: 1,
        client_id: format!("walrelay-{}-{process:08x}", settings.consumer),
        max_outstanding_messages: maximum(settings.messages_held()),
        max_outstanding_bytes: maximum(settings.max_in_flight_bytes),
        ..StreamingPullRequest::default()
    }
}

impl PullStream {
    pub(crate) fn new(subscriber: Subscriber, first: StreamingPullRequest) -> Self {
        let first = StreamingPullRequest { stream_ack_deadline_seconds: LEASE_SECONDS, ..first };
        let now = Instant::now();
        Self {
            subscriber,
            first,
            state: State::Closed { until: now },
            failures: 0,
            acknowledgements: Vec::new(),
            renewals: Vec::new(),
            ping_at: now,
            has_answered: false,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Returns whether the service has answered on the open stream.
    pub(crate) const fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Returns the time of the next ping, or of the next attempt to open the stream.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        match self.state {
            State::Open(_) => Some(self.ping_at),
            State::Closed { until } => Some(until),
        }
    }

    /// Opens a closed stream if its time has come. Returns whether it did. An error appears only in
    /// the first response.
    pub(crate) fn open(&mut self, now: Instant) -> bool {
        let State::Closed { until } = self.state else { return false };
        if until > now {
            return false;
        }
        self.state = State::Open(self.subscriber.pull(self.first.clone()));
        // The service may send even its headers only with its first response.
        self.ping_at = now;
        self.has_answered = false;
        true
    }

    /// Waits for the next event on the stream. Responses are read only if they are wanted.
    ///
    /// # Cancel safety
    ///
    /// No data is lost if the future is dropped.
    pub(crate) async fn heard(&mut self, wanted: Wanted) -> StreamEvent {
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
                StreamEvent::Response(Box::new(response.unwrap_or_else(closed)))
            }
            permit = pull.requests.reserve(), if is_waiting => match permit {
                Ok(_) => StreamEvent::Room,
                Err(_) => StreamEvent::Response(Box::new(closed())),
            }
        }
    }

    /// Notes a response, which proves that the stream works.
    pub(crate) fn worked(&mut self) {
        self.failures = 0;
        self.has_answered = true;
    }

    /// Closes the stream until the back-off is over.
    pub(crate) fn ended(&mut self, now: Instant, random: &mut Random) {
        self.failures = self.failures.saturating_add(1);
        let wait = REOPEN_WAIT.delay(self.failures, random.next_u32());
        self.state = State::Closed { until: now + wait };
        // All held leases are renewed when the stream opens again.
        self.renewals.clear();
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
        self.is_open() && !(self.acknowledgements.is_empty() && self.renewals.is_empty())
    }

    /// Sends as many requests as fit. Acknowledgements leave in order, one request after the other
    /// (C7).
    pub(crate) fn flush(&mut self, now: Instant) {
        let State::Open(pull) = &mut self.state else { return };
        loop {
            let acknowledged = self.acknowledgements.len().min(IDS_MAX);
            let renewed = self.renewals.len().min(IDS_MAX - acknowledged);
            let is_ping = self.ping_at <= now;
            if acknowledged + renewed == 0 && !is_ping {
                return;
            }
            let permit = match pull.requests.try_reserve() {
                Ok(permit) => permit,
                // The responses report the end of the stream.
                Err(TrySendError::Full(()) | TrySendError::Closed(())) => {
                    self.ping_at = self.ping_at.max(now + PING_RETRY);
                    return;
                }
            };
            if is_ping {
                self.ping_at = now + PING_EVERY;
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
        let State::Open(pull) = std::mem::replace(&mut self.state, closed) else { return };
        let StreamingPull { requests, mut responses } = pull;
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
                unread.extend(response.messages.into_iter().map(|received| received.ack_id));
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

/// Returns the error code for the end of a stream.
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
