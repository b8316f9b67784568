//! The table of steps, in Markdown, without the name of the project.

use std::cell::RefCell;
use std::error::Error;
use std::time::{Duration, Instant};

use walrelay_errors::Chain;

pub(crate) type Failure = Box<dyn Error>;

/// The steps so far. A step is listed from its begin, so an interrupted run shows where it was.
pub(crate) struct Report {
    project: String,
    began: Instant,
    steps: RefCell<Vec<Step>>,
}

struct Step {
    name: &'static str,
    expected: &'static str,
    seen: Option<Result<String, String>>,
    began: Duration,
    took: Duration,
}

impl Report {
    pub(crate) fn new(project: &str) -> Self {
        Self { project: project.to_owned(), began: Instant::now(), steps: RefCell::default() }
    }

    /// Runs a step and records it. Returns whether the step saw what is expected.
    pub(crate) async fn step(
        &self,
        (name, expected): (&'static str, &'static str),
        work: impl Future<Output = Result<String, Failure>>,
    ) -> bool {
        let began = self.began.elapsed();
        let place = self.steps.borrow().len();
        let seen = None;
        self.steps.borrow_mut().push(Step { name, expected, seen, began, took: Duration::ZERO });
        let result = work.await.map_err(|failure| Chain(&*failure).to_string());
        let is_ok = result.is_ok();
        let text = result.as_ref().unwrap_or_else(|failure| failure);
        eprintln!("{} {name}: {}", if is_ok { "ok    " } else { "FAILED" }, self.cell(text));
        if let Some(step) = self.steps.borrow_mut().get_mut(place) {
            step.took = self.began.elapsed().saturating_sub(began);
            step.seen = Some(result);
        }
        is_ok
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.steps.borrow().iter().all(|step| matches!(step.seen, Some(Ok(_))))
    }

    pub(crate) fn table(&self) -> String {
        let head = "| Begin | Step | Expected | Seen | Result | Time |\n| ---: | --- | --- | --- | --- | ---: |\n";
        let row = |step: &Step| {
            let (seen, result) = match &step.seen {
                Some(Ok(seen)) => (self.cell(seen), "ok"),
                Some(Err(seen)) => (self.cell(seen), "**failed**"),
                None => (String::new(), "**interrupted**"),
            };
            let Step { name, expected, .. } = step;
            let (began, took) = (step.began.as_secs_f64(), step.took.as_secs_f64());
            format!("| {began:.1} s | {name} | {expected} | {seen} | {result} | {took:.1} s |\n")
        };
        head.to_owned() + &self.steps.borrow().iter().map(row).collect::<String>()
    }

    /// Returns a text for a cell. Messages of Google name the project, which is not for an issue.
    fn cell(&self, text: &str) -> String {
        let text = text.replace(&self.project, "PROJECT").replace('|', "\\|");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}
