//! Options for the handler of a consumer: a function, or a service.

use std::fs;
use std::time::Duration;

use walrelay_errors::Chain;
use walrelay_inbox::Effect;
use walrelay_webhook::{Auth, Secrets, Target, Webhook, WebhookSettings};

use super::checks::Checks;
use crate::options::HandlerOptions;

const FUNCTION_TIMEOUT: Duration = Duration::from_mins(1);
/// Short, because the keys of a batch are locked while a request is out.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(10);

impl Checks<'_> {
    /// Returns the handler, and the time that it may take.
    pub(crate) fn effect(&mut self, options: &HandlerOptions) -> Option<(Effect, Duration)> {
        let Some(name) = options.given() else {
            let allowed =
                "not set; a SQL function, such as shop.apply, or a service, https://HOST/PATH";
            self.wrong_or_missing("handler", allowed);
            return None;
        };
        if Target::is_meant(name) {
            let timeout = options.handler_timeout.unwrap_or(SERVICE_TIMEOUT);
            return Some((Effect::delivery(self.webhook(options)?), timeout));
        }
        let of_services = [
            ("handler-auth", options.handler_auth != Auth::None),
            ("handler-secrets", options.handler_secrets.is_some()),
            ("handler-ca", options.handler_ca.is_some()),
        ];
        for (option, _) in of_services.into_iter().filter(|(_, is_given)| *is_given) {
            self.wrong_or_missing(option, "only if --handler is the URL of a service");
        }
        Some((Effect::function(name), options.handler_timeout.unwrap_or(FUNCTION_TIMEOUT)))
    }

    /// Returns the service that handles events. `None` if the handler is none.
    pub(crate) fn webhook(&mut self, options: &HandlerOptions) -> Option<Webhook> {
        let name = options.given().filter(|name| Target::is_meant(name))?;
        let target = Target::parse(name)
            .map_err(|error| self.wrong_or_missing("handler", error.to_string()))
            .ok()?;
        if target.has_user() && options.handler_auth != Auth::None {
            let allowed =
                "not with a user in the URL of --handler: a request has one authorization";
            self.wrong_or_missing("handler-auth", allowed);
        }
        let secrets = options.handler_secrets.as_ref().map(Secrets::of_option);
        if let Some(Err(error)) = secrets.as_ref().map(Secrets::keys) {
            self.wrong_or_missing("handler-secrets", Chain(&error).to_string());
        }
        let path = options.handler_ca.as_deref().filter(|path| !path.as_os_str().is_empty());
        let authorities = path.map(fs::read).transpose();
        let webhook = authorities.map_err(|error| error.to_string()).and_then(|authorities| {
            let timeout = options.handler_timeout.unwrap_or(SERVICE_TIMEOUT);
            let auth = options.handler_auth;
            let settings = WebhookSettings { target, auth, secrets, authorities, timeout };
            Webhook::new(settings).map_err(|error| Chain(&error).to_string())
        });
        webhook.map_err(|problem| self.wrong_or_missing("handler-ca", problem)).ok()
    }
}

impl HandlerOptions {
    fn given(&self) -> Option<&str> {
        self.handler.as_ref().map(|name| name.0.trim()).filter(|name| !name.is_empty())
    }
}
