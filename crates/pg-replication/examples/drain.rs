//! Drains a slot as fast as possible and counts frames, to measure the cost of reading alone.
//!
//! ```text
//! drain URL SLOT PUBLICATION END_LSN
//! ```
//!
//! Confirms nothing, so that the same slot can be drained again. Prints rows, reads and CPU
//! seconds, to be compared with `pg_recvlogical -f /dev/null` on the same slot.

use std::error::Error;
use std::io::Write as _;
use std::time::Instant;

use pgoutput_parser::{Frame, Lsn};
use walrelay_core::Tracker;
use walrelay_pg_client::{ConnectConfig, PgEnv};
use walrelay_pg_replication::{ReplicationConnection, StreamSettings};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, slot, publication, end] = arguments.as_slice() else {
        return Err("usage: drain URL SLOT PUBLICATION END_LSN".into());
    };
    let end: Lsn = end.parse()?;
    let problems = |problems: Vec<_>| format!("{problems:?}");
    let config = ConnectConfig::parse(url, &PgEnv::default()).map_err(problems)?;
    let connection = ReplicationConnection::connect(&config, &[]).await?;
    let publications = [publication.clone()];
    let settings = StreamSettings::default();
    let (mut frames, mut feedback) =
        connection.start(slot, &publications, Lsn::ZERO, &settings).await?;
    let nothing = Tracker::new().watermark();

    let since = Instant::now();
    let (mut rows, mut bytes, mut waits) = (0u64, 0usize, 0u64);
    let mut reached = Lsn::ZERO;
    while reached < end {
        tokio::select! {
            biased;
            () = feedback.due(nothing) => feedback.confirm(nothing).await?,
            frame = frames.next() => {
                waits += 1;
                let mut frame = Some(frame?);
                while let Some(next) = frame {
                    match next {
                        Frame::XLogData(data) => {
                            rows += u64::from(data.data.first() == Some(&b'I'));
                            bytes += data.data.len();
                            reached = reached.max(data.wal_start);
                        }
                        Frame::Keepalive(keepalive) => {
                            feedback.note_keepalive(&keepalive);
                            reached = reached.max(keepalive.wal_end);
                        }
                    }
                    frame = frames.buffered()?;
                }
            }
        }
    }
    let seconds = since.elapsed().as_secs_f64();
    let mut out = std::io::stdout();
    writeln!(out, "{rows} rows, {bytes} bytes, {waits} waits, {seconds:.2} s")?;
    Ok(())
}
