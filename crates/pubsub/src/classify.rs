//! Maps each gRPC code of a failed publish to its class (design: "What a failure means").

use tonic::Code;

use walrelay_core::{CallCode, FailureClass, FailureCode, PublishFailure};

/// The failure for a gRPC code.
#[must_use]
pub fn classify(code: Code, message: impl Into<String>) -> PublishFailure {
    let code = call_code(code);
    let congestion = matches!(code, CallCode::DeadlineExceeded | CallCode::ResourceExhausted);
    PublishFailure { congestion, ..PublishFailure::new(class_of(code), code, message) }
}

/// Returns the code of a call without tonic's type.
#[must_use]
pub const fn call_code(code: Code) -> CallCode {
    match code {
        Code::Ok => CallCode::Ok,
        Code::Cancelled => CallCode::Cancelled,
        Code::Unknown => CallCode::Unknown,
        Code::InvalidArgument => CallCode::InvalidArgument,
        Code::DeadlineExceeded => CallCode::DeadlineExceeded,
        Code::NotFound => CallCode::NotFound,
        Code::AlreadyExists => CallCode::AlreadyExists,
        Code::PermissionDenied => CallCode::PermissionDenied,
        Code::ResourceExhausted => CallCode::ResourceExhausted,
        Code::FailedPrecondition => CallCode::FailedPrecondition,
        Code::Aborted => CallCode::Aborted,
        Code::OutOfRange => CallCode::OutOfRange,
        Code::Unimplemented => CallCode::Unimplemented,
        Code::Internal => CallCode::Internal,
        Code::Unavailable => CallCode::Unavailable,
        Code::DataLoss => CallCode::DataLoss,
        Code::Unauthenticated => CallCode::Unauthenticated,
    }
}

const fn class_of(code: CallCode) -> FailureClass {
    match code {
        CallCode::Unavailable
        | CallCode::Internal
        | CallCode::Unknown
        | CallCode::Aborted
        | CallCode::Cancelled
        | CallCode::DeadlineExceeded
        | CallCode::ResourceExhausted => FailureClass::Transient,

        CallCode::NotFound
        | CallCode::PermissionDenied
        | CallCode::Unauthenticated
        | CallCode::FailedPrecondition => FailureClass::Operator,

        CallCode::InvalidArgument => FailureClass::Row,

        // Publish does not document these four codes. None of them blames a row, so no row may die.
        // Waiting alone is unlikely to help, so an operator is alerted. For example, a proxy or a
        // wrong endpoint answers UNIMPLEMENTED.
        CallCode::AlreadyExists
        | CallCode::OutOfRange
        | CallCode::Unimplemented
        | CallCode::DataLoss => FailureClass::Operator,

        // A failure with the code OK is a broken answer. The batch may have been stored.
        CallCode::Ok => FailureClass::Transient,
    }
}

/// The action for an operator that fixes `failure`, or `None` if nobody has to act.
///
/// `topic` is the full name, `projects/P/topics/T`.
#[must_use]
pub fn operator_fix_of(failure: &PublishFailure, topic: &str) -> Option<String> {
    if failure.class != FailureClass::Operator {
        return None;
    }
    let FailureCode::Call(code) = failure.code else { return None };
    Some(operator_fix(code, topic))
}

