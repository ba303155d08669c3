// SPDX-License-Identifier: Apache-2.0
//! Which CPUs the daemon's threads run on.
//!
//! In: the CPUs that the configuration gives to workers. Out: all other threads of the daemon keep off them, as long as another
//! CPU is left. Where the kernel does not preempt its own work for real-time threads, a system call of one of these (a dump, a
//! packet socket that is made or closed) would hold a worker up until it ends.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that the daemon may run on.
static ALL: OnceLock<CpuSet> = OnceLock::new();

/// The calling thread, and threads that it starts from now on, keep off these CPUs.
pub(crate) fn keep_off(workers: impl Iterator<Item = u32>) {
    let Ok(all) = sched_getaffinity(None) else { return };
    let all = ALL.get_or_init(|| all);
    let left = without(all, workers);
    if left.count() > 0 {
        // The call may be refused: then the threads run where they may.
        let _ = sched_setaffinity(None, &left);
    }
}

/// The calling thread runs wherever the daemon may.
pub(crate) fn anywhere() {
    if let Some(all) = ALL.get() {
        let _ = sched_setaffinity(None, all);
    }
}

fn without(all: &CpuSet, workers: impl Iterator<Item = u32>) -> CpuSet {
    let mut left = *all;
    // A CPU that does not exist is reported where its worker starts.
    for cpu in workers.map(|cpu| cpu as usize).filter(|cpu| *cpu < CpuSet::MAX_CPU) {
        left.unset(cpu);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpus: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        set
    }

    #[test]
    fn the_workers_cpus_are_left_out() {
        let all = set(&[0, 1, 5]);
        assert!(without(&all, [1, 1, 7, 99_999].into_iter()) == set(&[0, 5]));
        assert!(without(&all, std::iter::empty()) == all);
        assert_eq!(without(&all, [0, 1, 5].into_iter()).count(), 0);
    }

    #[test]
    fn threads_inherit_it_and_a_worker_without_a_cpu_runs_anywhere() {
        std::thread::spawn(|| {
            let all = sched_getaffinity(None).unwrap();
            let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
            let Some(last) = cpus.last().filter(|_| cpus.len() > 1) else { return };
            keep_off(std::iter::once(*last as u32));
            std::thread::spawn(move || {
                assert_eq!(sched_getaffinity(None).unwrap().count() as usize, cpus.len() - 1);
                anywhere();
                assert!(sched_getaffinity(None).unwrap() == all);
            })
            .join()
            .unwrap();
        })
        .join()
        .unwrap();
    }
}
