//! Where jobs land: each on a virtual CPU, that CPU's queue, and of queue i the thread i mod n.
//!
//! The scheduler spreads jobs over the CPUs, so that no queue has two jobs while another has none. Which queues have one
//! more is chance; with fewer threads than queues some jobs share a thread while another thread idles.
//!
//! Invariants: exact, no drawing: the probabilities of all landings sum to 1.

use std::collections::BTreeMap;

/// How jobs share threads, and how probable that is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Landing {
    pub(super) probability: f64,
    /// The jobs of each thread, the idle ones too; in rising order.
    pub(super) jobs: Vec<u16>,
}

/// All landings of `jobs` on `queues` that `threads` serve, all at least 1.
pub(super) fn landings(jobs: u16, queues: u16, threads: u16) -> Vec<Landing> {
    let (each, extra) = (jobs / queues, jobs % queues);
    // Extra jobs that are not yet placed, and the jobs of the threads so far.
    let mut states = BTreeMap::from([((extra, Vec::new()), 1.0)]);
    let mut queues_left = queues;
    for thread in 0..threads {
        let own = queues / threads + u16::from(thread < queues % threads);
        let mut next = BTreeMap::new();
        for ((left, placed), probability) in states {
            for here in 0..=own.min(left) {
                let ways = choose(own, here) * choose(queues_left - own, left - here);
                if ways > 0.0 {
                    let mut placed: Vec<u16> = placed.clone();
                    placed.push(each * own + here);
                    placed.sort_unstable();
                    let share = probability * ways / choose(queues_left, left);
                    *next.entry((left - here, placed)).or_insert(0.0) += share;
                }
            }
        }
        states = next;
        queues_left -= own;
    }
    states.into_iter().map(|((_, jobs), probability)| Landing { probability, jobs }).collect()
}

/// In how many ways `k` of `n` can be taken; 0 if there are fewer.
fn choose(n: u16, k: u16) -> f64 {
    if k > n {
        return 0.0;
    }
    (0..k).map(|i| f64::from(n - i) / f64::from(i + 1)).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads_hit(jobs: u16, queues: u16, threads: u16) -> f64 {
        let hit = |it: &Landing| it.jobs.iter().filter(|&&jobs| jobs > 0).count() as f64;
        landings(jobs, queues, threads).iter().map(|it| it.probability * hit(it)).sum()
    }

    #[test]
    fn four_jobs_hit_fewer_than_four_threads_until_there_is_one_per_queue() {
        for (threads, expected) in
            [(1, 1.0), (4, 2.91), (6, 3.33), (8, 3.60), (12, 3.80), (16, 4.0)]
        {
            let hit = threads_hit(4, 16, threads);
            assert!((hit - expected).abs() < 0.005, "{threads} threads: {hit}");
        }
    }

    #[test]
    fn no_job_is_lost_and_nothing_is_certain_twice() {
        for (jobs, queues, threads) in
            [(1, 16, 3), (4, 16, 6), (16, 16, 12), (20, 16, 4), (8, 4, 3)]
        {
            let all = landings(jobs, queues, threads);
            let sum: f64 = all.iter().map(|it| it.probability).sum();
            assert!((sum - 1.0).abs() < 1e-12, "{sum}");
            assert!(
                all.iter().all(|it| it.jobs.iter().sum::<u16>() == jobs && it.probability > 0.0)
            );
            assert!(all.iter().all(|it| it.jobs.len() == usize::from(threads)));
        }
    }

    #[test]
    fn a_job_for_every_queue_leaves_nothing_to_chance() {
        assert_eq!(landings(16, 16, 3), [Landing { probability: 1.0, jobs: vec![5, 5, 6] }]);
        assert_eq!(landings(32, 16, 2), [Landing { probability: 1.0, jobs: vec![16, 16] }]);
    }

    #[test]
    fn two_jobs_share_one_of_two_threads_almost_half_of_the_time() {
        let all = landings(2, 4, 2);
        let together = all.iter().find(|it| it.jobs == [0, 2]).unwrap();
        assert!((together.probability - 1.0 / 3.0).abs() < 1e-12, "{all:?}");
    }
}
