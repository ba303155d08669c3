// SPDX-License-Identifier: Apache-2.0
use super::*;

fn micro(name: &str, p50: f64) -> Micro {
    Micro { name: name.to_owned(), unit: "ns".to_owned(), p50, p90: None, samples: 1 }
}

fn cost() -> Cost {
    let micro = vec![
        micro("sched.decide.8x64", 140.0),
        micro("sched.decide.8x1024", 154.0),
        micro("sched.frame.streams10", 100.0),
        micro("sched.frame.streams10000", 250.0),
    ];
    Cost { micro, allocations: 0, allocations_before: 50 }
}

fn judged(cost: &Cost) -> Document {
    let mut document = Document::new("sched", Vec::new());
    document.micro = cost.micro.clone();
    compare(&mut document);
    count_allocations(&mut document, cost);
    document
}

#[test]
fn bars_are_held_by_figures_that_are_there() {
    let document = judged(&cost());
    let held: Vec<_> = document.comparisons.iter().map(|comparison| comparison.holds).collect();
    assert_eq!(held, [Some(true), Some(true), Some(false), Some(true)]);
    assert!((document.comparisons[1].ratio.unwrap() - 1.1).abs() < 1e-9);
    assert_eq!(violations(&document), Vec::<String>::new());
    let nothing = judged(&Cost { micro: Vec::new(), ..cost() });
    assert!(nothing.comparisons[..3].iter().all(|comparison| comparison.holds == Some(false)));
}

#[test]
fn one_allocation_misses_the_bar_and_a_counter_that_sees_none_proves_nothing() {
    assert_eq!(judged(&Cost { allocations: 1, ..cost() }).comparisons[3].holds, Some(false));
    let blind = judged(&Cost { allocations_before: 0, ..cost() });
    assert!(violations(&blind)[0].contains("counting allocator"));
}

#[test]
fn without_the_example_it_is_not_possible() {
    let plan = Plan { turns: 1, cases: None, workspace: PathBuf::from("."), setup: Setup::nowhere() };
    let error = super::cost(&plan).unwrap_err();
    assert_eq!(error.exit_status(), 3);
    assert!(error.to_string().contains("make bench-sched"), "{error}");
}

#[test]
fn what_the_example_tells_is_understood() {
    let text = r#"{"micro":[{"name":"sched.decide.8x64","unit":"ns","p50":1.5,"p90":2.0,"samples":3}],"allocations":0,"allocations_before":7}"#;
    let cost: Cost = serde_json::from_str(text).unwrap();
    assert_eq!((cost.allocations, cost.allocations_before, cost.micro[0].samples), (0, 7, 3));
}
