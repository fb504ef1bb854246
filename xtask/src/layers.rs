//! The order of modules: no module imports one above it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::shell::{Outcome, read, root, rust_files};

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
            "ranks",
            "sets",
            "files",
            "nn",
            "models",
            "data",
            "train",
            "estimate",
            "permutation_test",
            "compare",
        ],
    ),
    (
        "setwise-table",
        &[
            "error",
            "wording",
            "zip",
            "table",
            "times",
            "period",
            "numpy",
            "source",
            "choice",
            "types",
            "pairing",
            "stack",
            "profile",
            "json",
            "delimited",
            "arrow",
            "read",
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
            "speed",
            "estimator",
            "selftest",
            "grid",
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
        let root_text = read(&source.join("lib.rs"))?;
        let reexports = reexports(&root_text);
        if let Some(module) = modules.iter().find(|m| !layers.contains(&m.as_str())) {
            wrong.push(format!("{name}: module {module:?} has no place in the order; xtask/src/layers.rs lists them"));
        }
        for (place, module) in layers.iter().enumerate() {
            for file in files(&source, module) {
                let text = read(&file)?;
                for name in imports(&text) {
                    let import = *reexports.get(name).unwrap_or(&name);
                    if layers.iter().position(|l| *l == import).is_some_and(|other| other > place) {
                        wrong.push(format!("{}: {module} imports {import}, which is above it", relative(&file)));
                    }
                }
                let top = file.parent() == Some(&source) || file == source.join(module).join("mod.rs");
                if top && code(&text).contains("super::") {
                    wrong.push(format!("{}: `super::` hides an import of the crate; write `crate::`", relative(&file)));
                }
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// The module of each name that `lib.rs` re-exports.
fn reexports(text: &str) -> BTreeMap<&str, &str> {
    let uses = text.lines().filter_map(|line| line.strip_prefix("pub use ")?.strip_suffix(';')?.split_once("::"));
    uses.flat_map(|(module, list)| list.trim_matches(['{', '}']).split(", ").map(move |name| (name, module))).collect()
}

/// A file's path from the root of the repository.
fn relative(file: &Path) -> String {
    file.strip_prefix(root()).unwrap_or(file).display().to_string()
}

/// The names of a crate's modules, from its folder.
fn modules(source: &Path) -> Result<BTreeSet<String>, String> {
    let entries = std::fs::read_dir(source).map_err(|e| format!("{}: {e}", source.display()))?;
    let names = entries.filter_map(|e| Some(e.ok()?.path().file_stem()?.to_str()?.to_owned()));
    Ok(names.filter(|name| !["lib", "main"].contains(&name.as_str())).collect())
}

/// All files of a module.
fn files(source: &Path, module: &str) -> Vec<PathBuf> {
    let mut found = rust_files(&source.join(module));
    let single = source.join(format!("{module}.rs"));
    found.extend(single.is_file().then_some(single));
    found
}

/// Modules that a file names as `crate::module` or in `crate::{…}`, tests and comments aside.
fn imports(text: &str) -> BTreeSet<&str> {
    let code = code(text);
    let in_comment = |at: usize| code[..at].rsplit('\n').next().is_some_and(|line| line.contains("//"));
    let mut found = BTreeSet::new();
    for (at, prefix) in code.match_indices("crate::").filter(|(at, _)| !in_comment(*at)) {
        let path = &code[at + prefix.len()..];
        match path.strip_prefix('{') {
            Some(list) => found.extend(heads(list)),
            None => found.extend(head(path)),
        }
    }
    found
}

/// A file without its tests.
fn code(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or(text)
}

/// The first names of the paths in a list that ends with its closing brace.
fn heads(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (i, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            ',' if depth == 0 => {
                found.extend(head(list[start..i].trim()));
                start = i + 1;
            }
            '}' if depth == 0 => {
                found.extend(head(list[start..i].trim()));
                break;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    found
}

/// The name that a path begins with.
fn head(path: &str) -> Option<&str> {
    let end = path.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(path.len());
    (end > 0).then(|| &path[..end])
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
    fn imports_in_braces_count() {
        let text = "use crate::{\n    a::{B, c::D},\n    e,\n};\nuse crate::{f, g::H};\n";
        assert_eq!(imports(text), BTreeSet::from(["a", "e", "f", "g"]));
    }

    #[test]
    fn names_of_the_root_stand_for_their_module() {
        let text = "pub use a::B;\npub use c::{D, E};\n";
        assert_eq!(reexports(text), BTreeMap::from([("B", "a"), ("D", "c"), ("E", "c")]));
    }

    #[test]
    fn the_order_holds() {
        check().unwrap();
    }
}
