//! The stream against a scripted service over bare HTTP/2.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use walrelay_pubsub::Endpoint;

use super::*;

/// Short enough for a test, and long enough for a busy machine.
const TIMES: PingTimes = PingTimes {
    every: Duration::from_millis(100),
    answered_within: Duration::from_millis(500),
    ended_within: Duration::from_millis(500),
};
/// The limit of a test.
const DEADLINE: Duration = Duration::from_secs(30);

/// The behaviour of the service on one stream.
#[derive(Debug, Clone, Copy)]
enum Behaviour {
    /// Answers every ping, as the service does.
    AnswersPings,
    /// Answers the first ping only.
    AnswersOnce,
    /// Answers no ping, and ends the stream after our half. It sends even its headers only then.
    IgnoresPings,
    /// Never answers.
    Silent,
    /// Announces the end at the first ping.
    EndsAnnounced,
    /// Cuts the connection at the second ping.
    Cuts,
}

/// A stream that was opened: the number of its connection, and its client id.
type Opened = (usize, String);

#[derive(Debug, Default)]
struct Seen {
    opened: Vec<Opened>,
    pings: usize,
}

struct Service {
    stream: PullStream,
    random: Random,
    seen: Arc<Mutex<Seen>>,
    _serving: JoinSet<()>,
}

impl Service {
    /// Starts a service that treats each stream as the script says. The last word holds for all
    /// later streams.
    async fn start(script: &'static [Behaviour]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, script, Arc::clone(&seen)));
        let endpoint = Endpoint::emulator(&address).expect("an endpoint");
        let subscriber = Subscriber::connect(&endpoint).expect("a client");
        let mut random = Random::new(1);
        let first = StreamingPullRequest::default();
        let stream = PullStream::new(subscriber, first, "billing", &mut random);
        let stream = PullStream { times: TIMES, ..stream };
        Self { stream, random, seen, _serving: serving }
    }

    /// Waits for the next event, and does the work of the loop meanwhile.
    async fn next(&mut self, wanted: Wanted) -> StreamEvent {
        let next = async {
            loop {
                let now = Instant::now();
                self.stream.open(now);
                self.stream.flush(now);
                let wake_at = self.stream.wake_at();
                tokio::select! {
                    event = self.stream.heard(wanted) => {
                        match &event {
                            StreamEvent::Ended(end) => {
                                self.stream.ended(end, Instant::now(), &mut self.random);
                            }
                            StreamEvent::Response(_) => self.stream.worked(),
                            StreamEvent::Room => continue,
                        }
                        return event;
                    }
                    () = until(wake_at), if wake_at.is_some() => {}
                }
            }
        };
        tokio::time::timeout(DEADLINE, next).await.expect("an event on the stream")
    }

    async fn responds(&mut self) {
        let event = self.next(Wanted::Responses).await;
        assert!(matches!(event, StreamEvent::Response(_)), "{event:?}");
    }

    async fn end(&mut self) -> StreamEnd {
        match self.next(Wanted::Responses).await {
            StreamEvent::Ended(end) => end,
            other @ (StreamEvent::Response(_) | StreamEvent::Room) => panic!("no end: {other:?}"),
        }
    }

    fn opened(&self) -> Vec<Opened> {
        self.seen.lock().expect("a sound lock").opened.clone()
    }
}

async fn serve(listener: TcpListener, script: &'static [Behaviour], seen: Arc<Mutex<Seen>>) {
    let mut connections = JoinSet::new();
    for number in 0.. {
        let Ok((tcp, _)) = listener.accept().await else { return };
        connections.spawn(serve_one(tcp, number, script, Arc::clone(&seen)));
    }
}

async fn serve_one(
    tcp: TcpStream,
    number: usize,
    script: &'static [Behaviour],
    seen: Arc<Mutex<Seen>>,
) {
    let Ok(mut connection) = h2::server::handshake(tcp).await else { return };
    let cut = Arc::new(Notify::new());
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            () = cut.notified() => return,
            accepted = connection.accept() => {
                let Some(Ok((request, respond))) = accepted else { return };
                let (seen, cut) = (Arc::clone(&seen), Arc::clone(&cut));
                streams.spawn(answer(request, respond, (number, script), seen, cut));
            }
        }
    }
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    (connection, script): (usize, &'static [Behaviour]),
    seen: Arc<Mutex<Seen>>,
    cut: Arc<Notify>,
) {
    let mut requests = Requests { body: request.into_body(), buffer: BytesMut::new() };
    let Some(first) = requests.next().await else { return };
    let behaviour = {
        let mut seen = seen.lock().expect("a sound lock");
        seen.opened.push((connection, first.client_id));
        let last = script.len() - 1;
        script[(seen.opened.len() - 1).min(last)]
    };
    let mut replies = None;
    let mut pings = 0;
    while let Some(next) = requests.next().await {
        if next != StreamingPullRequest::default() {
            continue;
        }
        pings += 1;
        seen.lock().expect("a sound lock").pings += 1;
        match behaviour {
            Behaviour::AnswersPings => respond_empty(&mut respond, &mut replies),
            Behaviour::AnswersOnce | Behaviour::Cuts if pings == 1 => {
                respond_empty(&mut respond, &mut replies);
            }
            Behaviour::EndsAnnounced => {
                drop(respond.send_response(ended(14), true));
                return;
            }
            Behaviour::Cuts => return cut.notify_one(),
            Behaviour::AnswersOnce | Behaviour::IgnoresPings | Behaviour::Silent => {}
        }
    }
    match (behaviour, replies) {
        (Behaviour::Silent | Behaviour::AnswersOnce, _) => std::future::pending().await,
        (_, Some(mut replies)) => drop(replies.send_trailers(ended(0).headers().clone())),
        (_, None) => drop(respond.send_response(ended(0), true)),
    }
}

