//! What talks to the collector: one task beside the others, which never keeps the thread for long.

use std::fmt;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use crate::collector::{Collector, NotTaken};
use crate::settings::Settings;
use crate::spans::{EncodedSpan, Spans};

/// Spans that wait to be sent. Sent once a second, it is also how many a second there are at most: so
/// that thousands of small requests a second do not cost what their spans would.
const QUEUE: usize = 2_048;
const SPANS_INTERVAL: Duration = Duration::from_secs(1);
/// Spans in one request to the collector: OpenTelemetry's default.
const BATCH: usize = 512;
/// Pauses after which what may pass is tried again.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(200), Duration::from_millis(400)];
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
    task: JoinSet<()>,
}

/// The settings cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the collector's endpoint or certificate cannot be used: {0}")]
pub struct StartError(#[from] tonic::transport::Error);

impl Exporter {
    /// Starts the task. Nothing is connected before there is something to send. To be called inside a
    /// Tokio runtime.
    ///
    /// `dropped` counts spans that are not sent although nothing but room or the collector was missing.
    ///
    /// # Errors
    ///
    /// The certificate cannot be used.
    pub fn start(
        settings: Settings,
        figures: Figures,
        dropped: Counter,
    ) -> Result<Self, StartError> {
        let (sender, queue) = channel(QUEUE);
        let sampling = settings.sampling.clone().filter(|sampling| !sampling.is_never());
        let spans = sampling.map(|sampling| Spans::new(sampling, sender, dropped.clone()));
        let (stop, stopping) = watch::channel(false);
        let sending = Sending {
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

    /// What makes spans; none when they are not wanted.
    #[must_use]
    pub fn spans(&self) -> Option<&Spans> {
        self.spans.as_ref()
    }

    /// Sends what is left, for two seconds at most.
    pub async fn finish(self) {
        let Self { spans, stop, mut task } = self;
        drop(spans);
        stop.send_replace(true);
        task.join_next().await;
    }
}

async fn run(mut sending: Sending, mut stopping: watch::Receiver<bool>) {
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

/// Until it is told to stop. The one who tells lives as long as the task.
async fn asked(stopping: &mut watch::Receiver<bool>) {
    stopping.wait_for(|stop| *stop).await.ok();
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
    queue: Receiver<EncodedSpan>,
    figures: Figures,
    metrics_interval: Option<Duration>,
    dropped: Counter,
    /// Spans that were handed to the collector and have no answer.
    on_the_way: usize,
    is_failing: bool,
}

impl Sending {
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

    async fn send_batch(&mut self, batch: &[EncodedSpan]) -> Result<(), NotTaken> {
        let mut pauses = PAUSES.into_iter();
        loop {
            let sent = self.collector.send_spans(batch).await;
            match (&sent, pauses.next()) {
                (Err(error), Some(pause)) if error.may_pass => sleep(pause).await,
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
        let refused = Exporter::start(settings, figures, Counter::default()).unwrap_err();
        assert!(refused.to_string().contains("certificate cannot be used"), "{refused}");
    }
}
