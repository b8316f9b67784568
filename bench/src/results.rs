//! All measurements, under the names that the targets and the tables use.

use serde::Serialize;

use crate::clients::Published;
use crate::consume::ConsumeResult;
use crate::consume_live::LiveConsumeResult;
use crate::drain::DrainResult;
use crate::live::Live;
use crate::machine::Machine;
use crate::outage::OutageResult;
use crate::republish::Again;
use crate::shards::ShardedResult;
use crate::size::Size;
use crate::traced::TracedResult;

/// All measurements.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    pub(crate) size: Size,
    pub(crate) relay_arguments: Vec<String>,
    pub(crate) note: Option<String>,
    /// The load average of the last minute before the first measurement.
    pub(crate) load_before: f64,
    pub(crate) drains: Vec<DrainResult>,
    pub(crate) lives: Vec<Live>,
    pub(crate) sharded: Vec<ShardedResult>,
    pub(crate) traced: Vec<TracedResult>,
    pub(crate) outages: Vec<OutageResult>,
    pub(crate) again: Vec<Again>,
    pub(crate) publishers: Vec<Published>,
    pub(crate) consumers: Vec<ConsumeResult>,
    pub(crate) applied_live: Vec<LiveConsumeResult>,
    pub(crate) targets: Vec<Verdict>,
}

pub(crate) const HOT_KEYS: &str = "hot-keys";
pub(crate) const MANY_KEYS: &str = "many-keys";
pub(crate) const SINGLE_KEY: &str = "single-key";
pub(crate) const ONE_TRANSACTION: &str = "one-transaction";
pub(crate) const FAR_AWAY: &str = "many-keys-50ms";
pub(crate) const FAR_TLS: &str = "many-keys-50ms-tls";
pub(crate) const STEADY: &str = "steady-2000";
pub(crate) const OUTAGE: &str = "outage-hot-keys";
pub(crate) const OUTAGE_MANY: &str = "outage-many-keys";
pub(crate) const BARE: [&str; 3] = ["bare-1", "bare-1-more", "bare-1-threads"];
pub(crate) const CONSUME_HOT: &str = "consume-hot-keys";
pub(crate) const CONSUME_MANY: &str = "consume-many-keys";
pub(crate) const CONSUME_FAR: &str = "consume-hot-keys-3ms";
pub(crate) const CONSUME_POISON: &str = "consume-poison";
pub(crate) const CONSUME_REMOTE: &str = "consume-hot-keys-30ms";
pub(crate) const CONSUME_TWO: &str = "consume-hot-keys-30ms-two";
pub(crate) const CONSUME_STEADY: &str = "consume-steady-1000";
pub(crate) const CONSUME_OFFICIAL: &str = "consume-official";
pub(crate) const CONSUME_FAR_OFFICIAL: &str = "consume-official-3ms";
pub(crate) const CONSUME_DURABLE: &str = "consume-durable";
pub(crate) const CONSUME_DURABLE_OFFICIAL: &str = "consume-durable-official";
pub(crate) const OFFICIAL: &str = "official-many-keys";

/// A target and the measured value.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Verdict {
    pub(crate) workload: &'static str,
    pub(crate) target: String,
    pub(crate) measured: String,
    pub(crate) is_met: bool,
}
