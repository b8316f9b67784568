//! Replays in place: the history of a key is inserted before its pending rows, one part at a time.

use walrelay_testkit::seed::Seed;

use crate::harness::Harness;
use crate::judge::{Event, Row};
use crate::rows::RowPlanNames;
use crate::table::HeldKey;
use crate::world::{InboxDatabase, locked};

impl<F: Harness> InboxDatabase<F> {
    /// Requests the hold of a key.
    pub(crate) fn begin_replay(&self, RowPlanNames { topic, key }: &RowPlanNames) {
        // As in the command, an operation that was begun with the slot comes first.
        let is_placed = !self.table.has_reset() && self.table.place_hold(topic, key);
        self.judge.note(Event::Chaos(format!("hold of {key} of {topic}: {is_placed}")));
    }

    /// Continues the replays whose keys are held: adds more history, and finally ends them. Some
    /// are cancelled.
    pub(crate) fn continue_replays(&self, seed: &mut Seed) {
        self.table.held().iter().for_each(|held| self.continue_replay(held, seed));
    }

    fn continue_replay(&self, held: &HeldKey, seed: &mut Seed) {
        let HeldKey { topic, key, through, added } = held;
        let history = self.judge.history(topic, key, *through);
        if *added == history.len() {
            if seed.chance(400) {
                self.table.lift_hold(topic, key);
            }
        } else if seed.chance(60) {
            self.table.remove_replayed(topic, key);
            self.table.lift_hold(topic, key);
        } else {
            let count = seed.count(0, history.len() - added);
            history[*added..*added + count].iter().for_each(|row| self.replay(row));
        }
    }

    /// Adds one row again, with a new number.
    fn replay(&self, row: &Row) {
        let number = {
            let mut count = locked(&self.row_count);
            *count += 1;
            *count
        };
        if self.pubsub.is_poison(row.number) {
            self.pubsub.poison(number);
        }
        let replayed = Row { number, ..row.clone() };
        self.judge.replayed(replayed.clone());
        self.table.add_history(&replayed);
    }
}
