//! Checks whether the service that handles a consumer's events answers.

use walrelay_errors::Code;
use walrelay_outbox_admin::Finding;
use walrelay_webhook::Webhook;

use super::super::shared::answer_timeout::ANSWER_TIMEOUT;

/// Asks the service for any answer. The relay publishes without it, so the finding is at most a warning.
pub(super) async fn of(service: Option<&Webhook>) -> Vec<Finding> {
    let Some(service) = service else { return Vec::new() };
    let subject = "handler".to_owned();
    let problem = match tokio::time::timeout(ANSWER_TIMEOUT, service.probe()).await {
        Ok(Ok(status)) => {
            let message =
                format!("{service}: the service is there, and answers HEAD with {status}");
            let mut found = vec![Finding::passed("handler", subject.clone(), message)];
            if !service.proves_sender() {
                let risk = format!("{service}: requests are not signed, so anyone can send them");
                let finding = Finding::warning(Code::HandlerFailed, subject, risk);
                found.push(finding.fix("set --handler-secrets, or --handler-auth"));
            }
            return found;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("{service}: no answer within {} s", ANSWER_TIMEOUT.as_secs()),
    };
    let fix = "start the service, or correct --handler or --handler-ca; events wait meanwhile, and none is lost";
    vec![Finding::warning(Code::HandlerFailed, subject, problem).fix(fix)]
}
