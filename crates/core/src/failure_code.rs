//! The codes of failures: the status of a call without gRPC types, or a reason of our own.

use std::fmt;
use std::str::FromStr;

/// The status code of a call to Pub/Sub. Dispatch state stores its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallCode {
    /// Success.
    Ok,
    /// The call was cancelled.
    Cancelled,
    /// A failure without a code of its own.
    Unknown,
    /// The request is invalid.
    InvalidArgument,
    /// No answer in time.
    DeadlineExceeded,
    /// The topic or the subscription does not exist.
    NotFound,
    /// The object exists already.
    AlreadyExists,
    /// The account lacks a permission.
    PermissionDenied,
    /// A quota is used up.
    ResourceExhausted,
    /// The project or the topic is in a state that refuses the call.
    FailedPrecondition,
    /// The call conflicted with another one.
    Aborted,
    /// A value is out of its range.
    OutOfRange,
    /// The service does not know the call.
    Unimplemented,
    /// The service has an internal error.
    Internal,
    /// The service cannot be reached.
    Unavailable,
    /// The service has lost data.
    DataLoss,
    /// The service does not accept the credentials.
    Unauthenticated,
}

impl CallCode {
    /// All codes, in the order of gRPC's numbers.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// Returns gRPC's name of the code, such as `UNAVAILABLE`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Cancelled => "CANCELLED",
            Self::Unknown => "UNKNOWN",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

impl fmt::Display for CallCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is no gRPC code, such as the reason why a row is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownCallCode;

impl FromStr for CallCode {
    type Err = UnknownCallCode;

    fn from_str(name: &str) -> Result<Self, UnknownCallCode> {
        Self::ALL.into_iter().find(|code| code.as_str() == name).ok_or(UnknownCallCode)
    }
}

/// Why a row was not published. Dispatch state and metrics have the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureCode {
    /// The status of the call to Pub/Sub.
    Call(CallCode),
    /// The headers of the row cannot be read.
    BadHeaders,
    /// The message exceeds a limit of Pub/Sub, or is empty.
    LocalLimit,
    /// A value is larger than any message may be.
    TooLarge,
    /// The row has no event id, or leads to no topic.
    Unroutable,
    /// The recorded message cannot be read.
    Unreadable,
    /// A replay in place cannot write to dispatch state.
    DispatchState,
    /// A replay in place has reached another server.
    OtherServer,
}

impl FailureCode {
    /// Returns the name of the code.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Call(code) => code.as_str(),
            Self::BadHeaders => "BAD_HEADERS",
            Self::LocalLimit => "LOCAL_LIMIT",
            Self::TooLarge => "TOO_LARGE",
            Self::Unroutable => "UNROUTABLE",
            Self::Unreadable => "UNREADABLE",
            Self::DispatchState => "DISPATCH_STATE",
            Self::OtherServer => "OTHER_SERVER",
        }
    }
}

impl From<CallCode> for FailureCode {
    fn from(code: CallCode) -> Self {
        Self::Call(code)
    }
}

impl fmt::Display for FailureCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_read_back_from_its_name() {
        for code in CallCode::ALL {
            assert_eq!(code.as_str().parse(), Ok(code));
        }
        assert_eq!("SPILLED".parse::<CallCode>(), Err(UnknownCallCode));
        assert_eq!("unavailable".parse::<CallCode>(), Err(UnknownCallCode));
    }
}
