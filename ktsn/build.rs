// SPDX-License-Identifier: Apache-2.0
//! Lists the Helm chart's files, so that `ktsn k8s` has all of them inside. In: k8s/deploy/helm/ktsn. Out: `chart_files.rs`.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn files(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { files(&path, found)? } else { found.push(path) }
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../k8s/deploy/helm/ktsn").canonicalize()?;
    let mut found = Vec::new();
    files(&chart, &mut found)?;
    found.sort();
    let mut text = String::from("&[\n");
    for path in &found {
        let name = path.strip_prefix(&chart).map_err(io::Error::other)?;
        text.push_str(&format!(
            "    ({:?}, include_str!({:?})),\n",
            name.display().to_string(),
            path.display().to_string()
        ));
    }
    text.push_str("]\n");
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo sets no OUT_DIR"))?;
    fs::write(Path::new(&out).join("chart_files.rs"), text)
}
