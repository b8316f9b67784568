//! What a refused publish means for the rows in it (design: "What a failure means").

/// Who has to act before the same request can succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// Nobody: the same request is sent again until it is stored.
    Transient,
    /// A person: a topic, a right or a project setting is missing. Retried too, more slowly.
    Operator,
    /// The producer of the row: Pub/Sub will refuse it for ever.
    Row,
}

/// A publish that Pub/Sub did not confirm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishFailure {
    /// Who has to act.
    pub class: FailureClass,
    /// Pub/Sub or the network is overloaded: send fewer requests at once.
    pub congestion: bool,
    /// The gRPC code by name, such as `UNAVAILABLE`.
    pub code: &'static str,
    /// What the service said; at most 1 KiB, never the message's content.
    pub message: String,
}
