//! Replays in place: somebody has the history of a key put before what waits of it, a part at a time.

use walrelay_testkit::seed::Seed;

use crate::fitting::Fitting;
use crate::judge::{Event, Row};
use crate::rows::RowPlanNames;
use crate::table::HeldKey;
use crate::world::{World, locked};

impl<F: Fitting> World<F> {
    /// Asks for a key to be held.
    pub(crate) fn begin_replay(&self, RowPlanNames { topic, key }: &RowPlanNames) {
        // As the command: what is begun with the slot comes first.
        let is_placed = !self.table.has_reset() && self.table.place_hold(topic, key);
        self.judge.note(Event::Chaos(format!("hold of {key} of {topic}: {is_placed}")));
    }

    /// Goes on with the replays whose keys are held: more of their history, and then their end. Some are
    /// given up.
    pub(crate) fn go_on_with_replays(&self, seed: &mut Seed) {
        self.table.held().iter().for_each(|held| self.go_on_with(held, seed));
    }

    fn go_on_with(&self, held: &HeldKey, seed: &mut Seed) {
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

    /// One row once more, under a number of its own.
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
