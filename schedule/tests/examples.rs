// SPDX-License-Identifier: Apache-2.0
//! The examples are what they say: valid, without warnings, the same in every format.

use std::path::Path;

use ktsn_schedule::analysis::{Link, Warning, analyse};
use ktsn_schedule::{Format, parse, write};

#[test]
fn every_example_is_valid_and_means_what_it_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/schedules");
    let mut seen_count = 0;
    for file in std::fs::read_dir(folder).expect("the examples") {
        let path = file.expect("an entry").path();
        let name = path.display().to_string();
        let text = std::fs::read_to_string(&path).expect("text");
        let schedule = parse(&text, Format::Auto).unwrap_or_else(|faults| panic!("{name}: {faults}"));
        let warnings = analyse(&schedule, &Link::of(&schedule, None, None, None)).warnings;
        if path.extension().is_some_and(|extension| extension == "taprio") {
            assert_eq!(warnings, [Warning::LinkSpeedUnknown], "{name}");
            let again = write(&schedule, Format::Taprio).expect("it was one");
            assert_eq!(parse(&again, Format::Taprio).as_ref(), Ok(&schedule), "{name}");
        } else {
            assert_eq!(warnings, [], "{name}");
        }
        for format in [Format::Yaml, Format::Json] {
            let again = write(&schedule, format).expect("everything can be said");
            assert_eq!(parse(&again, format).as_ref(), Ok(&schedule), "{name}");
        }
        seen_count += 1;
    }
    assert!(seen_count >= 5, "{seen_count}");
}

/// The guide's complete example is the file beside it.
#[test]
fn the_guide_shows_a_schedule_that_is_valid() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/schedules.md");
    let text = std::fs::read_to_string(guide).expect("the guide");
    let mut blocks_count = 0;
    for block in text.split("```yaml\n").skip(1) {
        let yaml = block.split("```").next().expect("an end");
        parse(yaml, Format::Yaml).unwrap_or_else(|faults| panic!("{faults}\n{yaml}"));
        blocks_count += 1;
    }
    assert!(blocks_count > 0);
}
