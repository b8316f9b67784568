//! Parses and prints a fault as text. `docs/reference/emulator-faults.md` describes the language.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::faults::fault::{AckFailure, Call, Effect, Fault};
use crate::wire::codes::{error_code, name_of};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fault {text:?}: {}", problems.join("; "))]
pub struct FaultSyntaxError {
    pub text: String,
    /// The problems, in the order of the text.
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
            let read = match effect(name, value) {
                Some(effect) => effect.map(|effect| effects.push((name.to_owned(), effect))),
                None => condition(&mut fault, name, value),
            };
            problems.extend(read.err());
        }
        match effects.len() {
            0 if problems.is_empty() => problems.push(format!("no effect: give one of {EFFECTS}")),
            0 | 1 => {}
            _ => problems.push("more than one effect: give each a fault of its own".to_owned()),
        }
        if let Some((name, effect)) = effects.pop() {
            fault.effect = effect;
            problems.extend(misfits(&fault, &name));
        }
        match problems.is_empty() {
            true => Ok(fault),
            false => Err(FaultSyntaxError { text: text.to_owned(), problems }),
        }
    }
}

const EFFECTS: &str = "reject=CODE, fail-after=CODE, hold, hold-before, delay=TIME, black-hole, \
                       lose, expire, fail-ids=REASON";

const REASONS: [(AckFailure, &str); 3] = [
    (AckFailure::Invalid, "invalid"),
    (AckFailure::Unordered, "unordered"),
    (AckFailure::Temporary, "temporary"),
];

/// Parses a term that is an effect. Returns `None` for any other term.
fn effect(name: &str, value: Option<&str>) -> Option<Result<Effect, String>> {
    let given = || given(name, value);
    let bare = |effect| match value {
        None => Ok(effect),
        Some(_) => Err(format!("{name} takes no value")),
    };
    Some(match name {
        "reject" => given().and_then(error_code).map(Effect::Reject),
        "fail-after" | "fail-after-publish" => given().and_then(error_code).map(Effect::FailAfter),
        "delay" => given().and_then(duration_of).map(Effect::Delay),
        "fail-ids" => given().and_then(reason_of).map(Effect::FailIds),
        "hold" => bare(Effect::Hold),
        "hold-before" => bare(Effect::HoldBefore),
        "black-hole" => bare(Effect::BlackHole),
        "lose" => bare(Effect::Lose),
        "expire" => bare(Effect::Expire),
        _ => return None,
    })
}

/// Parses a term that is a condition into the fault.
fn condition(fault: &mut Fault, name: &str, value: Option<&str>) -> Result<(), String> {
    let given = || given(name, value);
    let number = || {
        let text = given()?;
        text.parse::<u64>().map_err(|_| format!("{name}={text} is not a whole number"))
    };
    match name {
        "on" => fault.call = call_of(given()?)?,
        "topic" => fault.topic = Some(given()?.to_owned()),
        "subscription" => fault.subscription = Some(given()?.to_owned()),
        // An empty key is a condition as well: messages without a key.
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
        "" => return Err("an empty term between two commas".to_owned()),
        other => match other.strip_prefix("attr.").filter(|rest| !rest.is_empty()) {
            Some(attribute) => {
                let value = value.unwrap_or_default().to_owned();
                fault.attributes.push((attribute.to_owned(), value));
            }
            None => return Err(format!("unknown term {other:?}")),
        },
    }
    Ok(())
}

/// Returns the conditions and effects that are impossible for the fault's call, because such a
/// fault could never match.
fn misfits(fault: &Fault, effect: &str) -> Vec<String> {
    let call = fault.call;
    let mut problems = Vec::new();
    if !fault.effect.is_possible_for(call)
        || (effect == "fail-after-publish" && call != Call::Publish)
    {
        problems.push(format!("{effect} does not go with on={}", call.name()));
    }
    if fault.subscription.is_some() && call == Call::Publish {
        problems.push("subscription does not go with on=publish".to_owned());
    }
    if (fault.ordering_key.is_some() || !fault.attributes.is_empty()) && !call.has_messages() {
        problems.push(format!(
            "on={} comes before any message is known: use on=delivery for keys and attributes",
            call.name()
        ));
    }
    problems
}

fn given<'a>(name: &str, value: Option<&'a str>) -> Result<&'a str, String> {
    value.filter(|v| !v.is_empty()).ok_or_else(|| format!("{name} needs a value"))
}

/// Splits the text at commas. A backslash makes the next character literal.
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

