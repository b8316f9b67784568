//! Faults: which requests misbehave, and how. The grammar is described at the crate's top.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tonic::Code;

use crate::wire::codes::{error_code, name_of};

/// What a matching Publish request meets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Nothing is stored; the reply is this error.
    Reject(Code),
    /// Everything is stored; the reply is this error all the same.
    FailAfterPublish(Code),
    /// Everything is stored at once; the reply waits until it is released.
    Hold,
    /// Nothing is stored until it is released; then it is stored and answered. If the client gave
    /// up in the meantime, nothing is ever stored.
    HoldBefore,
    /// Everything is stored at once; the reply comes after this time. Another fault that matches
    /// too is applied after the delay.
    Delay(Duration),
    /// Nothing is stored and nothing is ever answered.
    BlackHole,
}

/// One fault: what it matches and what it does. Conditions that are `None` match everything; for a
/// request of many messages, an attribute matches when any of them carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Full name of the topic, or its last part.
    pub topic: Option<String>,
    /// The ordering key of the request.
    pub ordering_key: Option<String>,
    /// Attributes; all of them have to be found, each in any message of the request.
    pub attributes: Vec<(String, String)>,
    /// How many of a hundred matching requests are hit; drawn from a seeded generator.
    pub percent: u8,
    /// How many matching requests pass before it begins.
    pub skip: u64,
    /// How many requests it hits before it is spent; `None` means no end.
    pub first: Option<u64>,
    /// What happens to those hit.
    pub effect: Effect,
}

impl Fault {
    /// A fault that hits every request.
    #[must_use]
    pub fn all(effect: Effect) -> Self {
        Self {
            topic: None,
            ordering_key: None,
            attributes: Vec::new(),
            percent: 100,
            skip: 0,
            first: None,
            effect,
        }
    }

    /// Only requests to this topic: its full name or its last part.
    #[must_use]
    pub fn on_topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Only requests with this ordering key.
    #[must_use]
    pub fn on_key(mut self, key: impl Into<String>) -> Self {
        self.ordering_key = Some(key.into());
        self
    }

    /// Only requests with a message that carries this attribute.
    #[must_use]
    pub fn on_attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.push((name.into(), value.into()));
        self
    }

    /// Only this share of the matching requests; more than 100 is 100.
    #[must_use]
    pub fn percent(mut self, percent: u8) -> Self {
        self.percent = percent.min(100);
        self
    }

    /// Only the first `count` matching requests.
    #[must_use]
    pub fn first(mut self, count: u64) -> Self {
        self.first = Some(count);
        self
    }

    /// Only after `count` matching requests have passed.
    #[must_use]
    pub fn skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }
}

/// Everything that is wrong with a fault's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fault {text:?}: {}", problems.join("; "))]
pub struct FaultSyntaxError {
    /// The text as it was given.
    pub text: String,
    /// Each problem, in the order of the text.
    pub problems: Vec<String>,
}

impl FromStr for Fault {
    type Err = FaultSyntaxError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut fault = Self::all(Effect::BlackHole);
        let mut effects = Vec::new();
        let mut problems = Vec::new();
        for term in terms(text) {
            let (name, value) = match term.split_once('=') {
                Some((name, value)) => (name.trim(), Some(value)),
                None => (term.trim(), None),
            };
            match parse_term(&mut fault, name, value) {
                Ok(Some(effect)) => effects.push(effect),
                Ok(None) => {}
                Err(problem) => problems.push(problem),
            }
        }
        match effects.len() {
            0 if problems.is_empty() => problems.push(format!("no effect: give one of {EFFECTS}")),
            0 | 1 => {}
            _ => problems.push("more than one effect: give each a fault of its own".to_owned()),
        }
        match effects.pop() {
            Some(effect) if problems.is_empty() => Ok(Self { effect, ..fault }),
            _ => Err(FaultSyntaxError { text: text.to_owned(), problems }),
        }
    }
}

const EFFECTS: &str =
    "reject=CODE, fail-after-publish=CODE, hold, hold-before, delay=TIME, black-hole";

