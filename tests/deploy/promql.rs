//! A strict parser for the subset of PromQL in the rules and the dashboard. Anything outside the
//! subset is refused.
//!
//! ```text
//! expression = operand { operator operand }
//! operand    = number | "(" expression ")" | aggregation | function "(" arguments ")" | selector
//! selector   = name [ "{" label op string, … "}" ] [ "[" duration "]" ]
//! ```
//!
//! The parser ignores precedence, because grouping does not change the set of selectors.

/// The selectors and groupings of a query.
#[derive(Debug, Default)]
pub(crate) struct Query {
    pub(crate) selectors: Vec<Selector>,
    /// The labels that the query groups by.
    pub(crate) grouped_by: Vec<String>,
}

/// A metric with conditions on its labels.
#[derive(Debug)]
pub(crate) struct Selector {
    pub(crate) metric: String,
    /// Label, operator, value.
    pub(crate) conditions: Vec<(String, String, String)>,
}

const FUNCTIONS: [&str; 6] =
    ["rate", "increase", "deriv", "absent", "histogram_quantile", "vector"];
/// Functions over a range vector.
const RANGE_FUNCTIONS: [&str; 3] = ["rate", "increase", "deriv"];
const AGGREGATIONS: [&str; 4] = ["sum", "max", "min", "avg"];
const OPERATORS: [&str; 13] =
    ["and", "or", "unless", "==", "!=", ">=", "<=", ">", "<", "+", "-", "*", "/"];

/// Parses a query.
pub(crate) fn parse(text: &str) -> Result<Query, String> {
    let mut parser = Parser { rest: text.trim(), query: Query::default() };
    parser.expression()?;
    match parser.rest {
        "" => Ok(parser.query),
        rest => Err(format!("{rest:?} is left over")),
    }
}

struct Parser<'a> {
    rest: &'a str,
    query: Query,
}

impl<'a> Parser<'a> {
    fn expression(&mut self) -> Result<(), String> {
        self.operand()?;
        while OPERATORS.iter().any(|operator| self.takes(operator)) {
            self.operand()?;
        }
        Ok(())
    }

    fn operand(&mut self) -> Result<(), String> {
        if self.takes("(") {
            self.expression()?;
            return self.expect(")");
        }
        if self.rest.starts_with(|first: char| first.is_ascii_digit()) {
            let number = self.while_matches(|c| c.is_ascii_alphanumeric() || c == '.');
            return number.parse::<f64>().map(drop).map_err(|_| format!("{number:?} is no number"));
        }
        let name = self.name()?;
        if AGGREGATIONS.contains(&name) {
            if self.takes("by") {
                self.grouping()?;
            }
            self.expect("(")?;
            self.expression()?;
            return self.expect(")");
        }
        if self.rest.starts_with('(') {
            return self.call(name);
        }
        self.selector(name)
    }

    fn grouping(&mut self) -> Result<(), String> {
        self.expect("(")?;
        loop {
            let label = self.name()?.to_owned();
            self.query.grouped_by.push(label);
            if !self.takes(",") {
                return self.expect(")");
            }
        }
    }

    fn call(&mut self, function: &str) -> Result<(), String> {
        if !FUNCTIONS.contains(&function) {
            return Err(format!("{function:?} is no function that is known here"));
        }
        self.expect("(")?;
        let before = self.rest;
        self.expression()?;
        while self.takes(",") {
            self.expression()?;
        }
        let argument = &before[..before.len() - self.rest.len()];
        if RANGE_FUNCTIONS.contains(&function) != argument.contains('[') {
            let is_nested =
                RANGE_FUNCTIONS.iter().any(|inner| argument.contains(&format!("{inner}(")));
            if !is_nested {
                return Err(format!("{function} of {argument:?}: ranges are for rates"));
            }
        }
        self.expect(")")
    }

    fn selector(&mut self, metric: &str) -> Result<(), String> {
        let mut conditions = Vec::new();
        if self.takes("{") {
            conditions.push(self.condition()?);
            while self.takes(",") {
                conditions.push(self.condition()?);
            }
            self.expect("}")?;
        }
        if self.takes("[") {
            let duration = self.while_matches(|c| c.is_ascii_alphanumeric());
            let digits = duration.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let unit = &duration[digits.len()..];
            if digits.parse::<u32>().is_err() || !["s", "m", "h", "d"].contains(&unit) {
                return Err(format!("{duration:?} is no duration"));
            }
            self.expect("]")?;
        }
        self.query.selectors.push(Selector { metric: metric.to_owned(), conditions });
        Ok(())
    }

    fn condition(&mut self) -> Result<(String, String, String), String> {
        let label = self.name()?.to_owned();
        let operator = ["=~", "!~", "!=", "="].into_iter().find(|operator| self.takes(operator));
        let operator = operator.ok_or_else(|| format!("no operator behind {label}"))?;
        Ok((label, operator.to_owned(), self.string()?))
    }

    fn string(&mut self) -> Result<String, String> {
        self.expect("\"")?;
        let (text, rest) = self.rest.split_once('"').ok_or("a string does not end")?;
        self.rest = rest.trim_start();
        Ok(text.to_owned())
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let name = self.while_matches(|c| c.is_ascii_alphanumeric() || c == '_');
        match name.starts_with(|first: char| first.is_ascii_alphabetic()) {
            true => Ok(name),
            false => Err(format!("a name is missing before {:?}", self.rest)),
        }
    }

    fn while_matches(&mut self, matches: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !matches(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        taken
    }

    /// Consumes the token, a sign or a whole word. Returns whether the text starts with the token.
    fn takes(&mut self, token: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(token) else { return false };
        let is_word = token.ends_with(|last: char| last.is_ascii_alphabetic());
        if is_word && rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            return false;
        }
        self.rest = rest.trim_start();
        true
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        match self.takes(token) {
            true => Ok(()),
            false => Err(format!("{token:?} is missing before {:?}", self.rest)),
        }
    }
}

#[test]
fn selectors_are_found_and_invalid_queries_are_refused() {
    let query =
        "sum by (topic, code) (rate(a_total{code=~\"A|B\",topic!=\"x\"}[5m])) > 0 and b < 1e9";
    let parsed = parse(query).unwrap();
    assert_eq!(parsed.grouped_by, ["topic", "code"]);
    let metrics: Vec<_> = parsed.selectors.iter().map(|it| it.metric.as_str()).collect();
    assert_eq!(metrics, ["a_total", "b"]);
    assert_eq!(parsed.selectors[0].conditions[1].1, "!=");
    let nested = "histogram_quantile(0.99, sum by (le) (rate(a_bucket[5m])))";
    assert!(parse(nested).is_ok(), "{:?}", parse(nested));
    for wrong in [
        "",
        "sum(",
        "rate(a)",
        "absent(a[5m])",
        "rates(a[5m])",
        "a{b}",
        "a{b=\"c}",
        "a[5]",
        "a b",
        "sum by topic (a)",
        "a >",
        "1e",
        "a{b=\"c\"",
    ] {
        assert!(parse(wrong).is_err(), "{wrong:?} was accepted");
    }
}
