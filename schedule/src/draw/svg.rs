// SPDX-License-Identifier: Apache-2.0
//! The time line as one SVG file: no script, no network, no font of its own; light and dark by the viewer's preference.

use std::fmt::{self, Write as _};

use ktsn_time::Nanos;

use super::{Kind, Span, cut, drawn, headline, label, left_out, micros, spans, ticks};
use crate::analysis::{Analysis, ClassUse, Link, show_share};
use crate::schedule::Schedule;
use crate::units::show_span;

const WIDTH: i64 = 1000;
const LEFT: i64 = 190;
const PLOT: i64 = 690;
const TOP: i64 = 96;
const ROW: i64 = 34;
const BAR: i64 = 22;
/// The scale, the legend and what is said below the rows.
const BOTTOM: i64 = 124;

/// Colours are chosen so that the three kinds differ in brightness too.
const STYLE: &str = "\
:root{--page:#fff;--ink:#1b1f24;--faint:#5c6670;--line:#d5dae0;--row:#f3f5f7;--alone:#0b5cad;--shared:#7db4ea;--guard:#b45309;--guard-back:#fde8c8}
@media (prefers-color-scheme:dark){:root{--page:#14171b;--ink:#e8ebee;--faint:#a3adb8;--line:#39414a;--row:#1e2329;--alone:#58a6ff;--shared:#2b5788;--guard:#f0a44b;--guard-back:#4a3414}}
text{font:13px system-ui,sans-serif;fill:var(--ink)}
.title{font-size:18px;font-weight:600}.faint{fill:var(--faint)}.end{text-anchor:end}.mid{text-anchor:middle}
.page{fill:var(--page)}.row{fill:var(--row)}.line{stroke:var(--line);stroke-width:1}.axis{stroke:var(--faint);stroke-width:1}
.alone{fill:var(--alone)}.shared{fill:var(--shared)}.guard{fill:url(#hatch)}
.hatch-back{fill:var(--guard-back)}.hatch-line{stroke:var(--guard);stroke-width:2.5}";

/// Draws one cycle.
#[must_use]
pub fn svg(schedule: &Schedule, link: &Link, analysis: &Analysis) -> String {
    let classes: Vec<&ClassUse> = drawn(analysis).collect();
    let rows_end = TOP + ROW * classes.len() as i64;
    let height = rows_end + BOTTOM;
    let mut drawing = Drawing { text: String::new() };
    let name = schedule.name.as_deref().unwrap_or("Gate schedule");
    let headline = headline(schedule, link, analysis);
    drawing.put(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-labelledby=\"name what\">"
    ));
    drawing.put(format_args!("<title id=\"name\">{}</title>", Escaped(name)));
    let description = schedule.description.as_deref().unwrap_or(&headline);
    drawing.put(format_args!("<desc id=\"what\">{}</desc>", Escaped(description)));
    drawing.put(format_args!("<style>{STYLE}</style>"));
    drawing.put(format_args!(
        "<defs><pattern id=\"hatch\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" \
         patternTransform=\"rotate(45)\"><rect class=\"hatch-back\" width=\"7\" height=\"7\"/>\
         <line class=\"hatch-line\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"7\"/></pattern></defs>"
    ));
    drawing.put(format_args!("<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>"));
    drawing.text(24, 34, "title", &cut(name, 80));
    drawing.text(24, 56, "faint", &headline);
    drawing.text(LEFT - 12, TOP - 10, "faint end", "traffic class");
    drawing.text(WIDTH - 24, TOP - 10, "faint end", "usable");
    drawing.scale(analysis, rows_end);
    for (index, class) in classes.into_iter().enumerate() {
        drawing.row(schedule, analysis, class, TOP + ROW * index as i64);
    }
    drawing.legend(analysis, rows_end + 72);
    if let Some(words) = left_out(analysis) {
        drawing.text(24, height - 16, "faint", &words);
    }
    drawing.put(format_args!("</svg>"));
    drawing.text
}

struct Drawing {
    text: String,
}

impl Drawing {
    fn put(&mut self, line: fmt::Arguments<'_>) {
        // A String takes everything.
        let _ = writeln!(self.text, "{line}");
    }

    fn text(&mut self, x: i64, y: i64, class: &str, text: &str) {
        self.put(format_args!("<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{}</text>", Escaped(text)));
    }

    /// Lines and numbers of the time axis.
    fn scale(&mut self, analysis: &Analysis, rows_end: i64) {
        let cycle = analysis.cycle_time.get();
        if cycle == 0 {
            return;
        }
        for at in ticks(cycle, 10) {
            let x = Place { at, cycle };
            self.put(format_args!(
                "<line class=\"line\" x1=\"{x}\" y1=\"{TOP}\" x2=\"{x}\" y2=\"{}\"/>",
                rows_end + 5
            ));
            self.put(format_args!(
                "<text x=\"{x}\" y=\"{}\" class=\"mid\">{}</text>",
                rows_end + 21,
                micros(at)
            ));
        }
        let end = LEFT + PLOT;
        self.put(format_args!(
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{rows_end}\" x2=\"{end}\" y2=\"{rows_end}\"/>"
        ));
        self.text(LEFT + PLOT / 2, rows_end + 42, "faint mid", "µs since the cycle's start");
    }

    fn row(&mut self, schedule: &Schedule, analysis: &Analysis, class: &ClassUse, y: i64) {
        let bar = y + (ROW - BAR) / 2;
        let baseline = y + ROW / 2 + 5;
        self.text(LEFT - 12, baseline, "end", &cut(&label(schedule, class.class), 24));
        self.put(format_args!(
            "<rect class=\"row\" x=\"{LEFT}\" y=\"{bar}\" width=\"{PLOT}\" height=\"{BAR}\"/>"
        ));
        let cycle = analysis.cycle_time;
        if cycle == Nanos::ZERO {
            if class.is_always_open {
                self.put(format_args!(
                    "<rect class=\"shared\" x=\"{LEFT}\" y=\"{bar}\" width=\"{PLOT}\" height=\"{BAR}\"/>"
                ));
            }
            return;
        }
        for span in spans(analysis, class) {
            self.span(class, &span, cycle.get(), bar);
        }
        let usable = class.usable.map_or("-".into(), |usable| show_share(usable, cycle));
        self.text(WIDTH - 24, baseline, "end", &usable);
    }

    fn span(&mut self, class: &ClassUse, span: &Span, cycle: i64, y: i64) {
        let (style, words) = match span.kind {
            Kind::Alone => ("alone", "open, alone"),
            Kind::Shared => ("shared", "open, shared"),
            Kind::Guard => ("guard", "guard band"),
        };
        let (begin, end) = (Place { at: span.begins_at, cycle }, Place { at: span.ends_at, cycle });
        // A window must be seen, however short it is.
        let width = (end.hundredths() - begin.hundredths()).max(75);
        self.put(format_args!(
            "<rect class=\"{style}\" x=\"{begin}\" y=\"{y}\" width=\"{}.{:02}\" height=\"{BAR}\">\
             <title>class {}: {words}, {} to {}</title></rect>",
            width / 100,
            width % 100,
            class.class.get(),
            show_span(span.begins_at),
            show_span(span.ends_at),
        ));
    }

    fn legend(&mut self, analysis: &Analysis, y: i64) {
        let mut items =
            vec![("alone", "open, this class alone"), ("shared", "open, shared"), ("row", "closed")];
        if analysis.classes.iter().any(|class| class.guard_band.is_some()) {
            items.insert(2, ("guard", "guard band of the largest frame"));
        }
        let mut x = LEFT;
        for (style, words) in items {
            self.put(format_args!(
                "<rect class=\"{style}\" x=\"{x}\" y=\"{y}\" width=\"22\" height=\"14\"/>"
            ));
            self.text(x + 30, y + 12, "faint", words);
            x += 60 + 7 * words.chars().count() as i64;
        }
    }
}

/// An instant's x, in hundredths of a unit.
#[derive(Clone, Copy)]
struct Place {
    at: i64,
    cycle: i64,
}

impl Place {
    fn hundredths(self) -> i64 {
        LEFT * 100 + (i128::from(self.at) * i128::from(PLOT) * 100 / i128::from(self.cycle.max(1))) as i64
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.hundredths() / 100, self.hundredths() % 100)
    }
}

/// Text as XML says it.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                // XML has no way to say them.
                '\u{0}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => f.write_str("\u{fffd}")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}