/// The action for an operator if `topic` is refused with a code that only an operator can fix.
#[must_use]
pub fn operator_fix(code: CallCode, topic: &str) -> String {
    let (project, name) = split_topic(topic);
    match code {
        CallCode::NotFound => format!("create topic {name} in project {project}"),
        CallCode::PermissionDenied => format!(
            "let the service account publish: gcloud pubsub topics add-iam-policy-binding {name} \
             --project={project} --role=roles/pubsub.publisher --member=serviceAccount:ACCOUNT"
        ),
        CallCode::Unauthenticated => "give the relay credentials: attach a service account to the \
             instance, or set GOOGLE_APPLICATION_CREDENTIALS to a credentials file; if it has \
             them, check that the account exists and the clock is right"
            .to_owned(),
        CallCode::FailedPrecondition => format!(
            "check that project {project} has billing, that the topic's encryption key is usable, \
             and that the topic's storage policy allows the endpoint's region"
        ),
        CallCode::Unimplemented => {
            "check the endpoint: the service there does not know Pub/Sub's Publish call".to_owned()
        }
        CallCode::InvalidArgument => format!(
            "Pub/Sub refuses every row of topic {name} as invalid: check its schema against the \
             payloads, and that project {project} exists"
        ),
        CallCode::Ok
        | CallCode::Cancelled
        | CallCode::Unknown
        | CallCode::DeadlineExceeded
        | CallCode::AlreadyExists
        | CallCode::ResourceExhausted
        | CallCode::Aborted
        | CallCode::OutOfRange
        | CallCode::Internal
        | CallCode::Unavailable
        | CallCode::DataLoss => format!(
            "Pub/Sub answered {code}, which Publish does not document; check the endpoint, and ask \
             Google Cloud support if it is theirs"
        ),
    }
}

/// Splits a topic into project and short name. Any other text is returned as the name.
#[must_use]
pub fn split_topic(topic: &str) -> (&str, &str) {
    topic
        .strip_prefix("projects/")
        .and_then(|rest| rest.split_once("/topics/"))
        .unwrap_or(("PROJECT", topic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use FailureClass::{Operator, Row as Poison, Transient};

    #[test]
    fn every_code_has_its_class_its_name_and_its_congestion() {
        let table = [
            (0, "OK", Transient, false),
            (1, "CANCELLED", Transient, false),
            (2, "UNKNOWN", Transient, false),
            (3, "INVALID_ARGUMENT", Poison, false),
            (4, "DEADLINE_EXCEEDED", Transient, true),
            (5, "NOT_FOUND", Operator, false),
            (6, "ALREADY_EXISTS", Operator, false),
            (7, "PERMISSION_DENIED", Operator, false),
            (8, "RESOURCE_EXHAUSTED", Transient, true),
            (9, "FAILED_PRECONDITION", Operator, false),
            (10, "ABORTED", Transient, false),
            (11, "OUT_OF_RANGE", Operator, false),
            (12, "UNIMPLEMENTED", Operator, false),
            (13, "INTERNAL", Transient, false),
            (14, "UNAVAILABLE", Transient, false),
            (15, "DATA_LOSS", Operator, false),
            (16, "UNAUTHENTICATED", Operator, false),
        ];
        for (number, name, class, congestion) in table {
            let failure = classify(Code::from_i32(number), "why");
            assert_eq!(failure.code.as_str(), name, "{number}");
            assert_eq!((failure.class, failure.congestion), (class, congestion), "{number}");
        }
    }

    #[test]
    fn a_code_from_the_future_is_transient() {
        assert_eq!(classify(Code::from_i32(99), "").class, Transient);
    }

    #[test]
    fn a_fix_names_the_command_and_the_topic() {
        let fix = |code| operator_fix_of(&classify(code, ""), "projects/shop/topics/orders");
        let missing = fix(Code::NotFound).unwrap();
        assert!(missing.contains("topic orders in project shop"), "{missing}");
        let denied = fix(Code::PermissionDenied).unwrap();
        assert!(denied.contains("roles/pubsub.publisher") && denied.contains("orders"), "{denied}");
        assert!(fix(Code::Unauthenticated).unwrap().contains("GOOGLE_APPLICATION_CREDENTIALS"));
        assert!(fix(Code::FailedPrecondition).unwrap().contains("storage policy"));
        assert!(fix(Code::Unimplemented).unwrap().contains("check the endpoint"));
        assert!(fix(Code::DataLoss).unwrap().contains("DATA_LOSS"));
    }

    #[test]
    fn a_code_that_no_operator_can_fix_has_no_fix() {
        for code in [Code::Unavailable, Code::ResourceExhausted, Code::InvalidArgument] {
            assert_eq!(operator_fix_of(&classify(code, ""), "projects/p/topics/t"), None);
        }
    }
}
