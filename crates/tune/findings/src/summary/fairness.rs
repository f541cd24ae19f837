//! How evenly guests, or disks, that ran at once were served. Pure functions.

use std::collections::BTreeMap;
use std::fmt;

use records::results::{DiskPart, Part, Run};

use super::median;

/// A guest, or a disk of one, by their numbers from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    vm: u16,
    disk: Option<u16>,
}

/// `VM 3`, `VM 3 disk 2`.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VM {}", self.vm)?;
        self.disk.map_or(Ok(()), |disk| write!(f, " disk {disk}"))
    }
}

/// What several had that ran at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fairness {
    /// Bytes per second of the one that had least: the median of the repeats.
    pub least: f64,
    /// The same of the one that had most.
    pub most: f64,
    /// Jain's fairness index of their throughputs, median of the repeats: 1 if all had the same, 1/n if one had all.
    pub jain: f64,
    /// The one whose median is lowest.
    pub worst: Place,
}

impl Fairness {
    /// Of guests; of the host's load, of the disks that each would have.
    pub(super) fn of_vms(runs: &[&Run]) -> Option<Self> {
        Self::of(runs, |run| {
            let part = |part: &Part| (part.vm, part.bytes_per_second());
            let disk = |disk: &DiskPart| (disk.vm, disk.bytes_per_second());
            let mut vms = BTreeMap::<u16, f64>::new();
            let parts = run.parts.iter().map(part);
            let disks = run.disk_parts.iter().filter(|_| run.parts.is_empty()).map(disk);
            parts.chain(disks).for_each(|(vm, rate)| *vms.entry(vm).or_default() += rate);
            vms.into_iter().map(|(vm, rate)| (Place { vm, disk: None }, rate)).collect()
        })
    }

    /// Of all disks, where guests have several.
    pub(super) fn of_disks(runs: &[&Run]) -> Option<Self> {
        Self::of(runs, |run| {
            let place = |it: &DiskPart| Place { vm: it.vm, disk: Some(it.disk) };
            let own = run.disk_parts.iter().filter(|_| run.key.variant.disks > 1);
            own.map(|disk| (place(disk), disk.bytes_per_second())).collect()
        })
    }

    fn of(runs: &[&Run], rates: impl Fn(&Run) -> Vec<(Place, f64)>) -> Option<Self> {
        let mut all: Vec<Vec<(Place, f64)>> = runs.iter().map(|run| rates(run)).collect();
        all.retain(|rates| rates.len() > 1);
        let figure = |of: fn(&[f64]) -> f64| {
            let only = |rates: &Vec<(Place, f64)>| rates.iter().map(|it| it.1).collect::<Vec<_>>();
            median(all.iter().map(|rates| of(&only(rates))))
        };
        let mut places = BTreeMap::<Place, Vec<f64>>::new();
        for (place, rate) in all.iter().flatten() {
            places.entry(*place).or_default().push(*rate);
        }
        let medians =
            places.into_iter().filter_map(|(place, it)| Some((place, median(it.into_iter())?)));
        let (worst, _) = medians.min_by(|(_, one), (_, other)| one.total_cmp(other))?;
        Some(Self {
            least: figure(|rates| rates.iter().copied().fold(f64::INFINITY, f64::min))?,
            most: figure(|rates| rates.iter().copied().fold(0.0, f64::max))?,
            jain: figure(jain)?,
            worst,
        })
    }
}

/// R. Jain, D. Chiu, W. Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984.
fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (rates.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use plan::testing::{cell, client};
    use records::testing::run;

    use super::*;

    #[test]
    fn jains_index_is_1_for_equals_and_1_of_n_for_one_alone() {
        for (rates, expected) in [
            (&[5.0, 5.0, 5.0][..], 1.0),
            (&[3.0, 0.0, 0.0, 0.0], 0.25),
            (&[1.0, 2.0], 0.9),
            (&[1.0, 2.0, 3.0], 36.0 / 42.0),
        ] {
            assert!((jain(rates) - expected).abs() < 1e-12, "{rates:?}");
        }
    }

    /// A run of a load on so many disks, two of each guest, with these requests in a second.
    fn on_disks(repeat: u16, requests: &[u64]) -> Run {
        let mut run = run(cell("randread", 4096, 1, 1), client(0), repeat, requests.iter().sum());
        (run.key.variant.vms, run.key.variant.disks) = (2, 2);
        let part = |(place, operations): (u16, &u64)| {
            let (vm, disk) = (place / 2 + 1, place % 2 + 1);
            let bytes = operations * 1000;
            DiskPart { vm, disk, operations: *operations, bytes, elapsed_ns: 1_000_000_000 }
        };
        run.disk_parts = (0..).zip(requests).map(part).collect();
        run
    }

    #[test]
    fn the_least_and_the_most_are_those_of_each_repeat() {
        // Another one is last each time, but the third disk most often.
        let runs =
            [on_disks(0, &[1, 9, 5, 5]), on_disks(1, &[9, 9, 1, 5]), on_disks(2, &[9, 9, 2, 4])];
        let runs: Vec<&Run> = runs.iter().collect();
        let disks = Fairness::of_disks(&runs).unwrap();
        assert_eq!(
            (disks.least, disks.most, disks.worst.to_string()),
            (1e3, 9e3, "VM 2 disk 1".to_owned())
        );
        let vms = Fairness::of_vms(&runs).unwrap();
        assert_eq!((vms.least, vms.most, vms.worst.to_string()), (6e3, 18e3, "VM 2".to_owned()));
        assert!((vms.jain - 576.0 / 720.0).abs() < 1e-12, "{}", vms.jain);
    }

    #[test]
    fn what_ran_alone_or_did_nothing_has_no_shares() {
        let alone = run(cell("randread", 4096, 1, 1), client(0), 0, 5);
        assert_eq!((Fairness::of_vms(&[&alone]), Fairness::of_disks(&[&alone])), (None, None));
        let idle = on_disks(0, &[0, 0, 0, 0]);
        assert_eq!(Fairness::of_disks(&[&idle]), None, "nothing has no index");
        assert_eq!(Fairness::of_vms(&[]), None);
    }
}