fn call_of(text: &str) -> Result<Call, String> {
    let found = Call::ALL.iter().find(|(_, name)| *name == text);
    found.map(|(call, _)| *call).ok_or_else(|| {
        format!("on={text} is none of {}", Call::ALL.map(|(_, name)| name).join(", "))
    })
}

fn reason_of(text: &str) -> Result<AckFailure, String> {
    let found = REASONS.iter().find(|(_, name)| *name == text);
    found.map(|(reason, _)| *reason).ok_or_else(|| {
        format!("fail-ids={text} is none of {}", REASONS.map(|(_, name)| name).join(", "))
    })
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
        if self.call != Call::Publish {
            write!(f, "on={},", self.call.name())?;
        }
        if let Some(topic) = &self.topic {
            write!(f, "topic={},", escaped(topic))?;
        }
        if let Some(subscription) = &self.subscription {
            write!(f, "subscription={},", escaped(subscription))?;
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
            Effect::FailAfter(code) if self.call == Call::Publish => {
                write!(f, "fail-after-publish={}", name_of(*code))
            }
            Effect::FailAfter(code) => write!(f, "fail-after={}", name_of(*code)),
            Effect::Hold => f.write_str("hold"),
            Effect::HoldBefore => f.write_str("hold-before"),
            Effect::Delay(time) => write!(f, "delay={}ms", time.as_millis()),
            Effect::BlackHole => f.write_str("black-hole"),
            Effect::Lose => f.write_str("lose"),
            Effect::Expire => f.write_str("expire"),
            Effect::FailIds(reason) => {
                let name =
                    REASONS.iter().find(|(its, _)| its == reason).map_or("", |(_, name)| name);
                write!(f, "fail-ids={name}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

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
                "on=acknowledge,subscription=billing,first=2,fail-after=INTERNAL",
                Fault::all(Effect::FailAfter(Code::Internal))
                    .on(Call::Acknowledge)
                    .on_subscription("billing")
                    .first(2),
            ),
        ];
        for (text, fault) in &cases {
            assert_eq!(text.parse::<Fault>().as_ref(), Ok(fault));
        }
        // Spaces are trimmed around names only. A value keeps its spaces, because a key may begin
        // with one.
        let spaced = "event_type=OrderPaid, first=3 ,fail-after-publish=DEADLINE_EXCEEDED";
        assert!(spaced.parse::<Fault>().is_err());

        for fault in [
            Fault::all(Effect::Hold).on_key("a,b\\c").skip(2),
            Fault::all(Effect::HoldBefore).on_key(""),
            Fault::all(Effect::Delay(Duration::from_millis(1500))).on_attribute("x.y", ""),
            Fault::all(Effect::FailAfter(Code::Aborted)).first(3),
            Fault::all(Effect::Expire).on(Call::Delivery).on_key("k"),
            Fault::all(Effect::Lose).on(Call::ModifyAckDeadline),
            Fault::all(Effect::FailIds(AckFailure::Temporary)).on(Call::Acknowledge),
            Fault::all(Effect::Reject(Code::NotFound)).on(Call::StreamingPull),
            Fault::all(Effect::BlackHole).on(Call::Pull),
        ] {
            assert_eq!(fault.to_string().parse::<Fault>(), Ok(fault));
        }
        assert_eq!("delay=2s".parse(), Ok(Fault::all(Effect::Delay(Duration::from_secs(2)))));
    }

    #[test]
    fn all_problems_of_a_text_are_told_at_once() {
        let text = "topic=,percent=0,colour=red,reject=NOPE,hold=1,delay=5,,first=x,on=push";
        let error = text.parse::<Fault>().unwrap_err();
        assert_eq!(error.problems.len(), 9, "{error}");
        assert!(error.to_string().contains("\"NOPE\" is not a gRPC error code"));

        for bad in ["", "topic=x", "hold,black-hole", "reject=OK", "percent=101,hold"] {
            assert!(bad.parse::<Fault>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_fault_that_could_never_hit_is_refused() {
        for bad in [
            "lose",
            "expire",
            "fail-ids=invalid",
            "subscription=s,hold",
            "on=delivery,lose",
            "on=acknowledge,expire",
            "on=acknowledge,fail-after-publish=INTERNAL",
            "on=pull,key=a,reject=INTERNAL",
            "on=streaming-pull,attr.a=b,reject=INTERNAL",
            "on=pull,hold",
            "on=pull,fail-after=INTERNAL",
        ] {
            assert!(bad.parse::<Fault>().is_err(), "{bad}");
        }
    }
}
