// SPDX-License-Identifier: Apache-2.0
//! What the kernel's own tracers say about a machine: `rtla osnoise`, `rtla timerlat`, `hwlatdetect`. In: what these programs write. Out:
//! their figures for each CPU. A text that is not understood is an error, never a zero.

use serde::{Deserialize, Serialize};

/// Why a cell, or a tracer in it, was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skip {
    /// The kind: `too_few_cpus`, `too_little_memory`, `program_missing`, `no_fifo_right`, `no_control_group`, `no_root_right`,
    /// `guest_failed`, `guest_missing`, `host_failed`, `host_missing`, `period_not_possible`.
    pub kind: String,
    /// The reason with its values.
    pub reason: String,
}

/// A tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Noise of the operating system in a busy loop (`rtla osnoise top`).
    Osnoise,
    /// Latency of a timer's interrupt and of its thread (`rtla timerlat top`).
    Timerlat,
    /// Latencies of the hardware and its firmware (`hwlatdetect`).
    Hwlat,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Hwlat, Self::Osnoise, Self::Timerlat];

    /// The name of the kernel's tracer.
    #[must_use]
    pub const fn tracer(self) -> &'static str {
        match self {
            Self::Osnoise => "osnoise",
            Self::Timerlat => "timerlat",
            Self::Hwlat => "hwlat",
        }
    }

    /// Reads what the tracer's program wrote.
    ///
    /// # Errors
    /// What is missing or not understood.
    pub fn read(self, text: &str) -> Result<Vec<Traced>, String> {
        match self {
            Self::Osnoise => osnoise(text),
            Self::Timerlat => timerlat(text),
            Self::Hwlat => hwlat(text),
        }
    }
}

/// A tracer's result, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracer {
    /// Which one.
    pub kind: Kind,
    /// Why it did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip: Option<Skip>,
    /// How long it ran.
    pub measured_ns: u64,
    /// Its figures.
    #[serde(default)]
    pub traced: Vec<Traced>,
}

/// A tracer's figures for one CPU, or for the whole machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// The CPU; absent: all together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Name and nanoseconds.
    pub figures: Vec<(String, u64)>,
}

/// A column that is shown: the words of its head, the name of its figure.
type Wanted = (&'static [&'static str], &'static str);

/// The table as rtla drew it last.
struct Table<'t> {
    /// The line above the columns' names.
    title: &'t str,
    /// The columns' names, from `CPU` on.
    head: &'t str,
    /// The lines behind it.
    rows: Vec<&'t str>,
}

/// The last table of a text: the screen is drawn again and again, so the last head begins what holds.
fn last_table(text: &str) -> Result<Table<'_>, String> {
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().rposition(|line| line.trim_start().starts_with("CPU "));
    let at = at.ok_or("no table with a column CPU")?;
    let title = at.checked_sub(1).map_or("", |above| lines[above]);
    Ok(Table { title, head: lines[at], rows: lines[at + 1..].to_vec() })
}

/// What rtla writes for a terminal, without the sequences that colour and clear it.
fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        if character != '\u{1b}' {
            plain.push(character);
        } else if rest.next() == Some('[') {
            // Up to the letter that ends the sequence.
            rest.by_ref().find(|end| ('@'..='~').contains(end));
        }
    }
    plain
}

impl Table<'_> {
    /// The figures of each row `CPU #N …`. `figures` gets the row's text behind these two cells.
    fn rows(
        &self,
        figures: impl Fn(&str) -> Result<Vec<(String, u64)>, String>,
    ) -> Result<Vec<Traced>, String> {
        let mut traced = Vec::new();
        for line in self.rows.iter().filter(|line| !line.trim().is_empty()) {
            let of_cpu = line.trim_start().split_once(char::is_whitespace);
            let row = of_cpu
                .and_then(|(cpu, rest)| Some((cpu.parse().ok()?, rest.trim_start().strip_prefix('#')?)));
            // Sums of all CPUs, and what rtla says behind the table.
            let Some((cpu, row)) = row else { break };
            let row = row.trim_start_matches(|digit: char| digit.is_ascii_digit());
            let figures = figures(row).map_err(|problem| format!("{problem}: {line:?}"))?;
            traced.push(Traced { cpu: Some(cpu), figures });
        }
        if traced.is_empty() { Err("a table without a CPU".to_owned()) } else { Ok(traced) }
    }
}

