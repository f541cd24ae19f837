//! A replica of SPDK's dynamic scheduler, as its source reads: limits of 20, 80 and 95 %, one second.
//!
//! Limits: a disk is a thread of SPDK's and lies whole on a core, as a vhost controller does.

use super::Policy;
use crate::machine::solve;
use crate::world::World;

/// A disk that uses less than that is idle and goes to the first core.
const IDLE: f64 = 0.2;
/// A core takes another disk up to that.
const FILL: f64 = 0.8;
/// Above that a core gives disks away.
const BUSY: f64 = 0.95;

/// Moves whole disks between cores once a second.
#[derive(Debug)]
pub struct SpdkDynamic {
    cores: u16,
    home: Vec<u16>,
}

impl SpdkDynamic {
    /// On so many cores.
    pub fn new(cores: u16) -> Self {
        Self { cores, home: Vec::new() }
    }
}

impl Policy for SpdkDynamic {
    fn look(&mut self, world: &mut World) -> f64 {
        self.home.resize(world.disks.len(), 0);
        // A thread of SPDK's that always finds something is busy, whatever others leave it.
        let alone = |disk: usize| {
            let load = world.disks[disk].load.as_ref();
            let shares = solve(&world.parameters, &[(load, &|_| 0)]);
            shares[0].values().map(|it| it.usage).sum::<f64>()
        };
        let loads: Vec<f64> = (0..world.disks.len()).map(alone).collect();
        let usages: Vec<f64> =
            world.shares().iter().map(|it| it.values().map(|share| share.usage).sum()).collect();
        let mut busy = vec![0.0; usize::from(self.cores)];
        for (home, usage) in self.home.iter().zip(&usages) {
            busy[usize::from(*home)] += usage;
        }
        for (disk, usage) in usages.iter().enumerate() {
            let from = usize::from(self.home[disk]);
            let to = if loads[disk] < IDLE {
                if from != 0 && busy[0] + usage < BUSY { 0 } else { continue }
            } else if busy[from] > BUSY && busy[from] - usage > 0.01 {
                let cores = 0..usize::from(self.cores);
                let least = cores.min_by(|a, b| busy[*a].total_cmp(&busy[*b])).unwrap_or(0);
                let fits = busy[least] + loads[disk] < FILL || busy[least] + usage < busy[from];
                if fits { least } else { continue }
            } else {
                continue;
            };
            busy[from] -= usage;
            busy[to] += usage;
            self.home[disk] = u16::try_from(to).unwrap_or(0);
        }
        for (disk, home) in self.home.iter().enumerate() {
            for queue in 0..world.disks[disk].plan.queues {
                world.move_ring(disk, queue, *home);
            }
        }
        1.0
    }
}
