//! Selects the event that blocks a key, as `app_inbox_heads` does.

use super::{Code, Due, Inbox, PlantedBug, Status};

impl Inbox {
    /// Finds the first waiting or blocking event of each key. That event becomes due, and all
    /// others wait for it. A key that waits for a version is ordered by version. `failed[i]` is the
    /// event of `keys[i]` that has just failed.
    pub(super) fn heads(&mut self, keys: &[String], failed: &[Option<u32>]) {
        for (place, key) in keys.iter().enumerate() {
            let former = self.keys[key].held_by;
            let head = self.head(key, former);
            self.keys.entry(key.clone()).or_default().held_by = head;
            let Some(head) = head else { continue };
            let others = [former, failed.get(place).copied().flatten()];
            others
                .into_iter()
                .flatten()
                .filter(|other| *other != head)
                .for_each(|it| self.rest(it));
            let row = self.row(head);
            if row.status == Status::Retrying && row.due == Due::Never {
                row.due = Due::Timed;
            }
        }
    }

    /// Makes an event wait for another event. A dead event keeps its state.
    fn rest(&mut self, event: u32) {
        let row = self.row(event);
        row.due = if row.status == Status::Dead { row.due } else { Due::Never };
    }

    fn head(&mut self, key: &str, former: Option<u32>) -> Option<u32> {
        let foremost = self.waiting(key).min_by_key(|row| row.by_position())?;
        let has_gap = |event: u32| self.rows[&event].code == Some(Code::VersionGap);
        let waits_for_version =
            foremost.code == Some(Code::VersionGap) || former.is_some_and(has_gap);
        if !waits_for_version || self.rules.planted == Some(PlantedBug::WaitsByPosition) {
            return Some(foremost.message.event);
        }
        let lowest = self.waiting(key).min_by_key(|row| row.by_version())?;
        let event = lowest.message.event;
        let is_next = self.keys[key].version.is_some_and(|reached| {
            lowest.message.version.is_some_and(|version| version <= reached + 1)
        });
        if lowest.code == Some(Code::VersionGap) && is_next {
            let row = self.row(event);
            (row.status, row.due) = (Status::Retrying, Due::Timed);
        }
        Some(event)
    }
}
