//! The order of modules: no module imports one above it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::shell::{Outcome, root};

/// The modules of a crate from the bottom to the top. A module imports those before it alone.
const LAYERS: &[(&str, &[&str])] = &[
    (
        "setwise",
        &[
            "error",
            "device",
            "random",
            "linalg",
            "distributions",
            "sets",
            "files",
            "nn",
            "models",
            "data",
            "train",
            "estimate",
            "two_sample",
        ],
    ),
    (
        "setwise-lab",
        &[
            "error",
            "prefetch",
            "import",
            "samplers",
            "datasets",
            "embed",
            "experiment",
            "run",
            "estimator",
            "selftest",
            "reproduce",
        ],
    ),
];

/// Checks every crate that has layers.
pub fn check() -> Outcome {
    let mut wrong = Vec::new();
    for (name, layers) in LAYERS {
        let source = root().join("crates").join(name).join("src");
        let modules = modules(&source)?;
        if let Some(module) = modules.iter().find(|m| !layers.contains(&m.as_str())) {
            wrong.push(format!("{name}: module {module:?} has no place in the order; xtask/src/layers.rs lists them"));
        }
        for (place, module) in layers.iter().enumerate() {
            for file in files(&source, module) {
                let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
                for import in imports(&text) {
                    if layers.iter().position(|l| *l == import).is_some_and(|other| other > place) {
                        let file = file.strip_prefix(root()).unwrap_or(&file).display();
                        wrong.push(format!("{file}: {module} imports {import}, which is above it"));
                    }
                }
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// The names of a crate's modules, from its folder.
fn modules(source: &Path) -> Result<BTreeSet<String>, String> {
    let entries = std::fs::read_dir(source).map_err(|e| format!("{}: {e}", source.display()))?;
    let names = entries.filter_map(|e| Some(e.ok()?.path().file_stem()?.to_str()?.to_owned()));
    Ok(names.filter(|name| !["lib", "main"].contains(&name.as_str())).collect())
}

/// All files of a module.
fn files(source: &Path, module: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![source.join(module)];
    while let Some(folder) = open.pop() {
        for path in std::fs::read_dir(&folder).into_iter().flatten().filter_map(|e| Some(e.ok()?.path())) {
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    let single = source.join(format!("{module}.rs"));
    found.extend(single.is_file().then_some(single));
    found
}

/// Modules that a file names as `crate::module`, tests and comments aside.
fn imports(text: &str) -> BTreeSet<&str> {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let named = lines.flat_map(|line| line.match_indices("crate::").map(move |(i, m)| &line[i + m.len()..]));
    named
        .filter_map(|rest| {
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
            (end > 0).then(|| &rest[..end])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_of_code_count_and_those_of_tests_and_comments_do_not() {
        let text = "use crate::a::B;\n// crate::c::D\nfn f() { crate::e::g() }\n#[cfg(test)]\nmod tests {\n use crate::h::I;\n}\n";
        assert_eq!(imports(text), BTreeSet::from(["a", "e"]));
    }

    #[test]
    fn the_order_holds() {
        check().unwrap();
    }
}
