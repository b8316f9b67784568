//! `walrelay emulator`: the embedded Pub/Sub as a process of its own.

use std::net::SocketAddr;

use clap::Args;
use tokio::net::TcpListener;
use walrelay_emulator::{Emulator, Fault, Log, Options};
use walrelay_relay::shutdown::Shutdown;

use crate::config::Checks;
use crate::error::Error;
use crate::options::values::{Bytes, OrOff, listen as address, listen_or_off, size, text_form};
use crate::output::print;
use crate::plan::{CommandEnd, Plan};

/// Run the embedded Pub/Sub, which has the service's limits.
///
/// Speaks the Publisher and Subscriber services over gRPC without credentials. Point clients
/// at it with PUBSUB_EMULATOR_HOST. Everything is forgotten when it stops.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Emulator",
    after_help = "Example:\n  \
        walrelay emulator --listen 127.0.0.1:8085 --control-listen 127.0.0.1:8086"
)]
pub(crate) struct EmulatorCommand {
    /// Address of the gRPC services, which clients have in PUBSUB_EMULATOR_HOST
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8085", value_parser = address)]
    listen: SocketAddr,
    /// Address of the HTTP control port, or `off`
    #[arg(long, value_name = "ADDRESS", default_value = "off", value_parser = listen_or_off)]
    control_listen: OrOff,
    /// A fault to begin with, conditions and one effect; may be given several times, or with semicolons
    ///
    /// It strikes what `on` says: on=publish (the default), pull, streaming-pull, delivery, acknowledge or
    /// modify-ack-deadline. Conditions: topic=T, subscription=S, key=K, event_type=V, event_id=V, attr.NAME=V,
    /// percent=P, skip=N, first=N. Effects for all: reject=CODE, hold-before, delay=TIME, black-hole; for all but
    /// the two pulls: fail-after=CODE, hold; for delivery: expire; for acknowledge and modify-ack-deadline:
    /// lose, fail-ids=invalid, unordered or temporary. As in
    /// topic=orders.events,key=A-17,percent=50,reject=UNAVAILABLE or
    /// on=acknowledge,subscription=billing,first=3,lose.
    #[arg(long, value_name = "FAULT", value_delimiter = ';', value_parser = text_form::<Fault>)]
    fault: Vec<Fault>,
    /// Memory for messages, kept ones included; Publish beyond it is refused; 1MiB to 64GiB
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = size("1MiB", "64GiB"))]
    max_stored_bytes: Bytes,
}

impl EmulatorCommand {
    pub(crate) fn plan(self, _: &mut Checks<'_>) -> Option<Plan> {
        let plan = Plan::new(async move |shutdown| self.run(shutdown).await);
        Some(plan.ended(CommandEnd::Stopped(None)))
    }

    /// Serves until `shutdown` is requested. Prints its addresses once it accepts connections.
    async fn run(self, shutdown: &Shutdown) -> Result<(), Error> {
        let OrOff(control_listen) = self.control_listen;
        let options = Options {
            // Only the control port shows the log of calls.
            log: if control_listen.is_some() { Log::Keep } else { Log::Off },
            stored_bytes_max: self.max_stored_bytes.0,
            ..Options::default()
        };
        let emulator = Emulator::new(options);
        for fault in self.fault {
            emulator.set_fault(fault);
        }
        let (listener, address) = listen(self.listen).await?;
        print(&format!("PUBSUB_EMULATOR_HOST={address}\n"))?;
        tracing::info!("serving until Ctrl-C or SIGTERM; everything is forgotten then");
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
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let io = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(io)?;
    let bound = listener.local_addr().map_err(io)?;
    Ok((listener, bound))
}
