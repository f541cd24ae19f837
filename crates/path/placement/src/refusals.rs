//! Which steps of a disk were refused, and until when.
//!
//! Invariants: what was refused refuses all that goes further the same way, while the load is the same.
//! Limits: one entry for each pair of numbers of iothreads that was tried; those that are over are dropped beyond 64.

/// The first time, in seconds; each further one twice as long.
const FIRST: f64 = 2.0;
/// The longest, in seconds.
const LONGEST: f64 = 60.0;
/// The load is another one if its rate differs by more than that, as a logarithm.
const OTHER_LOAD: f64 = 0.2;
const ENTRIES_MAX: usize = 64;

/// Which way a step goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    direction: Direction,
    from: usize,
    to: usize,
    times: i32,
    until: f64,
    rate: f64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals(Vec<Refusal>);

/// Whether two rates are of the same load.
pub(crate) fn is_same_load(a: f64, b: f64) -> bool {
    (a / b).ln().abs() < OTHER_LOAD
}

impl Refusals {
    pub(crate) fn refuses(
        &self,
        direction: Direction,
        from: usize,
        to: usize,
        rate: f64,
        now: f64,
    ) -> bool {
        self.0.iter().any(|it| {
            let goes_further = match direction {
                Direction::Up => it.to <= to,
                Direction::Down => it.to >= to,
            };
            it.direction == direction
                && it.from == from
                && goes_further
                && now < it.until
                && is_same_load(rate, it.rate)
        })
    }

    /// A step was refused, at that rate of the placement that stays.
    pub(crate) fn refuse(
        &mut self,
        direction: Direction,
        from: usize,
        to: usize,
        rate: f64,
        now: f64,
    ) {
        let is_it = |it: &Refusal| (it.direction, it.from, it.to) == (direction, from, to);
        let last = self.0.iter().position(is_it).map(|at| self.0.swap_remove(at));
        let times = last.filter(|it| is_same_load(rate, it.rate)).map_or(1, |it| it.times + 1);
        let wait = (FIRST * 2_f64.powi(times - 1)).min(LONGEST);
        if self.0.len() >= ENTRIES_MAX {
            self.0.retain(|it| now < it.until);
        }
        let times = times.min(16);
        self.0.push(Refusal { direction, from, to, times, until: now + wait, rate });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_refuses_what_goes_further_for_longer_each_time() {
        let mut refusals = Refusals::default();
        refusals.refuse(Direction::Up, 4, 6, 1000.0, 0.0);
        let refuses =
            |refusals: &Refusals, to, rate, now| refusals.refuses(Direction::Up, 4, to, rate, now);
        assert!(refuses(&refusals, 6, 1050.0, 1.9) && refuses(&refusals, 8, 1000.0, 1.9));
        assert!(!refuses(&refusals, 5, 1000.0, 1.0) && !refuses(&refusals, 6, 1000.0, 2.1));
        assert!(!refuses(&refusals, 6, 2000.0, 1.0), "another load");
        refusals.refuse(Direction::Up, 4, 6, 1000.0, 2.1);
        assert!(refuses(&refusals, 6, 1000.0, 6.0));
        for _ in 0..40 {
            refusals.refuse(Direction::Up, 4, 6, 1000.0, 10.0);
        }
        assert!(refuses(&refusals, 6, 1000.0, 69.0) && !refuses(&refusals, 6, 1000.0, 70.1));
    }
}
