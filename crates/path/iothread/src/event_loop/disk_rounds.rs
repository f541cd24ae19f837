//! Rounds by disk: of each disk one busy ring has a turn, if several disks have busy rings.
//!
//! Where it stands: the loop asks which of the sources that shall have a turn wait for the next round. Otherwise a disk
//! with 16 busy rings would get 16 times what its neighbour on the iothread gets with one.
//!
//! Invariants: of the busy sources of a disk the one has a turn whose last one is longest ago, so each gets one in as many
//! rounds as there are. A source that is not busy never waits here: it asks for less than a step.

use request_path::SourceKey;

/// A source as the round sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct BusySource {
    /// What its disk is told by: the address of its node.
    pub(super) disk: usize,
    /// In which round it had its last turn.
    pub(super) round: u64,
}

/// Chooses among busy sources.
#[derive(Debug, Default)]
pub(super) struct DiskRounds {
    /// How many there were.
    pub(super) round: u64,
    /// Of each disk the source that has a turn in this one; kept for its room.
    chosen: Vec<(BusySource, SourceKey)>,
}

impl DiskRounds {
    /// Begins a round: takes those out of `keys` that wait for the next one, and adds them to `waiting`. `busy` says of a
    /// source what it is, if it is busy.
    pub(super) fn begin(
        &mut self,
        keys: &mut Vec<SourceKey>,
        waiting: &mut Vec<SourceKey>,
        busy: impl Fn(SourceKey) -> Option<BusySource>,
    ) {
        self.round += 1;
        self.chosen.clear();
        for key in keys.iter() {
            let Some(source) = busy(*key) else { continue };
            match self.chosen.iter_mut().find(|(known, _)| known.disk == source.disk) {
                None => self.chosen.push((source, *key)),
                Some(known) if source.round < known.0.round => *known = (source, *key),
                Some(_) => {}
            }
        }
        if self.chosen.len() < 2 {
            return;
        }
        let chosen = &self.chosen;
        keys.retain(|key| {
            let has_turn = busy(*key).is_none() || chosen.iter().any(|(_, it)| it == key);
            if !has_turn {
                waiting.push(*key);
            }
            has_turn
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of these have a turn: their disk, if they are busy, and the round of their last turn.
    fn turns(rounds: &mut DiskRounds, sources: &[Option<(usize, u64)>]) -> (Vec<u32>, Vec<u32>) {
        let count = u32::try_from(sources.len()).unwrap();
        let (mut keys, mut waiting) = ((0..count).map(SourceKey).collect(), Vec::new());
        rounds.begin(&mut keys, &mut waiting, |key| {
            sources[key.0 as usize].map(|(disk, round)| BusySource { disk, round })
        });
        let numbers = |keys: Vec<SourceKey>| keys.into_iter().map(|key| key.0).collect();
        (numbers(keys), numbers(waiting))
    }

    #[test]
    fn the_busy_ring_that_waited_longest_has_the_turn_of_its_disk() {
        let mut rounds = DiskRounds::default();
        let sources = [Some((7, 3)), Some((7, 1)), None, Some((9, 4)), Some((7, 2))];
        assert_eq!(turns(&mut rounds, &sources), (vec![1, 2, 3], vec![0, 4]));
    }

    #[test]
    fn a_disk_alone_has_turns_for_all_its_rings() {
        let mut rounds = DiskRounds::default();
        let sources = [Some((7, 3)), Some((7, 1)), None];
        assert_eq!(turns(&mut rounds, &sources), (vec![0, 1, 2], vec![]));
    }
}
