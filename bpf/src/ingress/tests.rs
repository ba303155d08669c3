// SPDX-License-Identifier: Apache-2.0
//! The program itself, run by the kernel (BPF_PROG_TEST_RUN; root).

use super::*;
use crate::test_run;

#[test]
fn the_program_loads_and_its_place_is_known() {
    let inside = || {
        test_run::own_network().unwrap();
        let mut ingress = Ingress::load().unwrap();
        assert_eq!(ingress.place().unwrap(), Place::Nowhere);
        ingress.attach(1).unwrap(); // lo of a namespace of this test's own
        assert_eq!(ingress.place().unwrap(), Place::First);
        let mut other = Ingress::load().unwrap();
        other.attach(1).unwrap();
        assert_eq!((ingress.place().unwrap(), other.place().unwrap()), (Place::Behind, Place::First));
        ingress.attach(1).unwrap();
        assert_eq!((ingress.place().unwrap(), other.place().unwrap()), (Place::First, Place::Behind));
        assert!(ingress.attach(4242).is_err());
        assert_eq!(ingress.place().unwrap(), Place::Nowhere);
        ingress.detach();
        assert_eq!((ingress.place().unwrap(), other.place().unwrap()), (Place::Nowhere, Place::First));
    };
    std::thread::scope(|scope| scope.spawn(inside).join().expect("it ran"));
}
