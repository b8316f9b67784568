//! Which event holds a key: `app_inbox_heads`.

use super::{Code, Due, Inbox, Planted, Status};

impl Inbox {
    /// The first event of each key that waits or holds; that one is due, all others wait for it. A key that
    /// waits for a version is looked at by version. `failed` names what has just failed in the key at the
    /// same place.
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

    /// It waits for another; what is dead stays as it is.
    fn rest(&mut self, event: u32) {
        let row = self.row(event);
        row.due = if row.status == Status::Dead { row.due } else { Due::Never };
    }

    fn head(&mut self, key: &str, former: Option<u32>) -> Option<u32> {
        let foremost = self.waiting(key).min_by_key(|row| row.by_position())?;
        let has_gap = |event: u32| self.rows[&event].code == Some(Code::VersionGap);
        let waits_for_version =
            foremost.code == Some(Code::VersionGap) || former.is_some_and(has_gap);
        if !waits_for_version || self.rules.planted == Some(Planted::WaitsByPosition) {
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
