//! The task that sends telemetry to the collector. It never blocks the thread for long.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use crate::collector::{Collector, ExportError};
use crate::settings::Settings;
use crate::spans::{EncodedSpan, Spans};

/// The number of queued spans. Spans are sent once a second, so this also limits the spans per
/// second. Otherwise thousands of small requests a second would cost more for their spans than for
/// themselves.
const QUEUE: usize = 2_048;
const SPANS_INTERVAL: Duration = Duration::from_secs(1);
/// Spans in one request to the collector: OpenTelemetry's default.
const BATCH: usize = 512;
/// The pauses before each retry of a retryable request.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(200), Duration::from_millis(400)];
/// The time limit for the last telemetry at shutdown. A platform that gives 10 s has already spent
/// 7 s on the rows.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// A function that updates the figures of `/metrics` and returns their registry.
pub type Figures = Box<dyn Fn() -> Arc<Registry> + Send>;

/// A running exporter. Dropping it ends the task without sending the remaining telemetry.
#[derive(Debug)]
pub struct Exporter {
    spans: Option<Spans>,
    stop: watch::Sender<bool>,
    task: JoinSet<()>,
}

/// The settings cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the collector's endpoint or certificate cannot be used: {0}")]
pub struct StartError(#[from] tonic::transport::Error);

impl Exporter {
    /// Starts the task. It connects when there is something to send. Call it inside a Tokio
    /// runtime.
    ///
    /// `dropped` counts spans that are lost because the queue is full or the collector fails.
    pub fn start(
        settings: Settings,
        figures: Figures,
        dropped: Counter,
    ) -> Result<Self, StartError> {
        let (sender, queue) = channel(QUEUE);
        let sampling = settings.sampling.clone().filter(|sampling| !sampling.is_never());
        let spans = sampling.map(|sampling| Spans::new(sampling, sender, dropped.clone()));
        let (stop, stopping) = watch::channel(false);
        let sending = ExportLoop {
            metrics_interval: settings.metrics_interval,
            collector: Collector::new(settings)?,
            queue,
            figures,
            dropped,
            on_the_way: 0,
            is_failing: false,
        };
        let mut task = JoinSet::new();
        task.spawn(run(sending, stopping));
        Ok(Self { spans, stop, task })
    }

    /// The handle that creates spans, or `None` if spans are disabled.
    #[must_use]
    pub fn spans(&self) -> Option<&Spans> {
        self.spans.as_ref()
    }

    /// Sends the remaining telemetry, for two seconds at most.
    pub async fn finish(self) {
        let Self { spans, stop, mut task } = self;
        drop(spans);
        stop.send_replace(true);
        task.join_next().await;
    }
}

async fn run(mut sending: ExportLoop, mut stopping: watch::Receiver<bool>) {
    let told = stopping.clone();
    let too_late = async {
        asked(&mut stopping).await;
        sleep(FLUSH_TIMEOUT).await;
    };
    tokio::select! {
        () = sending.serve(told) => return,
        () = too_late => {}
    }
    sending.give_up();
}

/// Waits for the stop signal. The sender lives as long as the task.
async fn asked(stopping: &mut watch::Receiver<bool>) {
    stopping.wait_for(|stop| *stop).await.ok();
}

/// Waits for the next tick, or for ever if there is no interval.
async fn tick(due: Option<&mut Interval>) {
    match due {
        Some(due) => drop(due.tick().await),
        None => std::future::pending().await,
    }
}

struct ExportLoop {
    collector: Collector,
    queue: Receiver<EncodedSpan>,
    figures: Figures,
    metrics_interval: Option<Duration>,
    dropped: Counter,
    /// The number of spans in the current request.
    on_the_way: usize,
    is_failing: bool,
}

impl ExportLoop {
    /// Sends telemetry until the stop signal, then sends the rest once.
    async fn serve(&mut self, mut stopping: watch::Receiver<bool>) {
        let mut spans_due = interval(SPANS_INTERVAL);
        spans_due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut metrics_due = self.metrics_interval.map(|every| {
            let mut due = interval(every);
            due.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // The first tick is a whole interval from now, because there are no figures at the
            // start.
            due.reset();
            due
        });
        loop {
            tokio::select! {
                biased;
                () = asked(&mut stopping) => break,
                _ = spans_due.tick() => self.send_spans().await,
                () = tick(metrics_due.as_mut()) => self.send_metrics().await,
            }
        }
        self.send_spans().await;
        if self.metrics_interval.is_some() {
            self.send_metrics().await;
        }
    }

    /// Sends the spans that are queued now. Spans that arrive meanwhile wait for the next round.
    async fn send_spans(&mut self) {
        let mut left = self.queue.len();
        while left > 0 {
            let batch = self.next_batch(left.min(BATCH));
            if batch.is_empty() {
                return;
            }
            left = left.saturating_sub(batch.len());
            self.on_the_way = batch.len();
            let sent = self.send_batch(&batch).await;
            self.on_the_way = 0;
            let lost = sent.as_ref().map_or_else(|error| error.spans, |()| 0);
            self.tell(sent);
            self.drop_spans(lost);
            if lost == batch.len() {
                return;
            }
        }
    }

    async fn send_batch(&mut self, batch: &[EncodedSpan]) -> Result<(), ExportError> {
        let mut pauses = PAUSES.into_iter();
        loop {
            let sent = self.collector.send_spans(batch).await;
            match (&sent, pauses.next()) {
                (Err(error), Some(pause)) if error.is_retryable => sleep(pause).await,
                (Ok(()) | Err(_), _) => return sent,
            }
        }
    }

    fn next_batch(&mut self, size: usize) -> Vec<EncodedSpan> {
        let mut batch = Vec::with_capacity(size);
        while batch.len() < size
            && let Ok(span) = self.queue.try_recv()
        {
            batch.push(span);
        }
        batch
    }

    async fn send_metrics(&mut self) {
        match self.collector.metrics_request(&(self.figures)()) {
            Ok(request) => {
                let sent = self.collector.send_metrics(request).await;
                self.tell(sent);
            }
            Err(error) => tracing::debug!(%error, "the metrics cannot be encoded"),
        }
    }

    /// Logs one message when sending starts to fail, and one when it works again.
    fn tell(&mut self, sent: Result<(), ExportError>) {
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

    /// Drops and counts the remaining spans because time is up.
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
        let figures = Box::new(|| Arc::new(Registry::default()));
        let refused = Exporter::start(settings, figures, Counter::default()).unwrap_err();
        assert!(refused.to_string().contains("certificate cannot be used"), "{refused}");
    }
}
