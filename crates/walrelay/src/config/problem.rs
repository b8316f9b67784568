//! Problems of the configuration, collected so that all of them are reported at once.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use walrelay_errors::Code;

use super::option_values::{Given, Origin};
use crate::options::units::{parse_duration, parse_size, show_duration, show_size};

/// One problem, and the allowed values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The option as a flag, the key of the file, or the variable.
    pub option: String,
    /// The wrong value. Never a secret.
    pub value: Option<String>,
    /// The origin of the value, unless it came from the flag.
    pub origin: Option<String>,
    /// The allowed values.
    pub allowed: String,
    /// The code, which selects the fix.
    pub code: Code,
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

/// Reads values and collects their problems.
///
/// For a wrong value, a reader returns some value of its type, so that reading continues.
/// [`Problems::into_result`] makes sure that no caller gets such a value.
#[derive(Debug)]
pub(crate) struct Problems<'a> {
    given: &'a Given,
    found: Vec<Problem>,
}

impl<'a> Problems<'a> {
    /// Creates a collection that already contains problems.
    pub(crate) const fn new(given: &'a Given, found: Vec<Problem>) -> Self {
        Self { given, found }
    }

    /// Returns the values of the options.
    pub(crate) const fn given(&self) -> &'a Given {
        self.given
    }

    pub(crate) fn into_result<T>(self, value: T) -> Result<T, Vec<Problem>> {
        if self.found.is_empty() { Ok(value) } else { Err(self.found) }
    }

    /// Returns whether the option is not set.
    pub(crate) fn is_default(&self, option: &str) -> bool {
        *self.given.origin(option) == Origin::Default
    }

    /// Reports a wrong value of `option` (long name without dashes).
    pub(crate) fn wrong(&mut self, option: &str, value: &str, allowed: impl Into<String>) {
        self.add(option, Some(value.to_owned()), allowed.into());
    }

    /// Reports that `option` is missing, or that its value is wrong and may be a secret.
    pub(crate) fn report_without_value(&mut self, option: &str, allowed: impl Into<String>) {
        self.add(option, None, allowed.into());
    }

    /// Reports a wrong variable that has no option of its own.
    pub(crate) fn wrong_variable(&mut self, name: &str, allowed: &str) {
        self.found.push(Problem {
            option: name.to_owned(),
            value: None,
            origin: None,
            allowed: allowed.to_owned(),
            code: Code::ConfigurationInvalid,
        });
    }

    /// Reports that the root certificates of a connection string cannot be read.
    pub(crate) fn report_root_certificates(&mut self, option: &str, allowed: String) {
        let found = self.found.len();
        self.add(option, None, allowed);
        self.found.iter_mut().skip(found).for_each(|problem| problem.code = Code::TlsRoots);
    }

    fn add(&mut self, option: &str, value: Option<String>, allowed: String) {
        let origin = match self.given.origin(option) {
            Origin::Environment(name) => Some(name.clone()),
            Origin::File(path) => Some(path.clone()),
            Origin::Flag | Origin::Default => None,
        };
        // An argument without a flag has the name that the usage shows.
        let is_flag = !option.starts_with(char::is_uppercase);
        let option = if is_flag { format!("--{option}") } else { option.to_owned() };
        let problem = Problem { option, value, origin, allowed, code: Code::ConfigurationInvalid };
        // An option may be checked more than once.
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

    /// Reads one of a few words. For a wrong word it returns the first.
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

    /// Reads an address to listen on, or `off`.
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