/// The figure in a cell; `None` where the tracer has no sample (`-`).
fn figure(name: &str, cell: &str, unit_ns: u64) -> Result<Option<(String, u64)>, String> {
    if cell == "-" {
        return Ok(None);
    }
    let number = cell.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ns));
    number
        .map(|nanos| Some((name.to_owned(), nanos)))
        .ok_or_else(|| format!("a cell {cell:?}, expected a number"))
}

/// `rtla osnoise top`: one cell for each column. Its columns behind `Max Single` differ between versions.
fn osnoise(text: &str) -> Result<Vec<Traced>, String> {
    const WANTED: [Wanted; 2] =
        [(&["Max", "Noise"], "max_noise_ns"), (&["Max", "Single"], "max_single_noise_ns")];
    let text = without_escapes(text);
    let table = last_table(&text)?;
    // The names have spaces in them, and are two spaces apart; before them stand `CPU Period`.
    let names = table.head.trim().split("  ").map(str::trim).filter(|name| !name.is_empty());
    let names: Vec<Vec<&str>> = names.map(|name| name.split_whitespace().collect()).skip(1).collect();
    let mut places = Vec::new();
    for (words, name) in WANTED {
        let at = names.iter().position(|found| found == words);
        places
            .push((at.ok_or_else(|| format!("no column {:?} in {:?}", words.join(" "), table.head))?, name));
    }
    table.rows(|row| {
        let cells: Vec<&str> = row.split_whitespace().collect();
        if cells.len() != names.len() {
            return Err(format!("a row of {} cells, expected {}", cells.len(), names.len()));
        }
        let found = places.iter().map(|&(at, name)| figure(name, cells[at], 1000));
        found.filter_map(Result::transpose).collect()
    })
}

/// `rtla timerlat top`: groups of columns between `|`, with titles above them. A group that is not known is left out: later versions have
/// more of them, as `Ret user` came with threads in user space.
fn timerlat(text: &str) -> Result<Vec<Traced>, String> {
    const GROUPS: [Wanted; 3] = [
        (&["IRQ"], "max_irq_latency_ns"),
        (&["Thread"], "max_thread_latency_ns"),
        (&["Ret", "user"], "max_user_latency_ns"),
    ];
    let text = without_escapes(text);
    let table = last_table(&text)?;
    let groups =
        |line: &'_ str| line.split('|').skip(1).map(str::trim).map(str::to_owned).collect::<Vec<_>>();
    let (titles, heads) = (groups(table.title), groups(table.head));
    if titles.is_empty() || titles.len() != heads.len() {
        return Err(format!(
            "{} titles for {} groups of columns: {:?}",
            titles.len(),
            heads.len(),
            table.title
        ));
    }
    let mut wanted = Vec::new();
    for (words, name) in GROUPS {
        let is = |title: &String| {
            title.split_whitespace().take_while(|&word| word != "Timer").eq(words.iter().copied())
        };
        let Some(at) = titles.iter().position(is) else { continue };
        let columns: Vec<&str> = heads[at].split_whitespace().collect();
        let max = columns.iter().position(|&column| column == "max");
        let max = max.ok_or_else(|| format!("no column max in {:?}", table.head))?;
        let unit_ns = match titles[at].split_whitespace().last() {
            Some("(us)") => 1000,
            Some("(ns)") => 1,
            _ => return Err(format!("no unit us or ns in {:?}", table.title)),
        };
        wanted.push((at, columns.len(), max, unit_ns, name));
    }
    if !GROUPS[..2].iter().all(|(_, name)| wanted.iter().any(|one| one.4 == *name)) {
        return Err(format!("no IRQ and Thread Timer Latency in {:?}", table.title));
    }
    table.rows(|row| {
        let cells = groups(row);
        if cells.len() != heads.len() {
            return Err(format!("a row of {} groups of cells, expected {}", cells.len(), heads.len()));
        }
        let found = wanted.iter().map(|&(at, columns, max, unit_ns, name)| {
            let cells: Vec<&str> = cells[at].split_whitespace().collect();
            if cells.len() != columns {
                return Err(format!("a group of {} cells, expected {columns}", cells.len()));
            }
            figure(name, cells[max], unit_ns)
        });
        found.filter_map(Result::transpose).collect()
    })
}

