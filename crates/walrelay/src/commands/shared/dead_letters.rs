//! The dead letters of a new consumer: topic, subscription, and the permissions of Pub/Sub itself.
//!
//! Pub/Sub forwards a message as its own service agent. Without both roles it forwards nothing, and
//! redelivers the message for ever.

use walrelay_pubsub::{Admin, Endpoint, IamBinding, Subscriber, TopicSettings};

use super::ordered_subscription::ordered;
use super::set_up_report::SetUpReport;
use crate::error::Error;

/// A dead-letter topic to create, with a subscription of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands) struct NewDeadLetters {
    /// Full name of the subscription.
    pub(in crate::commands) subscription: String,
    pub(in crate::commands) settings: TopicSettings,
    /// Number of the project whose service agent forwards messages. `None` if not known.
    pub(in crate::commands) project_number: Option<u64>,
    pub(in crate::commands) grants: IamGrants,
}

/// How the service agent of Pub/Sub gets its IAM bindings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum IamGrants {
    /// The command grants the bindings.
    Make,
    /// The command prints the commands that grant the bindings.
    Print,
}

/// Creates the topic, and a subscription that keeps the messages until somebody drains it.
pub(super) async fn create(
    endpoint: &Endpoint,
    topic: &str,
    letters: &NewDeadLetters,
    report: &mut SetUpReport<'_>,
) -> Result<(), Error> {
    let admin = Admin::connect(endpoint)?;
    let exists = admin.topic_exists(topic).await?;
    if !exists {
        admin.create_topic(topic, &letters.settings).await?;
    }
    report.add(!exists, format!("topic {topic}"))?;
    let subscriber = Subscriber::connect(endpoint)?;
    let wanted = ordered(&letters.subscription, topic);
    let is_new = subscriber.create_subscription(wanted).await?;
    report.add(is_new, format!("subscription {}", letters.subscription))
}

/// Grants the roles of Pub/Sub's service agent, or prints the commands that grant them.
pub(super) async fn grant(
    endpoint: &Endpoint,
    subscription: &str,
    topic: &str,
    letters: &NewDeadLetters,
    report: &mut SetUpReport<'_>,
) -> Result<(), Error> {
    let agent = ServiceAgent { project: project_of(subscription), number: letters.project_number };
    let bindings = agent.bindings(subscription, topic);
    if letters.grants == IamGrants::Print {
        return report.grant_by_hand(agent.commands(&bindings));
    }
    for binding in bindings {
        let is_new = binding.grant(endpoint).await?;
        let IamBinding { resource, role, member } = binding;
        report.granted(is_new, format!("{role} on {resource} to {member}"))?;
    }
    Ok(())
}

/// The account with which Pub/Sub forwards messages of a project.
struct ServiceAgent<'a> {
    project: &'a str,
    number: Option<u64>,
}

/// The number of the project in a shell, where it is not known.
const NUMBER_VARIABLE: &str = "$PROJECT_NUMBER";

impl ServiceAgent<'_> {
    fn bindings(&self, subscription: &str, topic: &str) -> [IamBinding; 2] {
        let number = self.number.map_or(NUMBER_VARIABLE.to_owned(), |number| number.to_string());
        let member =
            format!("serviceAccount:service-{number}@gcp-sa-pubsub.iam.gserviceaccount.com");
        let binding = |resource: &str, role| IamBinding {
            resource: resource.to_owned(),
            role,
            member: member.clone(),
        };
        [binding(topic, "roles/pubsub.publisher"), binding(subscription, "roles/pubsub.subscriber")]
    }

    /// Returns the shell commands that grant the bindings.
    fn commands(&self, bindings: &[IamBinding]) -> Vec<String> {
        let mut commands = Vec::new();
        if self.number.is_none() {
            commands.push(format!(
                "PROJECT_NUMBER=$(gcloud projects describe {} --format='value(projectNumber)')",
                self.project
            ));
        }
        for IamBinding { resource, role, member } in bindings {
            let kind = if resource.contains("/topics/") { "topics" } else { "subscriptions" };
            commands.push(format!(
                "gcloud pubsub {kind} add-iam-policy-binding {} --project={} --role={role} --member=\"{member}\"",
                resource.rsplit('/').next().unwrap_or(resource),
                project_of(resource)
            ));
        }
        commands
    }
}

fn project_of(resource: &str) -> &str {
    resource.split('/').nth(1).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: &str = "projects/p/topics/order.events.billing.dead";
    const SUBSCRIPTION: &str = "projects/p/subscriptions/order.events.billing";

    fn commands(number: Option<u64>) -> String {
        let agent = ServiceAgent { project: "p", number };
        agent.commands(&agent.bindings(SUBSCRIPTION, TOPIC)).join("\n")
    }

    #[test]
    fn the_service_agent_publishes_to_the_topic_and_acknowledges_in_the_subscription() {
        let text = commands(Some(4711));
        let topic = "gcloud pubsub topics add-iam-policy-binding order.events.billing.dead --project=p \
                     --role=roles/pubsub.publisher \
                     --member=\"serviceAccount:service-4711@gcp-sa-pubsub.iam.gserviceaccount.com\"";
        assert!(text.contains(topic), "{text}");
        let subscription = "gcloud pubsub subscriptions add-iam-policy-binding order.events.billing --project=p \
                            --role=roles/pubsub.subscriber";
        assert!(text.contains(subscription), "{text}");
        assert!(!text.contains("PROJECT_NUMBER"), "{text}");
    }

    #[test]
    fn without_the_number_of_the_project_the_commands_ask_for_it() {
        let text = commands(None);
        assert!(text.contains("PROJECT_NUMBER=$(gcloud projects describe p "), "{text}");
        assert!(text.contains("service-$PROJECT_NUMBER@gcp-sa-pubsub"), "{text}");
    }
}
