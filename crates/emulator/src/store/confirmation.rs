//! The results of the ack ids of a request.

use crate::faults::fault::AckFailure;

/// The result of each ack id. The client receives the results only with exactly-once delivery.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Confirmation {
    pub(crate) confirmed: Vec<String>,
    pub(crate) invalid: Vec<String>,
    pub(crate) unordered: Vec<String>,
    pub(crate) temporary: Vec<String>,
}

impl Confirmation {
    pub(crate) fn add(&mut self, ack_id: &str, outcome: Result<(), AckFailure>) {
        let list = match outcome {
            Ok(()) => &mut self.confirmed,
            Err(AckFailure::Invalid) => &mut self.invalid,
            Err(AckFailure::Unordered) => &mut self.unordered,
            Err(AckFailure::Temporary) => &mut self.temporary,
        };
        list.push(ack_id.to_owned());
    }

    pub(crate) fn of_all(ack_ids: &[String], outcome: Result<(), AckFailure>) -> Self {
        let mut confirmation = Self::default();
        ack_ids.iter().for_each(|id| confirmation.add(id, outcome));
        confirmation
    }
}
