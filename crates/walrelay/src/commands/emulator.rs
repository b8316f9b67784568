//! `walrelay emulator`: the embedded Pub/Sub as a process of its own.

use std::net::SocketAddr;

use crate::config::{EmulatorOptions, OrOff};
use crate::error::Error;
use tokio::net::TcpListener;
use walrelay_emulator::{Emulator, Log, Options};
use walrelay_relay::shutdown::Shutdown;

use crate::output::print;

/// Serves until `shutdown` is requested. Prints its addresses once it accepts connections.
///
/// # Errors
///
/// An address cannot be listened on.
pub(crate) async fn execute(config: EmulatorOptions, shutdown: &Shutdown) -> Result<(), Error> {
    let EmulatorOptions { control_listen: OrOff(control_listen), .. } = config;
    let options = Options {
        // Only the control port shows the log of calls.
        log: if control_listen.is_some() { Log::Keep } else { Log::Off },
        stored_bytes_max: config.max_stored_bytes.0,
        ..Options::default()
    };
    let emulator = Emulator::new(options);
    for fault in config.fault {
        emulator.set_fault(fault);
    }
    let (listener, address) = listen(config.listen).await?;
    print(&format!("PUBSUB_EMULATOR_HOST={address}\n"))?;
    let serving = emulator.serve(listener, shutdown.requested());
    let Some(control) = control_listen else {
        serving.await;
        return Ok(());
    };
    let (control_listener, control_address) = listen(control).await?;
    print(&format!("control port http://{control_address}\n"))?;
    let asked = shutdown.clone();
    let until_asked = async move { asked.requested().await };
    let ((), controlled) =
        tokio::join!(serving, emulator.serve_control(control_listener, until_asked));
    controlled.map_err(|source| Error::Io { action: "serve the control port".into(), source })
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let io = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(io)?;
    let bound = listener.local_addr().map_err(io)?;
    Ok((listener, bound))
}
