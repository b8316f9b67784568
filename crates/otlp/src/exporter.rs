//! The thread that talks to the collector.

use std::fmt;
use std::io;
use std::thread;
use std::time::Duration;

use opentelemetry_sdk::trace::SpanData;
use prometheus_client::metrics::counter::Counter;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::{oneshot, watch};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep, timeout};

use crate::collector::{Collector, NotTaken, SetUpError};
use crate::settings::Settings;
use crate::spans::Spans;

/// Spans that wait to be sent. Sent once a second, it is also how many a second there are at most: so
/// that thousands of small requests a second do not cost what their spans would.
const QUEUE: usize = 2_048;
const SPANS_INTERVAL: Duration = Duration::from_secs(1);
/// Spans in one request to the collector: OpenTelemetry's default.
const BATCH: usize = 512;
/// How long what is left may take at the end. A platform that gives 10 s has spent 7 s of them on the
/// rows.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes the text of `/metrics`.
pub type Figures = Box<dyn Fn() -> Result<String, fmt::Error> + Send>;

/// Telemetry that is being sent. Ends without sending what is left when it is dropped.
#[derive(Debug)]
pub struct Exporter {
    spans: Option<Spans>,
    stop: watch::Sender<bool>,
    ended: oneshot::Receiver<()>,
}

/// Why nothing can be sent.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings.
    #[error("{0}")]
    Settings(String),
    /// A thread or its runtime.
    #[error("cannot start the thread that sends telemetry")]
    Thread(#[from] io::Error),
}

impl Exporter {
    /// Starts the thread. Nothing is connected before there is something to send.
    ///
    /// `dropped` counts spans that were wanted and are not sent.
    ///
    /// # Errors
    ///
    /// The certificate cannot be used, or there is no thread to be had.
    pub async fn start(
        settings: Settings,
        figures: Figures,
        dropped: Counter,
    ) -> Result<Self, StartError> {
        let (sender, queue) = channel(QUEUE);
        let sampling = settings.sampling.clone().filter(|sampling| !sampling.is_never());
        let spans = sampling.map(|sampling| Spans::new(sampling, sender, dropped.clone()));
        let (stop, stopping) = watch::channel(false);
        let (tell_start, started) = oneshot::channel();
        let (tell_end, ended) = oneshot::channel();
        thread::Builder::new().name("telemetry".to_owned()).spawn(move || {
            // Nobody waits any more when the process is ended the hard way.
            match Sending::new(settings, (queue, figures, dropped)) {
                Ok((runtime, sending)) => {
                    tell_start.send(Ok(())).ok();
                    run(runtime, sending, stopping);
                    tell_end.send(()).ok();
                }
                Err(error) => drop(tell_start.send(Err(error)).ok()),
            }
        })?;
        match started.await {
            Ok(started) => started.map(|()| Self { spans, stop, ended }),
            Err(_) => Err(StartError::Thread(io::Error::other("it has ended"))),
        }
    }

    /// What makes spans; none when they are not wanted.
    #[must_use]
    pub fn spans(&self) -> Option<&Spans> {
        self.spans.as_ref()
    }

    /// Sends what is left, for two seconds at most.
    pub async fn finish(self) {
        let Self { spans, stop, ended } = self;
        drop(spans);
        stop.send_replace(true);
        // The thread keeps the time itself; this is for one that the machine does not let run.
        timeout(2 * FLUSH_TIMEOUT, ended).await.ok();
    }
}

fn run(runtime: Runtime, mut sending: Sending, stopping: watch::Receiver<bool>) {
    let mut given_up = stopping.clone();
    runtime.block_on(async {
        let too_late = async {
            // Also when the sender is gone: then nobody waits for what is left.
            let was_asked = given_up.wait_for(|stop| *stop).await.is_ok();
            if was_asked {
                sleep(FLUSH_TIMEOUT).await;
            }
        };
        tokio::select! {
            () = sending.serve(stopping) => {}
            () = too_late => sending.give_up(),
        }
    });
    // A name that is being looked up must not hold the end up.
    runtime.shutdown_background();
}

/// Pending for ever where there is no interval.
async fn tick(due: Option<&mut Interval>) {
    match due {
        Some(due) => drop(due.tick().await),
        None => std::future::pending().await,
    }
}

