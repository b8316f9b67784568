//! Resource names: `projects/P/topics/T`, and the equivalent for subscriptions and snapshots.

use tonic::Status;

pub(crate) fn check_topic(name: &str) -> Result<(), Status> {
    check(name, "topics", "topic")
}

pub(crate) fn check_subscription(name: &str) -> Result<(), Status> {
    check(name, "subscriptions", "subscription")
}

pub(crate) fn check_snapshot(name: &str) -> Result<(), Status> {
    check(name, "snapshots", "snapshot")
}

/// Checks `projects/P`.
pub(crate) fn check_project(name: &str) -> Result<(), Status> {
    match name.split_once('/') {
        Some(("projects", project)) if is_project(project) => Ok(()),
        _ => Err(Status::invalid_argument(format!(
            "malformed project name {name:?}: expected projects/PROJECT"
        ))),
    }
}

/// Returns the project of a checked name, `projects/P`.
pub(crate) fn project_of(name: &str) -> &str {
    let project = name.match_indices('/').nth(1).and_then(|(end, _)| name.get(..end));
    project.unwrap_or(name)
}

pub(crate) fn belongs_to(name: &str, project: &str) -> bool {
    name.strip_prefix(project).is_some_and(|rest| rest.starts_with('/'))
}

fn check(name: &str, collection: &str, what: &str) -> Result<(), Status> {
    let mut parts = name.split('/');
    let parts = [parts.next(), parts.next(), parts.next(), parts.next(), parts.next()];
    match parts {
        [Some("projects"), Some(project), Some(its), Some(id), None]
            if its == collection && is_project(project) && is_id(id) =>
        {
            Ok(())
        }
        _ => Err(Status::invalid_argument(format!(
            "malformed {what} name {name:?}: expected projects/PROJECT/{collection}/ID, where ID has \
             3 to 255 characters, begins with a letter, does not begin with \"goog\", and consists \
             of letters, digits and - . _ ~ + %"
        ))),
    }
}

fn is_project(id: &str) -> bool {
    let may_stand = |c: char| c.is_ascii_alphanumeric() || "-.:_".contains(c);
    !id.is_empty() && id.len() <= 255 && id.chars().all(may_stand)
}

fn is_id(id: &str) -> bool {
    let may_stand = |c: char| c.is_ascii_alphanumeric() || "-._~+%".contains(c);
    (3..=255).contains(&id.len())
        && id.starts_with(|c: char| c.is_ascii_alphabetic())
        && !id.starts_with("goog")
        && id.chars().all(may_stand)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_documented_form() {
        for good in ["projects/p/topics/orders.events", "projects/my-1/topics/a%2F_~+9"] {
            assert!(check_topic(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "orders",
            "projects/p/topics/",
            "projects/p/topics/ab",
            "projects//topics/orders",
            "projects/p/topics/1orders",
            "projects/p/topics/google-orders",
            "projects/p/topics/or ders",
            "projects/p/topics/orders/x",
            "projects/p/subscriptions/orders",
        ] {
            assert!(check_topic(bad).is_err(), "{bad}");
        }
        assert!(check_subscription("projects/p/subscriptions/orders").is_ok());
        assert!(check_project("projects/p").is_ok());
        assert_eq!(project_of("projects/p/subscriptions/orders"), "projects/p");
        assert!(check_project("p").is_err());
    }
}