/// Reads one term into the fault; an effect is returned instead, because there must be just one.
fn parse_term(
    fault: &mut Fault,
    name: &str,
    value: Option<&str>,
) -> Result<Option<Effect>, String> {
    let given = || value.filter(|v| !v.is_empty()).ok_or(format!("{name} needs a value"));
    let number = || {
        let text = given()?;
        text.parse::<u64>().map_err(|_| format!("{name}={text} is not a whole number"))
    };
    match name {
        "topic" => fault.topic = Some(given()?.to_owned()),
        // An empty key is a condition of its own: requests without one.
        "key" => fault.ordering_key = Some(value.unwrap_or_default().to_owned()),
        "event_type" | "event_id" => {
            fault.attributes.push((name.to_owned(), given()?.to_owned()));
        }
        "percent" => {
            let percent = u8::try_from(number()?).ok().filter(|p| (1..=100).contains(p));
            fault.percent = percent.ok_or(format!("{name} is out of range: 1 to 100"))?;
        }
        "first" => fault.first = Some(number()?),
        "skip" => fault.skip = number()?,
        "reject" => return Ok(Some(Effect::Reject(error_code(given()?)?))),
        "fail-after-publish" => return Ok(Some(Effect::FailAfterPublish(error_code(given()?)?))),
        "delay" => return Ok(Some(Effect::Delay(duration_of(given()?)?))),
        "hold" | "hold-before" | "black-hole" if value.is_some() => {
            return Err(format!("{name} takes no value"));
        }
        "hold" => return Ok(Some(Effect::Hold)),
        "hold-before" => return Ok(Some(Effect::HoldBefore)),
        "black-hole" => return Ok(Some(Effect::BlackHole)),
        "" => return Err("an empty term between two commas".to_owned()),
        other => match other.strip_prefix("attr.").filter(|rest| !rest.is_empty()) {
            Some(attribute) => {
                let value = value.unwrap_or_default().to_owned();
                fault.attributes.push((attribute.to_owned(), value));
            }
            None => return Err(format!("unknown term {other:?}")),
        },
    }
    Ok(None)
}

/// Splits at commas; a backslash takes the character behind it literally.
fn terms(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut characters = text.trim().chars();
    while let Some(character) = characters.next() {
        let literal = match character {
            ',' => {
                terms.push(String::new());
                continue;
            }
            '\\' => characters.next().unwrap_or('\\'),
            other => other,
        };
        if let Some(term) = terms.last_mut() {
            term.push(literal);
        }
    }
    terms
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace(',', "\\,")
}

fn duration_of(text: &str) -> Result<Duration, String> {
    let problem = || format!("delay={text} is not a time like 200ms or 1s");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| problem())?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        _ => Err(problem()),
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(topic) = &self.topic {
            write!(f, "topic={},", escaped(topic))?;
        }
        if let Some(key) = &self.ordering_key {
            write!(f, "key={},", escaped(key))?;
        }
        for (name, value) in &self.attributes {
            write!(f, "attr.{}={},", escaped(name), escaped(value))?;
        }
        if self.percent != 100 {
            write!(f, "percent={},", self.percent)?;
        }
        if self.skip != 0 {
            write!(f, "skip={},", self.skip)?;
        }
        if let Some(first) = self.first {
            write!(f, "first={first},")?;
        }
        match &self.effect {
            Effect::Reject(code) => write!(f, "reject={}", name_of(*code)),
            Effect::FailAfterPublish(code) => write!(f, "fail-after-publish={}", name_of(*code)),
            Effect::Hold => f.write_str("hold"),
            Effect::HoldBefore => f.write_str("hold-before"),
            Effect::Delay(time) => write!(f, "delay={}ms", time.as_millis()),
            Effect::BlackHole => f.write_str("black-hole"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_the_fault_and_the_fault_says_the_text() {
        let cases = [
            ("reject=unavailable", Fault::all(Effect::Reject(Code::Unavailable))),
            (
                "topic=orders.events,key=A-17,percent=50,reject=UNAVAILABLE",
                Fault::all(Effect::Reject(Code::Unavailable))
                    .on_topic("orders.events")
                    .on_key("A-17")
                    .percent(50),
            ),
            (
                "event_type=OrderPaid, first=3 ,fail-after-publish=DEADLINE_EXCEEDED",
                Fault::all(Effect::FailAfterPublish(Code::DeadlineExceeded))
                    .on_attribute("event_type", "OrderPaid")
                    .first(3),
            ),
        ];
        // Spaces stand around names only, never inside a value: a key may begin with one.
        for (text, fault) in &cases[..2] {
            assert_eq!(text.parse::<Fault>().as_ref(), Ok(fault));
        }
        assert!(cases[2].0.parse::<Fault>().is_err());

        for fault in [
            Fault::all(Effect::Hold).on_key("a,b\\c").skip(2),
            Fault::all(Effect::HoldBefore).on_key(""),
            Fault::all(Effect::Delay(Duration::from_millis(1500))).on_attribute("x.y", ""),
            cases[2].1.clone(),
        ] {
            assert_eq!(fault.to_string().parse::<Fault>(), Ok(fault));
        }
        assert_eq!("delay=2s".parse(), Ok(Fault::all(Effect::Delay(Duration::from_secs(2)))));
    }

    #[test]
    fn all_problems_of_a_text_are_told_at_once() {
        let text = "topic=,percent=0,colour=red,reject=NOPE,hold=1,delay=5,,first=x";
        let error = text.parse::<Fault>().unwrap_err();
        assert_eq!(error.problems.len(), 8, "{error}");
        assert!(error.to_string().contains("\"NOPE\" is not a gRPC error code"));

        for bad in ["", "topic=x", "hold,black-hole", "reject=OK", "percent=101,hold"] {
            assert!(bad.parse::<Fault>().is_err(), "{bad}");
        }
    }
}