/// Returns headers that are also trailers.
fn ended(code: u16) -> Response<()> {
    let mut response = Response::new(());
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from(code));
    response
}

fn respond_empty(respond: &mut SendResponse<Bytes>, replies: &mut Option<SendStream<Bytes>>) {
    let replies = replies.get_or_insert_with(|| {
        let mut response = Response::new(());
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert("content-type", grpc);
        respond.send_response(response, false).expect("an open stream")
    });
    // An empty message in its frame.
    replies.send_data(Bytes::from_static(&[0; 5]), false).expect("an open stream");
}

struct Requests {
    body: RecvStream,
    buffer: BytesMut,
}

impl Requests {
    async fn next(&mut self) -> Option<StreamingPullRequest> {
        loop {
            let length = match self.buffer[..] {
                [_, a, b, c, d, ..] => Some(u32::from_be_bytes([a, b, c, d]) as usize),
                _ => None,
            };
            if let Some(length) = length.filter(|length| self.buffer.len() >= 5 + length) {
                self.buffer.advance(5);
                let frame = self.buffer.split_to(length);
                return Some(StreamingPullRequest::decode(frame).expect("a request"));
            }
            let chunk = self.body.data().await?.ok()?;
            self.body.flow_control().release_capacity(chunk.len()).expect("its own bytes");
            self.buffer.extend_from_slice(&chunk);
        }
    }
}

#[tokio::test]
async fn a_stream_without_an_answer_is_opened_again_on_another_connection_as_another_client() {
    let mut service =
        Service::start(&[Behaviour::Silent, Behaviour::AnswersOnce, Behaviour::AnswersPings]).await;
    // Opening hangs.
    assert!(matches!(service.end().await, StreamEnd::Silent));
    assert!(!service.stream.has_answered());
    // The stream is lost after it has worked.
    service.responds().await;
    assert!(service.stream.has_answered());
    assert!(matches!(service.end().await, StreamEnd::Silent));
    service.responds().await;
    let opened = service.opened();
    let [(one, first), (two, second), (three, third)] = &opened[..] else { panic!("{opened:?}") };
    assert!(one != two && two != three, "{opened:?}");
    assert!(first != second && second != third, "{opened:?}");
}

#[tokio::test]
async fn a_stream_is_pinged_at_its_opening_and_again_and_again_also_when_it_is_busy() {
    let mut service = Service::start(&[Behaviour::AnswersPings]).await;
    for _ in 0..5 {
        service.stream.acknowledge(vec!["a".to_owned()]);
        service.responds().await;
    }
    let seen = service.seen.lock().expect("a sound lock");
    assert_eq!(seen.opened.len(), 1);
    assert!(seen.pings >= 5, "{} pings for 5 responses", seen.pings);
}

#[tokio::test]
async fn an_emulator_older_than_the_pings_works_and_is_no_failing_stream() {
    let mut service = Service::start(&[Behaviour::IgnoresPings]).await;
    for _ in 0..4 {
        assert!(matches!(service.end().await, StreamEnd::AsAsked));
        assert!(service.stream.has_answered() && !service.stream.is_failing());
    }
    let opened = service.opened();
    assert!(opened.iter().all(|it| *it == opened[0]), "the same client: {opened:?}");
}

#[tokio::test]
async fn the_client_id_is_new_only_after_a_connection_that_broke() {
    let mut service = Service::start(&[
        Behaviour::EndsAnnounced,
        Behaviour::Cuts,
        Behaviour::EndsAnnounced,
        Behaviour::AnswersPings,
    ])
    .await;
    assert!(matches!(service.end().await, StreamEnd::Announced(_)));
    service.responds().await;
    assert!(matches!(service.end().await, StreamEnd::Broken(_)));
    assert!(matches!(service.end().await, StreamEnd::Announced(_)));
    service.responds().await;
    let ids: Vec<String> = service.opened().into_iter().map(|(_, id)| id).collect();
    assert!(ids[0].starts_with("walrelay-billing-"), "{ids:?}");
    assert_eq!((&ids[0], &ids[2]), (&ids[1], &ids[3]));
    assert_ne!(ids[1], ids[2]);
}

#[tokio::test]
async fn silence_counts_only_while_we_read() {
    let mut service = Service::start(&[Behaviour::AnswersOnce]).await;
    service.responds().await;
    let paused = tokio::time::timeout(TIMES.answered_within * 4, service.next(Wanted::Nothing));
    assert!(paused.await.is_err(), "the stream ended while nobody read it");
    assert!(matches!(service.end().await, StreamEnd::Silent));
    assert_eq!(service.opened().len(), 1);
}
