//! gRPC's status codes and their names.

use tonic::Code;

/// gRPC's names of the codes, in the order of their numbers.
pub(crate) const CODES: [(Code, &str); 17] = [
    (Code::Ok, "OK"),
    (Code::Cancelled, "CANCELLED"),
    (Code::Unknown, "UNKNOWN"),
    (Code::InvalidArgument, "INVALID_ARGUMENT"),
    (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
    (Code::NotFound, "NOT_FOUND"),
    (Code::AlreadyExists, "ALREADY_EXISTS"),
    (Code::PermissionDenied, "PERMISSION_DENIED"),
    (Code::ResourceExhausted, "RESOURCE_EXHAUSTED"),
    (Code::FailedPrecondition, "FAILED_PRECONDITION"),
    (Code::Aborted, "ABORTED"),
    (Code::OutOfRange, "OUT_OF_RANGE"),
    (Code::Unimplemented, "UNIMPLEMENTED"),
    (Code::Internal, "INTERNAL"),
    (Code::Unavailable, "UNAVAILABLE"),
    (Code::DataLoss, "DATA_LOSS"),
    (Code::Unauthenticated, "UNAUTHENTICATED"),
];

/// Returns the code of an error by its name, in any case. `OK` is no error.
pub(crate) fn error_code(text: &str) -> Result<Code, String> {
    let errors = CODES.iter().filter(|(code, _)| *code != Code::Ok);
    let found = errors.into_iter().find(|(_, name)| name.eq_ignore_ascii_case(text));
    found.map(|(code, _)| *code).ok_or_else(|| format!("{text:?} is not a gRPC error code"))
}

pub(crate) fn name_of(code: Code) -> &'static str {
    CODES.iter().find(|(its, _)| *its == code).map_or("UNKNOWN", |(_, name)| name)
}
