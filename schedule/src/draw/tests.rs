// SPDX-License-Identifier: Apache-2.0
//! What is drawn, against what is open.

use super::*;
use crate::analysis::analyse;
use crate::{Format, parse};

fn world(entries: &str) -> (Schedule, Link, Analysis) {
    let text = format!(
        "name: a <test> & more\nlink-speed: 1G\nmtu: 1458\nclass-names: {{ 7: control, 0: best effort }}\n\
         priority-map: [0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]\n\
         gate-parameter-table:\n  gate-enabled: true\n  admin-control-list: [{entries}]\n"
    );
    let schedule = parse(&text, Format::Yaml).unwrap_or_else(|faults| panic!("{faults}"));
    let link = Link::of(&schedule, None, None, None);
    let analysis = analyse(&schedule, &link);
    (schedule, link, analysis)
}

fn entry(states: u8, span: &str) -> String {
    format!("{{ gate-states-value: {states}, time-interval-value: {span} }}, ")
}

/// The row of a class, without label and share.
fn row(text: &str, label: &str, cells: usize) -> String {
    let line = text.lines().find(|line| line.starts_with(label)).expect("the row");
    line.chars().skip(19).take(cells).collect()
}

#[test]
fn rows_show_windows_and_guard_bands_to_scale() {
    // A frame of 1458 + 42 octets takes 12 µs at 1 Gbit/s: 12 columns of one µs.
    let list = entry(0x80, "30us") + &entry(0x81, "20us") + &entry(0x01, "50us");
    let (schedule, link, analysis) = world(&list);
    let text = timeline(&schedule, &link, &analysis, 100 + 19 + 10, Paint::Plain);
    assert_eq!(
        row(&text, "7 control", 100),
        "█".repeat(30) + &"▓".repeat(8) + &"╱".repeat(12) + &"·".repeat(50)
    );
    let expected = "·".repeat(30) + &"▓".repeat(20) + &"█".repeat(38) + &"╱".repeat(12);
    assert_eq!(row(&text, "0 best effort", 100), expected);
    assert!(text.contains("38.00 %") && text.contains("58.00 %"), "{text}");
    assert!(text.lines().any(|line| line.trim_start().starts_with("0         10        20")), "{text}");
    assert!(text.contains("classes 1, 2, 3, 4, 5, 6 are closed and no priority leads to them"));
    assert!(!text.contains('\x1b'));
    let painted = timeline(&schedule, &link, &analysis, 129, Paint::Colour);
    let plain: String = painted.split('\x1b').enumerate().fold(String::new(), |text, (index, part)| {
        text + if index == 0 { part } else { part.split_once('m').expect("an attribute").1 }
    });
    assert_eq!(plain, text, "colours change nothing else");
}

#[test]
fn a_window_across_the_cycles_end_has_its_guard_band_after_it() {
    let list = entry(0x80, "6us") + &entry(0x01, "84us") + &entry(0x80, "10us");
    let (_, _, analysis) = world(&list);
    let spans = spans(&analysis, &analysis.classes[7]);
    let expected = [(0, 6_000, Kind::Guard), (90_000, 94_000, Kind::Alone), (94_000, 100_000, Kind::Guard)];
    assert_eq!(
        spans.iter().map(|span| (span.begins_at, span.ends_at, span.kind)).collect::<Vec<_>>(),
        expected
    );
    // Beginning after the cycle's end.
    let (_, _, analysis) = world(&(entry(0x80, "15us") + &entry(0x01, "75us") + &entry(0x80, "10us")));
    assert_eq!(guards(&analysis.classes[7], 100_000), [(3_000, 15_000)]);
}

#[test]
fn no_window_vanishes_however_narrow_the_terminal() {
    let (schedule, link, analysis) = world(&(entry(0x80, "100ns") + &entry(0x01, "9999900ns")));
    for columns in [0, 1, 40, 80, 200] {
        let text = timeline(&schedule, &link, &analysis, columns, Paint::Plain);
        assert_eq!(row(&text, "7 control", 1), "▏", "{columns}");
        if columns >= 60 {
            let longest =
                text.lines().filter(|line| line.starts_with("7 ")).map(|line| line.chars().count()).next();
            assert_eq!(longest, Some(columns));
        }
    }
    assert!(svg(&schedule, &link, &analysis).contains("width=\"0.75\""));
}

#[test]
fn spans_add_up_to_what_the_analysis_says() {
    let list = entry(0x81, "13us") + &entry(0x80, "7us") + &entry(0x7f, "31us") + &entry(0xff, "29us");
    let (_, _, analysis) = world(&list);
    for class in &analysis.classes {
        let spans = spans(&analysis, class);
        let length = |kind| -> i64 {
            spans.iter().filter(|span| span.kind == kind).map(|span| span.ends_at - span.begins_at).sum()
        };
        let usable = length(Kind::Alone) + length(Kind::Shared);
        assert_eq!(usable, class.usable.expect("a speed").get());
        assert_eq!(usable + length(Kind::Guard), class.open.get());
        assert!(spans.windows(2).all(|pair| pair[0].ends_at <= pair[1].begins_at));
    }
}

#[test]
fn an_svg_is_escaped_and_complete() {
    let (schedule, link, analysis) = world(&(entry(0x80, "50us") + &entry(0x01, "50us")));
    let text = svg(&schedule, &link, &analysis);
    assert!(text.contains("a &lt;test&gt; &amp; more") && !text.contains("<test>"));
    for part in
        ["prefers-color-scheme:dark", "guard band of the largest frame", "7 control", "µs since", "38.00 %"]
    {
        assert!(text.contains(part), "{part}");
    }
    assert_eq!(text.matches("<text").count(), text.matches("</text>").count());
    assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
}

#[test]
fn gates_that_never_change_are_told_and_drawn() {
    let (mut schedule, link, _) = world(&entry(1, "1ms"));
    schedule.admin.gate_enabled = false;
    schedule.admin.gate_states = GateStates::from_bits(1);
    let analysis = analyse(&schedule, &link);
    let text = timeline(&schedule, &link, &analysis, 80, Paint::Plain);
    assert!(
        text.contains("gates stay at 0x01") && text.contains("always") && text.contains("never"),
        "{text}"
    );
    assert_eq!(svg(&schedule, &link, &analysis).matches("<rect class=\"shared\" x=\"190\"").count(), 1);
}

#[test]
fn scales_have_round_numbers() {
    assert_eq!(ticks(1_000_000, 10), (0..=10).map(|tick| tick * 100_000).collect::<Vec<_>>());
    assert_eq!(ticks(250_000, 5), [0, 50_000, 100_000, 150_000, 200_000, 250_000]);
    assert_eq!(ticks(900, 4), [0, 200, 400, 600, 800]);
    assert_eq!(ticks(1, 0), [0, 1]);
    assert_eq!(micros(62_500), "62.5");
    assert_eq!(micros(1_000_000), "1000");
    assert_eq!(micros(1), "0.001");
}