struct Sending {
    collector: Collector,
    queue: Receiver<SpanData>,
    figures: Figures,
    metrics_interval: Option<Duration>,
    dropped: Counter,
    /// Spans that were handed to the collector and have no answer.
    on_the_way: usize,
    is_failing: bool,
}

impl Sending {
    /// To be called on the thread: a runtime must not end inside another one.
    fn new(
        settings: Settings,
        (queue, figures, dropped): (Receiver<SpanData>, Figures, Counter),
    ) -> Result<(Runtime, Self), StartError> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let metrics_interval = settings.metrics_interval;
        let collector = {
            let _inside = runtime.enter();
            Collector::new(settings)
                .map_err(|error: SetUpError| StartError::Settings(error.to_string()))?
        };
        let (on_the_way, is_failing) = (0, false);
        let sending =
            Self { collector, queue, figures, metrics_interval, dropped, on_the_way, is_failing };
        Ok((runtime, sending))
    }

    /// Until it is told to stop; then everything once more.
    async fn serve(&mut self, mut stopping: watch::Receiver<bool>) {
        let mut spans_due = interval(SPANS_INTERVAL);
        spans_due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut metrics_due = self.metrics_interval.map(|every| {
            let mut due = interval(every);
            due.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // A whole interval from now: at the start there is nothing to tell.
            due.reset();
            due
        });
        loop {
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stop| *stop) => break,
                _ = spans_due.tick() => self.send_spans().await,
                () = tick(metrics_due.as_mut()) => self.send_metrics().await,
            }
        }
        self.send_spans().await;
        if self.metrics_interval.is_some() {
            self.send_metrics().await;
        }
    }

    /// What is there now: what comes meanwhile waits for the next time.
    async fn send_spans(&mut self) {
        let mut left = self.queue.len();
        while left > 0 {
            let batch = self.next_batch(left.min(BATCH));
            if batch.is_empty() {
                return;
            }
            left = left.saturating_sub(batch.len());
            self.on_the_way = batch.len();
            let sent = self.collector.send_spans(batch).await;
            let count = std::mem::take(&mut self.on_the_way);
            let is_there = sent.is_ok();
            self.tell(sent);
            if !is_there {
                return self.drop_spans(count);
            }
        }
    }

    fn next_batch(&mut self, size: usize) -> Vec<SpanData> {
        let mut batch = Vec::with_capacity(size);
        while batch.len() < size
            && let Ok(span) = self.queue.try_recv()
        {
            batch.push(span);
        }
        batch
    }

    async fn send_metrics(&mut self) {
        let sent = match (self.figures)() {
            Ok(text) => self.collector.send_metrics(&text).await,
            Err(error) => return tracing::debug!(%error, "the metrics cannot be written"),
        };
        self.tell(sent);
    }

    /// One line when it begins to fail, and one when it is over.
    fn tell(&mut self, sent: Result<(), NotTaken>) {
        match sent {
            Ok(()) if self.is_failing => {
                self.is_failing = false;
                tracing::info!("the collector takes telemetry again");
            }
            Err(error) if !self.is_failing => {
                self.is_failing = true;
                tracing::warn!(
                    endpoint = %self.collector.endpoint(),
                    %error,
                    "the collector does not take telemetry; what it misses is not sent again, and \
                     nothing else waits for it"
                );
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Out of time.
    fn give_up(&mut self) {
        self.queue.close();
        let mut count = self.on_the_way;
        while self.queue.try_recv().is_ok() {
            count += 1;
        }
        self.drop_spans(count);
        tracing::warn!("the collector took too long at the end; the last telemetry is not sent");
    }

    fn drop_spans(&self, count: usize) {
        self.dropped.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_certificate_that_is_none_is_refused_at_the_start() {
        let settings = Settings {
            endpoint: "https://localhost:4317".parse().unwrap(),
            headers: crate::Headers::default(),
            certificate: Some(
                b"-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----".to_vec(),
            ),
            timeout: Duration::from_secs(1),
            sampling: None,
            metrics_interval: None,
            resource: Vec::new(),
        };
        let figures = Box::new(|| Ok(String::new()));
        let refused = Exporter::start(settings, figures, Counter::default()).await;
        assert!(matches!(refused, Err(StartError::Settings(_))), "{refused:?}");
    }
}
