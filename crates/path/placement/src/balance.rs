//! Which rings lie on which iothreads of a disk: balanced by size, with few moves.

use std::collections::BTreeMap;

use crate::IothreadSlot;

/// The iothread of each ring, by the number of the queue.
pub(crate) type Placement = BTreeMap<u16, IothreadSlot>;

/// A ring that is moved for less than this share of the gap is moved.
const WORTH: f64 = 0.95;

/// What lies on each iothread.
#[derive(Clone, Debug)]
pub(crate) struct Loads(Vec<(IothreadSlot, f64)>);

impl Loads {
    /// Nothing but what cannot be moved.
    pub(crate) fn new(threads: &[IothreadSlot], obstacles: &BTreeMap<IothreadSlot, f64>) -> Self {
        Self(threads.iter().map(|&it| (it, obstacles.get(&it).copied().unwrap_or(0.0))).collect())
    }

    pub(crate) fn add(&mut self, slot: IothreadSlot, size: f64) {
        if let Some(load) = self.0.iter_mut().find(|it| it.0 == slot) {
            load.1 += size;
        }
    }

    fn emptiest(&self) -> (IothreadSlot, f64) {
        *self.0.iter().min_by(|a, b| a.1.total_cmp(&b.1)).expect("a disk has an iothread")
    }

    pub(crate) fn fullest(&self) -> (IothreadSlot, f64) {
        *self.0.iter().rev().max_by(|a, b| a.1.total_cmp(&b.1)).expect("a disk has an iothread")
    }
}

/// Places rings of these sizes on these iothreads: what is elsewhere goes to the emptiest, the largest first; then from
/// the fullest to the emptiest while that helps.
pub(crate) fn balance(
    now: &Placement,
    sizes: &BTreeMap<u16, f64>,
    threads: &[IothreadSlot],
    obstacles: &BTreeMap<IothreadSlot, f64>,
) -> Placement {
    let mut loads = Loads::new(threads, obstacles);
    let mut placed = Placement::new();
    let mut left = Vec::new();
    for (&queue, &size) in sizes {
        match now.get(&queue).filter(|it| threads.contains(it)) {
            Some(&slot) => {
                placed.insert(queue, slot);
                loads.add(slot, size);
            }
            None => left.push((queue, size)),
        }
    }
    left.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (queue, size) in left {
        let (slot, _) = loads.emptiest();
        placed.insert(queue, slot);
        loads.add(slot, size);
    }
    for _ in 0..4 * sizes.len() {
        let Some((queue, from, to)) = helpful(&placed, sizes, &loads) else { break };
        placed.insert(queue, to);
        loads.add(from, -sizes[&queue]);
        loads.add(to, sizes[&queue]);
    }
    placed
}

/// The move that helps most, from the fullest iothread that has such a ring to the emptiest one.
fn helpful(
    placed: &Placement,
    sizes: &BTreeMap<u16, f64>,
    loads: &Loads,
) -> Option<(u16, IothreadSlot, IothreadSlot)> {
    let (low, least) = loads.emptiest();
    let mut order = loads.0.clone();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.into_iter().find_map(|(high, most)| {
        let gap = most - least;
        let movable = sizes
            .iter()
            .filter(|(queue, size)| placed[queue] == high && **size > 0.0 && **size < WORTH * gap);
        let distance = |size: f64| (size - gap / 2.0).abs();
        let best = movable.min_by(|a, b| distance(*a.1).total_cmp(&distance(*b.1)));
        best.map(|(queue, _)| (*queue, high, low))
    })
}

/// The largest load of an iothread.
pub(crate) fn fullest(
    placed: &Placement,
    sizes: &BTreeMap<u16, f64>,
    threads: &[IothreadSlot],
    obstacles: &BTreeMap<IothreadSlot, f64>,
) -> f64 {
    let mut loads = Loads::new(threads, obstacles);
    for (queue, &size) in sizes {
        loads.add(placed[queue], size);
    }
    loads.fullest().1
}

/// Places quiet rings evenly, so that whichever wakes finds few others; those that lie well stay.
pub(crate) fn spread(
    placed: &mut Placement,
    quiet: &[u16],
    now: &Placement,
    threads: &[IothreadSlot],
) {
    let even = (placed.len() + quiet.len()).div_ceil(threads.len());
    let count = |placed: &Placement, slot| placed.values().filter(|it| **it == slot).count();
    let mut left = Vec::new();
    for &queue in quiet {
        match now.get(&queue) {
            Some(&slot) if threads.contains(&slot) && count(placed, slot) < even => {
                placed.insert(queue, slot);
            }
            _ => left.push(queue),
        }
    }
    for queue in left {
        let slots = threads.iter().copied();
        let slot = slots.min_by_key(|&it| count(placed, it)).expect("a disk has an iothread");
        placed.insert(queue, slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: u16) -> Vec<IothreadSlot> {
        (0..count).map(IothreadSlot).collect()
    }

    #[test]
    fn busy_rings_lie_balanced_and_few_are_moved() {
        let now: Placement = (0..8).map(|it| (it, IothreadSlot(0))).collect();
        let sizes = (0..8).map(|it| (it, 0.5)).collect();
        let placed = balance(&now, &sizes, &slots(4), &BTreeMap::new());
        for slot in slots(4) {
            assert_eq!(placed.values().filter(|it| **it == slot).count(), 2);
        }
        assert_eq!(placed.values().filter(|it| it.0 == 0).count(), 2);
        assert_eq!(balance(&placed, &sizes, &slots(4), &BTreeMap::new()), placed);
    }

    #[test]
    fn what_is_pinned_counts_and_stays() {
        let now: Placement = (0..3).map(|it| (it, IothreadSlot(0))).collect();
        let sizes = (0..3).map(|it| (it, 0.3)).collect();
        let obstacles = BTreeMap::from([(IothreadSlot(1), 0.9)]);
        let placed = balance(&now, &sizes, &slots(2), &obstacles);
        assert!(placed.values().all(|it| it.0 == 0), "{placed:?}");
    }

    #[test]
    fn quiet_rings_lie_evenly() {
        let now: Placement = (0..16).map(|it| (it, IothreadSlot(0))).collect();
        let mut placed: Placement = (0..4).map(|it| (it, IothreadSlot(it))).collect();
        spread(&mut placed, &(4..16).collect::<Vec<_>>(), &now, &slots(4));
        for slot in slots(4) {
            assert_eq!(placed.values().filter(|it| **it == slot).count(), 4);
        }
    }
}
