// SPDX-License-Identifier: Apache-2.0
//! What a program may do that keeps KTSN from serving it: found by the names of the functions and libraries that it uses.
//!
//! In: those names, and the limits that a program started from here would have. Out: findings. A name says that the program can do it,
//! not that it does: then it is not known.

use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use super::elf::Names;
use super::finding::{Finding, Look};

const RING: Look = Look::at("program_io_uring", SOURCE);
const ASAN: Look =
    Look::at("program_asan", "names in the tables of strings of the program's file, ASAN_OPTIONS");
const LOCKS: Look = Look::at(
    "program_mlockall",
    "names in the tables of strings of the program's file, getrlimit(RLIMIT_MEMLOCK), capget",
);
const CHROOT: Look = Look::at("program_chroot", SOURCE);
const DAEMON: Look = Look::at("program_daemon", SOURCE);
const SOURCE: &str = "names in the tables of strings of the program's file";

/// The option that lets ASan's runtime be loaded behind another library.
const ASAN_OPTION: &str = "verify_asan_link_order=0";
/// Why a program with ASan's runtime as a library ends at its start.
pub(crate) const ASAN_MEANING: &str = "ASan's runtime wants to be loaded first, and ends the program (\"ASan runtime does not come first in \
                                       initial library list\"), as libktsn.so is preloaded";
pub(crate) const ASAN_REMEDY: &str =
    "run it with ASAN_OPTIONS=verify_asan_link_order=0, or build it with -static-libasan";
/// What locks its memory needs room for ktsnd's region: the default one, and the program's own.
const LOCKABLE_OCTETS_MIN: u64 = 64 << 20;

/// Whether a program with these names would end at its start under libktsn, because of ASan.
pub(crate) fn is_ended_by_asan(names: Option<Names>) -> bool {
    let options = std::env::var("ASAN_OPTIONS").unwrap_or_default();
    names.is_some_and(|names| names.asan_library) && !options.split(':').any(|option| option == ASAN_OPTION)
}

/// The findings.
pub(super) fn findings(names: Option<Names>) -> Vec<Finding> {
    let Some(names) = names else {
        let unknown = |look: Look| {
            let meaning = "what functions and libraries the program uses cannot be read";
            look.not_known(
                "no table of names",
                meaning,
                "look at a build of the program with its section headers",
            )
        };
        return [RING, ASAN, LOCKS, CHROOT, DAEMON].map(unknown).into();
    };
    let lockable = getrlimit(Resource::Memlock).current;
    let may_lock =
        rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    vec![
        io_uring(names.io_uring),
        asan(names.asan_library, is_ended_by_asan(Some(names))),
        locks(names.mlockall, if may_lock { None } else { lockable }),
        chroot(names.chroot),
        daemon(names.daemon),
    ]
}

fn io_uring(is_named: bool) -> Finding {
    if !is_named {
        return RING.ok("not named", "no library or function of io_uring in its tables of names");
    }
    RING.warn(
        "it names io_uring",
        "datagrams that it sends through io_uring go to the kernel unseen by libktsn, without any count",
        "if it sends datagrams through io_uring at all: make it use sendmsg or sendmmsg, or serve it by kernel capture (`ktsn run --capture kernel`)",
    )
}

fn asan(is_named: bool, is_ended: bool) -> Finding {
    match (is_named, is_ended) {
        (false, _) => ASAN.ok("not named", "it needs no library of the address sanitizer"),
        (true, false) => {
            ASAN.ok(format!("ASAN_OPTIONS has {ASAN_OPTION}"), "ASan's runtime takes the second place")
        }
        (true, true) => ASAN.fail("it needs ASan's runtime as a library", ASAN_MEANING, ASAN_REMEDY),
    }
}

/// `limit`: octets that it may lock; `None` for as many as it likes.
fn locks(is_named: bool, limit: Option<u64>) -> Finding {
    const MEANING: &str = "a program that locks its memory (mlockall with MCL_FUTURE) locks ktsnd's region as well; where the limit has no \
                           room for both, it is not attached";
    match (is_named, limit) {
        (false, _) => LOCKS.ok("not named", "it does not lock its memory"),
        (true, None) => LOCKS.ok("mlockall is named, and there is no limit", MEANING),
        (true, Some(octets)) if octets >= LOCKABLE_OCTETS_MIN => {
            LOCKS.ok(format!("mlockall is named, limit {} KiB", octets / 1024), MEANING)
        }
        (true, Some(octets)) => LOCKS.warn(
            format!("mlockall is named, limit {} KiB", octets / 1024),
            MEANING,
            "raise RLIMIT_MEMLOCK to 64 MiB and what the program needs itself (ulimit -l, LimitMEMLOCK=), or grant CAP_IPC_LOCK",
        ),
    }
}

fn chroot(is_named: bool) -> Finding {
    if !is_named {
        return CHROOT.ok("not named", "it does not change its root directory");
    }
    CHROOT.not_known(
        "chroot or pivot_root is named",
        "a program that changes its root directory before its first SO_TXTIME finds no ktsnd",
        "if it does: mount ktsnd's client directory below the new root, or set SO_TXTIME before",
    )
}

fn daemon(is_named: bool) -> Finding {
    if !is_named {
        return DAEMON.ok("not named", "it does not go to the background");
    }
    DAEMON.not_known(
        "daemon, or fork and setsid, are named",
        "a program that goes to the background ends for its starter: `ktsn run --with-daemon` then waits for what it left behind",
        "if it does: run it in the foreground, or beside a ktsnd of the machine (without --with-daemon)",
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn each_habit_has_its_finding_and_no_table_says_nothing() {
        let states = |names| findings(names).iter().map(|finding| finding.state).collect::<Vec<_>>();
        assert_eq!(states(None), [State::NotKnown; 5]);
        assert_eq!(states(Some(Names::default())), [State::Ok; 5]);
        assert_eq!(asan(true, true).state, State::Fail);
        assert_eq!((asan(true, false).state, asan(false, false).state), (State::Ok, State::Ok));
        let limits = [Some(4 << 20), Some(64 << 20), None].map(|limit| locks(true, limit).state);
        assert_eq!(limits, [State::Warn, State::Ok, State::Ok]);
        assert_eq!((chroot(true).state, daemon(true).state), (State::NotKnown, State::NotKnown));
        assert_eq!((io_uring(true).state, io_uring(false).state), (State::Warn, State::Ok));
    }
}
