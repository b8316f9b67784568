//! A fault: the calls that it affects, its conditions, and its effect.

use std::time::Duration;

use tonic::Code;

/// The kind of call that a fault affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Publish,
    /// A Pull request, when it arrives.
    Pull,
    /// A StreamingPull, when the client opens it.
    StreamingPull,
    /// A response of Pull or StreamingPull that contains messages.
    Delivery,
    /// Acknowledgements, as a separate request or on a stream.
    Acknowledge,
    /// Changes of deadlines, as a separate request or on a stream. A nack is one of them.
    ModifyAckDeadline,
}

impl Call {
    /// All kinds of calls, with their names in the text of a fault.
    pub(crate) const ALL: [(Self, &'static str); 6] = [
        (Self::Publish, "publish"),
        (Self::Pull, "pull"),
        (Self::StreamingPull, "streaming-pull"),
        (Self::Delivery, "delivery"),
        (Self::Acknowledge, "acknowledge"),
        (Self::ModifyAckDeadline, "modify-ack-deadline"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(call, _)| *call == self).map_or("", |(_, name)| name)
    }

    /// Returns whether the call has messages that a condition could match.
    pub(crate) fn has_messages(self) -> bool {
        !matches!(self, Self::Pull | Self::StreamingPull)
    }
}

/// The reason why ack ids are not confirmed on a subscription with exactly-once delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckFailure {
    /// The ids are malformed or have expired. A retry cannot succeed.
    Invalid,
    /// An earlier message of the key has to be acknowledged first.
    Unordered,
    /// A temporary failure. A retry may succeed.
    Temporary,
}

/// The effect of a fault on a call. "Performed" means that the emulator stores, leases,
/// acknowledges or moves the messages as the call requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The call is not performed. The reply, or the end of the stream, is this error.
    Reject(Code),
    /// The call is performed, and messages to deliver on a stream are sent. The reply, or the end
    /// of the stream, is nevertheless this error.
    FailAfter(Code),
    /// The call is performed at once. The reply waits for a release.
    Hold,
    /// The call is performed and answered only after a release. If the client gives up before, the
    /// call is never performed.
    HoldBefore,
    /// The call is performed at once, and the reply comes after this time. Another matching fault
    /// applies after the delay.
    Delay(Duration),
    /// The call is neither performed nor answered. Messages to deliver are leased and lost.
    BlackHole,
    /// The call is not performed, and the reply reports success: a lost acknowledgement.
    Lose,
    /// The messages are delivered and their leases end at once, so that the messages are
    /// redelivered to any consumer.
    Expire,
    /// The call is not performed. The reply reports the failure only with exactly-once delivery.
    FailIds(AckFailure),
}

impl Effect {
    pub(crate) fn is_possible_for(self, call: Call) -> bool {
        match self {
            Self::Reject(_) | Self::HoldBefore | Self::Delay(_) | Self::BlackHole => true,
            Self::FailAfter(_) | Self::Hold => call.has_messages(),
            Self::Lose | Self::FailIds(_) => {
                matches!(call, Call::Acknowledge | Call::ModifyAckDeadline)
            }
            Self::Expire => call == Call::Delivery,
        }
    }
}

/// A fault with its conditions and its effect. A condition of `None` matches every call. In a call
/// with many messages, a condition on a message matches if any message meets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub call: Call,
    /// The full name of the topic, or its last part.
    pub topic: Option<String>,
    /// The full name of the subscription, or its last part.
    pub subscription: Option<String>,
    pub ordering_key: Option<String>,
    /// The attributes. Each must be present in some message.
    pub attributes: Vec<(String, String)>,
    /// The percentage of matching calls to affect, drawn from a seeded generator.
    pub percent: u8,
    /// The number of matching calls to skip first.
    pub skip: u64,
    /// The maximum number of calls to affect. `None` means no limit.
    pub first: Option<u64>,
    pub effect: Effect,
}

impl Fault {
    /// Creates a fault that affects every Publish request.
    #[must_use]
    pub fn all(effect: Effect) -> Self {
        Self {
            call: Call::Publish,
            topic: None,
            subscription: None,
            ordering_key: None,
            attributes: Vec::new(),
            percent: 100,
            skip: 0,
            first: None,
            effect,
        }
    }

    /// Affects calls of this kind instead of Publish.
    #[must_use]
    pub fn on(mut self, call: Call) -> Self {
        self.call = call;
        self
    }

    #[must_use]
    pub fn on_topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    #[must_use]
    pub fn on_subscription(mut self, subscription: impl Into<String>) -> Self {
        self.subscription = Some(subscription.into());
        self
    }

    #[must_use]
    pub fn on_key(mut self, key: impl Into<String>) -> Self {
        self.ordering_key = Some(key.into());
        self
    }

    #[must_use]
    pub fn on_attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.push((name.into(), value.into()));
        self
    }

    /// Affects only this percentage of the matching calls. A value above 100 counts as 100.
    #[must_use]
    pub fn percent(mut self, percent: u8) -> Self {
        self.percent = percent.min(100);
        self
    }

    #[must_use]
    pub fn first(mut self, count: u64) -> Self {
        self.first = Some(count);
        self
    }

    #[must_use]
    pub fn skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }
}
