//! Stores the lanes and finds the lane of a key.
//!
//! Places are reused. Memory follows the number of existing lanes, not the keys ever seen (I6).

use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};

use hashbrown::HashTable;

use crate::lanes::lane::{Lane, LaneId, State};
use crate::message::Topic;

#[derive(Debug)]
pub(crate) struct LaneTable {
    lanes: Vec<Lane>,
    free: Vec<LaneId>,
    by_key: HashTable<LaneId>,
    hasher: foldhash::quality::SeedableRandomState,
}

impl LaneTable {
    /// Creates an empty table. `seed` keeps producers from choosing keys that collide.
    pub(crate) fn new(seed: u64) -> Self {
        let shared = foldhash::SharedSeed::global_fixed();
        Self {
            lanes: Vec::new(),
            free: Vec::new(),
            by_key: HashTable::new(),
            hasher: foldhash::quality::SeedableRandomState::with_seed(seed, shared),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lanes.len() - self.free.len()
    }

    /// The ids of all places, including free ones.
    pub(crate) fn ids(&self) -> impl Iterator<Item = LaneId> + use<> {
        (0..u32::try_from(self.lanes.len()).unwrap_or(u32::MAX)).map(LaneId)
    }

    pub(crate) fn find(&self, topic: &Topic, ordering_key: &str) -> Option<LaneId> {
        self.find_hashed(self.hash(topic, ordering_key), topic, ordering_key)
    }

    fn find_hashed(&self, hash: u64, topic: &Topic, ordering_key: &str) -> Option<LaneId> {
        let is_it = |id: &LaneId| {
            let lane = &self.lanes[id.0 as usize];
            *lane.ordering_key == *ordering_key && lane.topic == *topic
        };
        self.by_key.find(hash, is_it).copied()
    }

    /// The lane of a key, created on first use.
    pub(crate) fn lane_of(&mut self, topic: &Topic, ordering_key: &str) -> LaneId {
        let hash = self.hash(topic, ordering_key);
        if let Some(id) = self.find_hashed(hash, topic, ordering_key) {
            return id;
        }
        let id = self.insert(Lane::listed(Topic::clone(topic), ordering_key));
        let Self { lanes, hasher, by_key, .. } = self;
        by_key.insert_unique(hash, id, |other| {
            let lane = &lanes[other.0 as usize];
            hasher.hash_one((&*lane.topic, &*lane.ordering_key))
        });
        id
    }

    pub(crate) fn insert(&mut self, lane: Lane) -> LaneId {
        if let Some(id) = self.free.pop() {
            self[id] = lane;
            return id;
        }
        let Ok(place) = u32::try_from(self.lanes.len()) else {
            panic!("I6: more lanes than the budget has bytes");
        };
        self.lanes.push(lane);
        LaneId(place)
    }

    /// Removes a lane that has no rows and no state worth keeping.
    pub(crate) fn remove_if_unused(&mut self, id: LaneId) {
        if !self[id].is_spent() {
            return;
        }
        let lane = &self[id];
        if lane.listed {
            let hash = self.hash(&lane.topic, &lane.ordering_key);
            match self.by_key.find_entry(hash, |other| *other == id) {
                Ok(entry) => drop(entry.remove()),
                Err(_) => panic!("I3: {id:?} is listed and not to be found"),
            }
        }
        let place = &mut self[id];
        place.state = State::Free;
        place.ordering_key = Box::default();
        place.take_queue();
        self.free.push(id);
    }

    /// Checks that every lane is in a legal combination, and that every listed lane is found by its
    /// key.
    pub(crate) fn check(&self) {
        for id in self.ids() {
            self.check_lane(id);
            let lane = &self[id];
            if lane.state == State::Free {
                continue;
            }
            assert!(!lane.is_spent(), "I6: {id:?} is kept and holds nothing");
            if lane.listed {
                let hash = self.hash(&lane.topic, &lane.ordering_key);
                let found = self.by_key.find(hash, |other| *other == id).is_some();
                assert!(found, "I3: {id:?} is listed and not to be found");
            }
        }
        let listed = self.ids().filter(|id| {
            let lane = &self[*id];
            lane.listed && lane.state != State::Free
        });
        assert_eq!(listed.count(), self.by_key.len(), "I3: a key has a lane that is gone");
    }

    /// Checks that one lane is in a legal combination.
    pub(crate) fn check_lane(&self, id: LaneId) {
        if let Err(what) = self[id].check() {
            panic!("{what}: {id:?} is {:?}", self[id].shape());
        }
    }

    fn hash(&self, topic: &Topic, ordering_key: &str) -> u64 {
        self.hasher.hash_one((&**topic, ordering_key))
    }
}

impl Index<LaneId> for LaneTable {
    type Output = Lane;

    fn index(&self, id: LaneId) -> &Lane {
        &self.lanes[id.0 as usize]
    }
}

impl IndexMut<LaneId> for LaneTable {
    fn index_mut(&mut self, id: LaneId) -> &mut Lane {
        &mut self.lanes[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(table: &mut LaneTable, topic: &str, key: &str) -> LaneId {
        let id = table.lane_of(&Topic::from(topic), key);
        table[id].state = State::Out;
        id
    }

    /// A table with one lane that is in use.
    fn table() -> (LaneTable, LaneId) {
        let mut table = LaneTable::new(1);
        let id = out(&mut table, "t", "k");
        table.check();
        (table, id)
    }

    #[test]
    fn a_key_has_one_lane_and_its_place_is_used_again() {
        let (mut table, id) = table();
        assert_eq!(out(&mut table, "t", "k"), id);
        let others = [("t", "other"), ("u", "k"), ("v", "k")];
        let others = others.map(|(topic, key)| out(&mut table, topic, key));
        assert!(!others.contains(&id) && others[1] != others[2]);
        table[id].rest();
        table.remove_if_unused(id);
        table.remove_if_unused(others[0]);
        table.check();
        let found = ["k", "other"].map(|key| table.find(&Topic::from("t"), key));
        assert_eq!((table.len(), found), (3, [None, Some(others[0])]));
        assert_eq!(out(&mut table, "t", "new"), id);
        table.check();
    }

    #[test]
    #[should_panic(expected = "no legal combination")]
    fn a_lane_in_no_legal_combination_is_found() {
        let (mut table, id) = table();
        table[id].state = State::Ready;
        table.check();
    }

    #[test]
    #[should_panic(expected = "is listed and not to be found")]
    fn a_lane_that_its_key_does_not_lead_to_is_found() {
        let (mut table, _) = table();
        table.by_key.clear();
        table.check();
    }

    #[test]
    #[should_panic(expected = "a key has a lane that is gone")]
    fn a_key_that_leads_to_no_lane_is_found() {
        let (mut table, id) = table();
        table[id].state = State::Free;
        table.check();
    }
}
