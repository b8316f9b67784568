//! What is wrong with the configuration: collected, so that all of it is reported at once.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use walrelay_relay::policy::Kind;

use super::given::{Given, Origin};
use crate::options::units::{parse_duration, parse_size, show_duration, show_size};

/// One thing that is wrong, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The option as a flag, the key of the file, or the variable.
    pub option: String,
    /// What it was given; never a secret.
    pub value: Option<String>,
    /// Where the value came from, when not from the flag.
    pub origin: Option<String>,
    /// What is allowed.
    pub allowed: String,
    /// What it is, where that has a hint of its own.
    pub kind: Kind,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.option)?;
        if let Some(value) = &self.value {
            write!(f, " {value:?}")?;
        }
        if let Some(origin) = &self.origin {
            write!(f, " (from {origin})")?;
        }
        write!(f, ": {}", self.allowed)
    }
}

/// Reads values and collects what is wrong with them.
///
/// A reader that meets a wrong value returns some value of its type, so that reading goes on;
/// [`Problems::into_result`] makes sure that it never leaves.
#[derive(Debug)]
pub(crate) struct Problems<'a> {
    given: &'a Given,
    found: Vec<Problem>,
}

impl<'a> Problems<'a> {
    /// Problems beside those that were found already.
    pub(crate) const fn new(given: &'a Given, found: Vec<Problem>) -> Self {
        Self { given, found }
    }

    /// What the options were given.
    pub(crate) const fn given(&self) -> &'a Given {
        self.given
    }

    pub(crate) fn into_result<T>(self, value: T) -> Result<T, Vec<Problem>> {
        if self.found.is_empty() { Ok(value) } else { Err(self.found) }
    }

    /// Whether nobody set this option.
    pub(crate) fn is_default(&self, option: &str) -> bool {
        *self.given.origin(option) == Origin::Default
    }

    /// The value of `option` (long name without dashes) is not among what is allowed.
    pub(crate) fn wrong(&mut self, option: &str, value: &str, allowed: impl Into<String>) {
        self.add(option, Some(value.to_owned()), allowed.into());
    }

    /// `option` is missing, or its value is a secret that cannot be shown.
    pub(crate) fn wrong_unseen(&mut self, option: &str, allowed: impl Into<String>) {
        self.add(option, None, allowed.into());
    }

    /// A variable without an option of its own is wrong.
    pub(crate) fn wrong_variable(&mut self, name: &str, allowed: &str) {
        self.found.push(Problem {
            option: name.to_owned(),
            value: None,
            origin: None,
            allowed: allowed.to_owned(),
            kind: Kind::Configuration,
        });
    }

    /// The root certificates that a connection string names cannot be read.
    pub(crate) fn wrong_roots(&mut self, option: &str, allowed: String) {
        let found = self.found.len();
        self.add(option, None, allowed);
        self.found.iter_mut().skip(found).for_each(|problem| problem.kind = Kind::TlsRoots);
    }

    fn add(&mut self, option: &str, value: Option<String>, allowed: String) {
        let origin = match self.given.origin(option) {
            Origin::Environment(name) => Some(name.clone()),
            Origin::File(path) => Some(path.clone()),
            Origin::Flag | Origin::Default => None,
        };
        // An argument without a flag is called what the usage calls it.
        let is_flag = !option.starts_with(char::is_uppercase);
        let option = if is_flag { format!("--{option}") } else { option.to_owned() };
        let problem = Problem { option, value, origin, allowed, kind: Kind::Configuration };
        // An option may be looked at more than once.
        if !self.found.contains(&problem) {
            self.found.push(problem);
        }
    }

    pub(crate) fn duration(
        &mut self,
        option: &str,
        text: &str,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        match parse_duration(text).filter(|duration| range.contains(duration)) {
            Some(duration) => duration,
            None => {
                let (low, high) = (show_duration(*range.start()), show_duration(*range.end()));
                let form = "a duration in ms, s, m, h or d, such as 30s";
                self.wrong(option, text, format!("{form}, from {low} to {high}"));
                *range.start()
            }
        }
    }

    pub(crate) fn size(&mut self, option: &str, text: &str, range: RangeInclusive<u64>) -> u64 {
        match parse_size(text).filter(|size| range.contains(size)) {
            Some(size) => size,
            None => {
                let (low, high) = (show_size(*range.start()), show_size(*range.end()));
                let form = "a size in B, kB, KiB, MB, MiB, GB or GiB, such as 64MiB";
                self.wrong(option, text, format!("{form}, from {low} to {high}"));
                *range.start()
            }
        }
    }

    pub(crate) fn count<N>(&mut self, option: &str, text: &str, range: RangeInclusive<N>) -> N
    where
        N: FromStr + PartialOrd + Copy + fmt::Display,
    {
        match text.trim().parse().ok().filter(|count| range.contains(count)) {
            Some(count) => count,
            None => {
                let allowed = format!("a number from {} to {}", range.start(), range.end());
                self.wrong(option, text, allowed);
                *range.start()
            }
        }
    }

    /// One of a few words; the first is returned in place of a wrong one.
    pub(crate) fn choice<T: Copy>(&mut self, option: &str, text: &str, all: &[(&str, T)]) -> T {
        match all.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => *value,
            None => {
                let words: Vec<&str> = all.iter().map(|(word, _)| *word).collect();
                self.wrong(option, text, format!("one of {}", words.join(", ")));
                all[0].1
            }
        }
    }

    pub(crate) fn switch(&mut self, option: &str, text: &str) -> bool {
        let words = [
            ("true", true),
            ("false", false),
            ("1", true),
            ("0", false),
            ("yes", true),
            ("no", false),
            ("on", true),
            ("off", false),
        ];
        self.choice(option, text, &words)
    }

    /// An address to listen on, or `off`.
    pub(crate) fn listen_address(&mut self, option: &str, text: &str) -> Option<SocketAddr> {
        if text == "off" {
            return None;
        }
        let address = text.replacen("localhost:", "127.0.0.1:", 1).parse().ok();
        if address.is_none() {
            self.wrong(option, text, "an address and a port, such as 0.0.0.0:8080, or off");
        }
        address
    }
}
