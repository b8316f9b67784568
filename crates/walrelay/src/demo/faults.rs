//! What goes wrong in the demo: the relay is killed, a row can never be published, and Pub/Sub is away.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_emulator::{Emulator, Fault};
use walrelay_errors::Code;
use walrelay_pg_client::{SqlClient, sql};

use super::ledger::Ledger;
use super::relay_process::RelayProcess;
use crate::error::Error;
use crate::output::print;

/// Pause between two things that go wrong, long enough to see that rows arrive.
const PAUSE: Duration = Duration::from_secs(3);

/// How long Pub/Sub is away.
const OUTAGE: Duration = Duration::from_secs(10);

/// Rejects every call of a publisher.
const AWAY: &str = "reject=UNAVAILABLE";

/// Lets one thing after the other go wrong, and prints each.
pub(crate) async fn strike(
    relay: &mut RelayProcess,
    emulator: &Emulator,
    database: &SqlClient,
    ledger: &Ledger,
) -> Result<(), Error> {
    let began = Instant::now();
    let tell = |what: &str| {
        let (sum, seconds) = (ledger.sum(), began.elapsed().as_secs());
        print(&format!(
            "{seconds:>3} s  {what} ({} rows committed, {} arrived)\n",
            sum.committed, sum.delivered
        ))
    };
    sleep(PAUSE).await;
    relay.kill();
    tell("kill -9 of the relay")?;
    sleep(PAUSE).await;
    relay.start().map_err(|source| Error::Io { action: "start the relay".into(), source })?;
    tell("the relay is started again")?;
    sleep(PAUSE).await;
    let refused =
        |error: tokio_postgres::Error| Error::refused(Code::DemoFailed, error.to_string());
    database.batch_execute(sql!("producer.sql", "poison")).await.map_err(refused)?;
    tell("a row is committed that no topic can take")?;
    sleep(PAUSE).await;
    emulator.set_fault(AWAY.parse::<Fault>().map_err(|_| {
        Error::refused(Code::DemoFailed, format!("the embedded Pub/Sub knows no fault {AWAY}"))
    })?);
    tell("Pub/Sub refuses everything, for ten seconds")?;
    sleep(OUTAGE).await;
    emulator.clear_faults();
    tell("Pub/Sub is back")?;
    sleep(PAUSE).await;
    tell("it has caught up")
}