fn hwlat(text: &str) -> Result<Vec<Traced>, String> {
    let value = |name: &str| {
        text.lines()
            .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
            .ok_or_else(|| format!("no line {name:?}"))
    };
    let most = match value("Max Latency")? {
        "Below threshold" => 0,
        micros => {
            let digits = micros.trim_end_matches("us");
            digits.parse::<u64>().map_err(|_| format!("a latency {micros:?}"))? * 1000
        }
    };
    let count = value("Samples exceeding threshold")?;
    let count = count.parse::<u64>().map_err(|_| format!("a number of samples {count:?}"))?;
    let figures = vec![("max_latency_ns".to_owned(), most), ("samples_above_threshold".to_owned(), count)];
    Ok(vec![Traced { cpu: None, figures }])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(traced: &[Traced]) -> Vec<(Option<u32>, Vec<u64>)> {
        traced.iter().map(|one| (one.cpu, one.figures.iter().map(|figure| figure.1).collect())).collect()
    }

    /// The tables as rtla 6.1 draws them, twice over each other.
    #[test]
    fn tables_of_rtla_are_read() {
        let text = "                                          Operating System Noise\n\
            duration:   0 00:00:01 | time is in us\n\
            CPU Period       Runtime        Noise  % CPU Aval   Max Noise   Max Single          HW          NMI          IRQ      Softirq       Thread\n  \
              0 #1          1000000          117    99.98830          27           14            0            0          1022           45            6\n";
        let later = text.replace("27           14", "93           61")
            + "  1 #1          1000000            8    99.99920           5            4            0            0          1003            2            0\n";
        let found = Kind::Osnoise.read(&format!("{text}\x1b[H\n{later}\n")).unwrap();
        assert_eq!(figures(&found), [(Some(0), vec![93_000, 61_000]), (Some(1), vec![5_000, 4_000])]);
        // As the tool shows hardware noise only, and without the column.
        let hardware = later
            .replace("          IRQ      Softirq       Thread", "")
            .replace("          1022           45            6", "");
        let hardware = hardware.replace("          1003            2            0", "");
        assert_eq!(Kind::Osnoise.read(&hardware).unwrap(), found);
        let error = Kind::Osnoise.read(&later.replace("Max Single", "Most")).unwrap_err();
        assert!(error.contains("no column \"Max Single\""), "{error}");
        let error = Kind::Osnoise.read(&later.replace("           61 ", "")).unwrap_err();
        assert!(error.contains("a row of 9 cells, expected 10"), "{error}");
    }

    /// The head of rtla's timerlat table with these groups of columns, in this unit.
    fn timerlat(groups: &[&str], unit: &str, rows: &str) -> String {
        let title: String =
            groups.iter().map(|group| format!("|    {group} Timer Latency ({unit})   ")).collect();
        let head = " |      cur       min       avg       max".repeat(groups.len());
        format!("                 Timer Latency\n  0 00:00:05   {title}\nCPU COUNT     {head}\n{rows}")
    }

    /// Linux 5.17 to 6.4, those with threads in user space (6.5 and later, the default there), nanoseconds (`-n`), colours, a summary.
    #[test]
    fn tables_of_timerlat_are_read_by_their_head() {
        let read = |text: &str| Kind::Timerlat.read(text).map(|traced| figures(&traced));
        let (two, three) = (["IRQ", "Thread"], ["IRQ", "Thread", "Ret user"]);
        let rows = "  0 #4996      |        1         0         1         9 |        8         3         7        26\n  \
              1 #0         |        -         -         -         - |        -         -         -         -\n";
        assert_eq!(
            read(&timerlat(&two, "us", rows)),
            Ok(vec![(Some(0), vec![9_000, 26_000]), (Some(1), vec![])])
        );
        assert_eq!(read(&timerlat(&two, "ns", rows)).unwrap()[0], (Some(0), vec![9, 26]));
        let rows = "  0 #2000      |        1         0         1         9 |        8         3         7        26 |       10         4         9        31\n\
            127 #1234567890 |        1         0         1        12 |        8         3         7        27 |        -         -         -         -\n\
            ---------------|----------------------------------------|----------------------------------------|---------------------------------------\n\
            ALL #123456 e4 |                  0         1        12 |                  3         7        27 |                  4         9        31\n";
        let found = Ok(vec![(Some(0), vec![9_000, 26_000, 31_000]), (Some(127), vec![12_000, 27_000])]);
        assert_eq!(read(&timerlat(&three, "us", rows)), found);
        let coloured = timerlat(&three, "us", rows)
            .replace("CPU COUNT", "\x1b[2;30;47mCPU COUNT")
            .replace("max\n", "max\x1b[0;0;0m\n");
        assert_eq!(
            read(&format!(
                "{}\x1bc{coloured}",
                timerlat(&three, "us", "  0 #1 | 1 1 1 1 | 1 1 1 1 | 1 1 1 1\n")
            )),
            found
        );
        let names = Kind::Timerlat.read(&timerlat(&three, "us", rows)).unwrap();
        assert_eq!(names[0].figures[2].0, "max_user_latency_ns");
        // A group, and columns, that no version has yet.
        let later = timerlat(&["Softirq", "IRQ", "Thread"], "us", "  3 #7 | 5 5 5 5 | 1 2 3 4 9 | 1 2 3 5\n");
        let later = later.replacen(
            "max |      cur       min       avg       max |",
            "max | cur min avg max p99 |",
            1,
        );
        assert_eq!(read(&later), Ok(vec![(Some(3), vec![4_000, 5_000])]));
    }

    #[test]
    fn a_table_that_is_not_understood_is_an_error() {
        let table = |rows: &str| timerlat(&["IRQ", "Thread"], "us", rows);
        let good = "  0 #1 | 1 2 3 4 | 1 2 3 4\n";
        for (text, words) in [
            ("osnoise: no tracer\n".to_owned(), "no table"),
            ("CPU COUNT\n  0 #1 | 1 2 3 4\n".to_owned(), "0 titles for 0 groups"),
            (table(""), "without a CPU"),
            (table("  0 #1 | 1 2 3 4\n"), "a row of 1 groups of cells, expected 2"),
            (table("  0 #1 | 1 2 3 4 | 1 2\n"), "a group of 2 cells, expected 4"),
            (table("  0 #1 | 1 2 3 x | 1 2 3 4\n"), "a cell \"x\", expected a number"),
            (table("  0 #1 | 1 2 3 99999999999999999999 | 1 2 3 4\n"), "expected a number"),
            (table(good).replace("(us)", "(ms)"), "no unit us or ns"),
            (table(good).replace("max", "most"), "no column max"),
            (table(good).replace("IRQ", "Softirq"), "no IRQ and Thread"),
        ] {
            let error = Kind::Timerlat.read(&text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn hwlatdetect_is_read() {
        let quiet = "hwlatdetect:  test duration 10 seconds\n   detector: tracer\n   parameters:\n        Latency threshold: 10us\n\
            \x20       Sample window:     1000000us\n\nStarting test\ntest finished\nMax Latency: Below threshold\nSamples recorded: 0\n\
            Samples exceeding threshold: 0\n";
        assert_eq!(figures(&Kind::Hwlat.read(quiet).unwrap()), [(None, vec![0, 0])]);
        let loud = quiet.replace("Below threshold", "179us").replace("threshold: 0\n", "threshold: 3\n");
        assert_eq!(figures(&Kind::Hwlat.read(&loud).unwrap()), [(None, vec![179_000, 3])]);
        assert!(Kind::Hwlat.read("test finished\n").unwrap_err().contains("Max Latency"));
        let odd = quiet.replace("Below threshold", "soon");
        assert!(Kind::Hwlat.read(&odd).unwrap_err().contains("soon"));
    }

    proptest::proptest! {
        /// Whatever a program writes becomes figures or an error.
        #[test]
        fn any_text_is_read_or_refused(
            lines in proptest::collection::vec("(CPU|  [0-9]{1,3} #[0-9]+)?( {1,3}(\\||max|IRQ|Thread|Timer|\\(us\\)|Max Noise|Max Single|-|[0-9]{1,20}|\x1b\\[1m)){0,12}", 0..8),
        ) {
            for kind in Kind::ALL {
                let _ = kind.read(&lines.join("\n"));
            }
        }
    }
}
