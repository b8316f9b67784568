//! The meaning of a SQLSTATE for a whole batch. An error about one event never reaches this module,
//! because the functions in the database isolate that event.

/// The reason why a batch was not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failure {
    /// A conflict with another transaction. The batch is sent again, smaller. Not an attempt.
    Conflict,
    /// A lock was not granted in time. Not an attempt.
    Locked,
    /// The session ended or is read-only. The database is reachable, and a new session may succeed.
    Severed,
    /// The database cannot serve at the moment. Every batch waits.
    Outage,
    /// A handler or a permission is missing. An operator has to act.
    Operator,
    /// The consumer is paused.
    Paused,
    /// A rebuild has begun a new generation, whose number has to be read again.
    Rebuilt,
    /// The consumer's row is gone.
    Unregistered,
}

impl Failure {
    /// Returns the meaning of the server's answer. `None` is a connection that broke.
    #[must_use]
    pub fn of_sqlstate(code: Option<&str>) -> Self {
        let Some(code) = code else { return Self::Outage };
        match code {
            // Deadlock, serialization failure, statement timeout.
            "40001" | "40P01" | "57014" => Self::Conflict,
            "55P03" => Self::Locked,
            "WR001" => Self::Unregistered,
            "WR002" => Self::Rebuilt,
            "WR003" => Self::Paused,
            "WR004" | "WR005" => Self::Operator,
            // Of class 25, only the error of a server that became a standby passes by itself.
            "25006" => Self::Outage,
            _ => match code.get(..2) {
                Some("0A" | "28" | "3D" | "3F" | "42" | "58" | "HV") => Self::Operator,
                _ => Self::Outage,
            },
        }
    }

    /// Returns whether an event may itself cause this failure. The proof is that other events pass.
    #[must_use]
    pub const fn may_be_its_own(self) -> bool {
        match self {
            Self::Conflict | Self::Locked | Self::Severed | Self::Outage | Self::Operator => true,
            Self::Paused | Self::Rebuilt | Self::Unregistered => false,
        }
    }

    /// Returns whether a healthy event meets this failure now and then, because of a concurrent
    /// transaction or a terminated session. The database is reachable and has answered.
    #[must_use]
    pub const fn may_be_transient(self) -> bool {
        match self {
            Self::Conflict | Self::Locked | Self::Severed => true,
            Self::Outage | Self::Operator | Self::Paused | Self::Rebuilt | Self::Unregistered => {
                false
            }
        }
    }

    /// Returns the failure as one word, for logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Conflict | Self::Locked => "conflict",
            Self::Severed | Self::Outage => "outage",
            Self::Operator => "operator",
            Self::Paused => "paused",
            Self::Rebuilt => "rebuilt",
            Self::Unregistered => "unregistered",
        }
    }
}

/// Prefixes of the codes for something that the handler needs. `app_inbox_fault` has the same list.
const DEPENDENCY_CODE_PREFIXES: [&str; 11] =
    ["08", "0A", "28", "3D", "3F", "42", "53", "57P", "58", "HV", "DELIVERY_"];
/// Codes for a conflict with another transaction, or for a read-only server.
const MOMENT: [&str; 4] = ["25006", "40001", "40P01", "55P03"];

/// Returns whether this code is about something that the handler needs, so that other events may
/// pass.
#[must_use]
pub fn is_of_surroundings(code: &str) -> bool {
    DEPENDENCY_CODE_PREFIXES.iter().any(|beginning| code.starts_with(beginning))
}

/// Returns the prefixes of codes that say nothing about an event. Something that the event needs is
/// missing, or another transaction conflicts. Neither counts as an attempt.
pub fn uncounted_code_prefixes() -> impl Iterator<Item = &'static str> {
    DEPENDENCY_CODE_PREFIXES.into_iter().chain(MOMENT)
}

/// Returns whether an error with this code says nothing about an event.
#[must_use]
pub fn is_uncounted_failure(code: &str) -> bool {
    uncounted_code_prefixes().any(|beginning| code.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_event_lacks_is_no_attempt_and_a_lock_is_not_of_its_surroundings() {
        for code in [
            "08006",
            "0A000",
            "28000",
            "3D000",
            "3F000",
            "42501",
            "42883",
            "53200",
            "57P03",
            "58P01",
            "HV00N",
            "DELIVERY_REFUSED",
        ] {
            assert!(is_of_surroundings(code) && is_uncounted_failure(code), "{code}");
        }
        for code in ["25006", "40001", "40P01", "55P03"] {
            assert!(is_uncounted_failure(code) && !is_of_surroundings(code), "{code}");
        }
        for code in ["57014", "22012", "P0001", "WR001"] {
            assert!(!is_uncounted_failure(code), "{code}");
        }
    }

    #[test]
    fn every_class_of_the_table_has_its_meaning() {
        for (code, meaning) in [
            ("40001", Failure::Conflict),
            ("40P01", Failure::Conflict),
            ("55P03", Failure::Locked),
            ("08006", Failure::Outage),
            ("57P01", Failure::Outage),
            ("53300", Failure::Outage),
            ("25006", Failure::Outage),
            ("42883", Failure::Operator),
            ("42501", Failure::Operator),
            ("WR001", Failure::Unregistered),
            ("WR002", Failure::Rebuilt),
            ("WR003", Failure::Paused),
        ] {
            assert_eq!(Failure::of_sqlstate(Some(code)), meaning, "{code}");
        }
        assert_eq!(Failure::of_sqlstate(None), Failure::Outage);
    }
}
