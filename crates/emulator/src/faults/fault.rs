//! A fault: what it strikes, under which conditions, and what happens then.

use std::time::Duration;

use tonic::Code;

/// What a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// A Publish request.
    Publish,
    /// A Pull request, when it arrives.
    Pull,
    /// A StreamingPull, when it is opened.
    StreamingPull,
    /// A response of Pull or StreamingPull that has messages.
    Delivery,
    /// Acknowledgements, as a request of their own or on a stream.
    Acknowledge,
    /// Changes of deadlines, as a request of their own or on a stream; giving back is one.
    ModifyAckDeadline,
}

impl Call {
    /// Every call, with its name in the text of a fault.
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

    /// Whether there are messages that a condition could look at.
    pub(crate) fn has_messages(self) -> bool {
        !matches!(self, Self::Pull | Self::StreamingPull)
    }
}

/// Why ack ids come back unconfirmed from a subscription with exactly-once delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unconfirmed {
    /// The ids are malformed or have expired; trying again does not help.
    Invalid,
    /// An earlier message of the key has to be acknowledged first.
    Unordered,
    /// For now; trying again may help.
    Temporary,
}

/// What happens to a call that a fault hits. "Done" means stored, leased, acknowledged or moved, as
/// the call would have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing is done; the reply, or the end of the stream, is this error.
    Reject(Code),
    /// Everything is done, and messages to deliver on a stream are sent; the reply, or the end of
    /// the stream, is this error all the same.
    FailAfter(Code),
    /// Everything is done at once; the reply waits until it is released.
    Hold,
    /// Nothing is done until it is released; then it is done and answered. If the client gave up in
    /// the meantime, nothing is ever done.
    HoldBefore,
    /// Everything is done at once; the reply comes after this time. Another fault that matches too
    /// is applied after the delay.
    Delay(Duration),
    /// Nothing is done and nothing is ever answered. Messages to deliver are leased and lost.
    BlackHole,
    /// Nothing is done, and the reply says that it was: a lost acknowledgement.
    Lose,
    /// The messages are delivered and their leases end at once: they are delivered again, to anybody.
    Expire,
    /// Nothing is done. With exactly-once delivery the reply says so; without, it cannot.
    FailIds(Unconfirmed),
}

impl Effect {
    /// Whether this can happen to such a call.
    pub(crate) fn goes_with(self, call: Call) -> bool {
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

/// One fault: what it matches and what it does. Conditions that are `None` match everything; of a
/// call with many messages, a condition on a message matches when any of them meets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What it strikes.
    pub call: Call,
    /// Full name of the topic, or its last part.
    pub topic: Option<String>,
    /// Full name of the subscription, or its last part.
    pub subscription: Option<String>,
    /// The ordering key of a message.
    pub ordering_key: Option<String>,
    /// Attributes; all of them have to be found, each in any message.
    pub attributes: Vec<(String, String)>,
    /// How many of a hundred matching calls are hit; drawn from a seeded generator.
    pub percent: u8,
    /// How many matching calls pass before it begins.
    pub skip: u64,
    /// How many calls it hits before it is spent; `None` means no end.
    pub first: Option<u64>,
    /// What happens to those hit.
    pub effect: Effect,
}

impl Fault {
    /// A fault that hits every Publish request.
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

    /// Strikes these calls instead of Publish.
    #[must_use]
    pub fn on(mut self, call: Call) -> Self {
        self.call = call;
        self
    }

    /// Only calls of this topic: its full name or its last part.
    #[must_use]
    pub fn on_topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Only calls of this subscription: its full name or its last part.
    #[must_use]
    pub fn on_subscription(mut self, subscription: impl Into<String>) -> Self {
        self.subscription = Some(subscription.into());
        self
    }

    /// Only calls with a message of this ordering key.
    #[must_use]
    pub fn on_key(mut self, key: impl Into<String>) -> Self {
        self.ordering_key = Some(key.into());
        self
    }

    /// Only calls with a message that carries this attribute.
    #[must_use]
    pub fn on_attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.push((name.into(), value.into()));
        self
    }

    /// Only this share of the matching calls; more than 100 is 100.
    #[must_use]
    pub fn percent(mut self, percent: u8) -> Self {
        self.percent = percent.min(100);
        self
    }

    /// Only the first `count` matching calls.
    #[must_use]
    pub fn first(mut self, count: u64) -> Self {
        self.first = Some(count);
        self
    }

    /// Only after `count` matching calls have passed.
    #[must_use]
    pub fn skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }
}
