//! Why the archive cannot be used.

use std::error::Error;

use object_store::client::HttpError;
use walrelay_errors::{Code, Coded};

use super::location::{ArchiveLocation, Bucket};

/// The longest part of a service's answer that is shown.
const REASON_BYTES_MAX: usize = 300;

/// The archive cannot be used. No row was deleted without being archived.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} the archive {location}: {reason}")]
pub struct ArchiveError {
    action: &'static str,
    location: ArchiveLocation,
    problem: ArchiveProblem,
    reason: String,
}

/// The kinds of problems. Each has its own fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveProblem {
    /// No credentials were found, or the service does not accept them.
    Credentials,
    /// The bucket or the directory does not exist.
    Missing,
    /// The service refuses a request.
    Permission,
    Unreachable,
    Other,
}

impl ArchiveError {
    #[must_use]
    pub const fn new(
        action: &'static str,
        location: ArchiveLocation,
        problem: ArchiveProblem,
        reason: String,
    ) -> Self {
        Self { action, location, problem, reason }
    }

    pub(super) fn of_store(
        action: &'static str,
        location: ArchiveLocation,
        error: &object_store::Error,
    ) -> Self {
        let (problem, reason) = (problem_of(error), reason_of(error));
        Self { action, location, problem, reason }
    }
}

impl Coded for ArchiveError {
    fn code(&self) -> Code {
        match self.problem {
            ArchiveProblem::Credentials => Code::ArchiveCredentialsMissing,
            ArchiveProblem::Missing => Code::ArchiveMissing,
            ArchiveProblem::Permission => Code::ArchivePermissionMissing,
            ArchiveProblem::Unreachable => Code::ArchiveUnreachable,
            ArchiveProblem::Other => Code::ArchiveFailed,
        }
    }

    fn fix(&self) -> Option<String> {
        match (self.problem, &self.location) {
            (ArchiveProblem::Permission, ArchiveLocation::S3(Bucket { name, prefix })) => {
                let folder = if prefix.is_root() { String::new() } else { format!("{prefix}/") };
                Some(format!(
                    "allow s3:PutObject and s3:GetObject on arn:aws:s3:::{name}/{folder}*, and check the access key"
                ))
            }
            (ArchiveProblem::Permission, ArchiveLocation::CloudStorage(bucket)) => Some(format!(
                "grant the roles roles/storage.objectCreator and roles/storage.objectViewer on the bucket {}",
                bucket.name
            )),
            (
                ArchiveProblem::Permission
                | ArchiveProblem::Credentials
                | ArchiveProblem::Missing
                | ArchiveProblem::Unreachable
                | ArchiveProblem::Other,
                _,
            ) => None,
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the enum is non-exhaustive")]
fn problem_of(error: &object_store::Error) -> ArchiveProblem {
    use object_store::Error as E;
    match error {
        E::NotFound { .. } => ArchiveProblem::Missing,
        E::PermissionDenied { .. } => ArchiveProblem::Permission,
        E::Unauthenticated { .. } => ArchiveProblem::Credentials,
        _ => {
            let is_http = chain(error).any(<dyn Error>::is::<HttpError>);
            let is_io = |kind| io_kind(error) == Some(kind);
            if is_http || is_server_failure(&root_cause(error).to_string()) {
                ArchiveProblem::Unreachable
            } else if is_io(std::io::ErrorKind::PermissionDenied) {
                ArchiveProblem::Permission
            } else if is_io(std::io::ErrorKind::NotFound) {
                ArchiveProblem::Missing
            } else {
                ArchiveProblem::Other
            }
        }
    }
}

/// Returns whether the service answered that it cannot work now. The library has no type for it.
fn is_server_failure(cause: &str) -> bool {
    ["status code: 5", "status code: 429"].iter().any(|status| cause.contains(status))
}

fn io_kind(error: &object_store::Error) -> Option<std::io::ErrorKind> {
    let io = |cause: &(dyn Error + 'static)| Some(cause.downcast_ref::<std::io::Error>()?.kind());
    chain(error).find_map(io)
}

fn chain(error: &object_store::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(Some(error as &(dyn Error + 'static)), |cause| (*cause).source())
}

fn root_cause(error: &object_store::Error) -> &(dyn Error + 'static) {
    chain(error).last().unwrap_or(error)
}

/// Returns the root cause without what it may repeat of the request. A service that rejects a
/// signature answers with the signed headers, which contain a session token.
pub(super) fn reason_of(error: &object_store::Error) -> String {
    let cause = root_cause(error).to_string();
    let Some(end) = cause.find(['<', '{']) else { return shortened(&cause) };
    let (status, body) = cause.split_at(end);
    let told = ["Code", "Message", "Details"].iter().filter_map(|name| element(body, name));
    let told: Vec<_> = told.collect();
    let status = status.trim_end_matches([':', ' ']);
    match told.is_empty() {
        true => shortened(status),
        false => shortened(&format!("{status}: {}", told.join(": "))),
    }
}

/// Returns the text of an XML element without children.
fn element<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = body.split_once(&format!("{name}>"))?;
    Some(rest.split_once('<')?.0).filter(|text| !text.is_empty())
}

fn shortened(text: &str) -> String {
    let end = text.floor_char_boundary(REASON_BYTES_MAX);
    text[..end].trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(body: &str) -> object_store::Error {
        let source = format!("Server returned non-2xx status code: 403 Forbidden: {body}").into();
        object_store::Error::PermissionDenied { path: "x".to_owned(), source }
    }

    #[test]
    fn a_reason_repeats_no_signed_header() {
        let body = "<?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code><Message>The signature \
                    does not match</Message><AWSAccessKeyId>AKIA</AWSAccessKeyId><CanonicalRequest>PUT\n\
                    x-amz-security-token:hunter2</CanonicalRequest></Error>";
        assert_eq!(
            reason_of(&answered(body)),
            "Server returned non-2xx status code: 403 Forbidden: SignatureDoesNotMatch: The signature does not match"
        );
        for unknown in ["<html>hunter2</html>", "{\"token\": \"hunter2\"}"] {
            let unknown = reason_of(&answered(unknown));
            assert_eq!(unknown, "Server returned non-2xx status code: 403 Forbidden");
        }
    }

    #[test]
    fn a_missing_permission_is_named_with_the_bucket() {
        let location: ArchiveLocation = "s3://bucket/old".parse().expect("a location");
        let error = ArchiveError::of_store("write to", location, &answered(""));
        assert_eq!(error.code(), Code::ArchivePermissionMissing);
        assert!(error.fix().expect("a fix").contains("arn:aws:s3:::bucket/old/*"));
    }

    #[test]
    fn a_service_that_cannot_work_now_is_unreachable() {
        let source = "Server returned non-2xx status code: 503 Service Unavailable: ".into();
        let error = object_store::Error::Generic { store: "S3", source };
        assert_eq!(problem_of(&error), ArchiveProblem::Unreachable);
    }
}
