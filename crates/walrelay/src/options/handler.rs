//! The options of a consumer's handler, for `consumer run` and `check`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use walrelay_pg_client::Secret;
use walrelay_webhook::Auth;

use super::values::{HandlerName, duration, handler_name, secret, word};

/// The handler, and how a service that handles events knows who sends a request.
#[derive(Debug, Args)]
#[command(next_help_heading = "Consumer")]
pub(crate) struct HandlerOptions {
    /// What applies events: a SQL function, f(app_inbox_event) or f(app_inbox_event[]), or the URL of a service
    ///
    /// Required by `consumer run`. The function returns void. Where both forms exist, name the argument too. Each event
    /// is posted to https://HOST/PATH, at least once. http:// is for localhost alone.
    #[arg(long, value_name = "FUNCTION or URL", value_parser = handler_name)]
    pub handler: Option<HandlerName>,
    /// How long a function may take for a batch, or a service for an event; 1s to 10m [default: 1m, and 10s for a service]
    ///
    /// A batch that takes longer is tried in halves; an event that does so alone has failed, and is tried again later.
    /// The keys of a batch are locked meanwhile.
    #[arg(long, value_name = "DURATION", value_parser = duration("1s", "10m"))]
    pub handler_timeout: Option<Duration>,
    /// What a service gets to know the sender by, beside the signature: `none`, or `google-id-token`
    ///
    /// `google-id-token` is for services of Cloud Run: an identity token of Google's credentials for that service.
    #[arg(long, value_name = "HOW", default_value = "none", value_parser = word(HANDLER_AUTHS))]
    pub handler_auth: Auth,
    /// Secrets that sign each request to a service, or a file of them [default: requests are not signed]
    ///
    /// Each is whsec_ and base64. Several, between spaces, sign side by side while a secret is rotated. A file is read
    /// again before each request.
    #[arg(long, value_name = "SECRETS or FILE", value_parser = secret)]
    pub handler_secrets: Option<Secret>,
    /// PEM file of the authorities that the service's certificate must be signed by [default: the public authorities]
    #[arg(long, value_name = "FILE")]
    pub handler_ca: Option<PathBuf>,
}

const HANDLER_AUTHS: &[(&str, Auth)] =
    &[("none", Auth::None), ("google-id-token", Auth::GoogleIdToken)];
