//! Reference pages made from the code: every TOML key with the documentation of its field.

use std::fmt::Write;
use std::path::PathBuf;

use crate::shell::{Outcome, read, root, rust_files};

/// A page: its file under `docs/reference`, its title and introduction, and its tables: heading, item, crate.
struct Page {
    file: &'static str,
    title: &'static str,
    about: &'static str,
    tables: &'static [(&'static str, &'static str, &'static str)],
}

const PAGES: &[Page] = &[
    Page {
        file: "experiment.md",
        title: "Experiment files",
        about: "An experiment is a TOML file. `setwise train` runs it; unknown keys are errors. Ranges are written \
                `[min, max]` or as one number.",
        tables: &[
            ("Top level", "Experiment", "setwise-lab"),
            ("`[task]` with `kind = \"kl\"`", "KlTask", "setwise-lab"),
            ("`[task]` with `kind = \"mi\"`", "MiTask", "setwise-lab"),
            ("`[task]` with `kind = \"broad-kl\"`", "BroadKlTask", "setwise-lab"),
            ("`[task]` with `kind = \"distinguish\"`", "DistinguishTask", "setwise-lab"),
            ("`[task]` with `kind = \"align-words\"`", "AlignWordsTask", "setwise-lab"),
            ("`[task]` with `kind = \"align-captions\"`", "AlignCaptionsTask", "setwise-lab"),
            ("`[task]` with `kind = \"count\"`", "CountTask", "setwise-lab"),
            ("`[task]` with `kind = \"distinguish-images\"`", "DistinguishImagesTask", "setwise-lab"),
            ("`data`", "DataSet", "setwise-lab"),
            ("`label`", "Label", "setwise-lab"),
            ("`scale`", "Scale", "setwise"),
            ("`axes`", "Axes", "setwise"),
            ("`append`", "Appended", "setwise"),
            ("`[task.mixture]`", "MixtureLaw", "setwise"),
            ("`lkj` of a mixture", "Lkj", "setwise"),
            ("`mixture` of a phase", "MixtureLawOverrides", "setwise"),
            ("`[training]`", "Training", "setwise"),
            ("`training.loss`", "LossConfig", "setwise"),
            ("`training.optimizer`", "Optimizer", "setwise"),
            ("`training.schedule`", "Schedule", "setwise"),
            ("`[[curriculum]]`", "Phase", "setwise-lab"),
            ("`[pretraining]`", "Pretraining", "setwise-lab"),
            ("`[run]`", "RunSettings", "setwise-lab"),
            ("`[combiner]`", "Combiner", "setwise-lab"),
            ("`[combiner.many-rows]`", "ManyRows", "setwise-lab"),
        ],
    },
    Page {
        file: "model-config.md",
        title: "Model config",
        about: "`[model]` of an experiment names a `preset` and any key below; `setwise models --config PRESET` prints \
                the keys of a preset. `ModelConfig` in Rust and `Model.create` in Python have the same fields.",
        tables: &[
            ("Keys", "ModelConfig", "setwise"),
            ("`encoder`", "Encoder", "setwise"),
            ("`relations`", "Relations", "setwise"),
            ("`merge`", "Merge", "setwise"),
            ("`sharing`", "Sharing", "setwise"),
            ("`pooling`", "Pooling", "setwise"),
            ("`relation-pool`", "RelationPool", "setwise"),
            ("`attention-scale`", "AttentionScale", "setwise"),
            ("`output`", "OutputKind", "setwise"),
            ("`[model.images]`", "Images", "setwise"),
            ("`images.encoder`", "ImageEncoder", "setwise"),
        ],
    },
];

/// Fails where a page differs from the code.
pub fn check() -> Outcome {
    for page in PAGES {
        let path = page.path();
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        if there != page.text()? {
            return Err(format!("docs/reference/{} is stale; `cargo xtask write-reference` writes it", page.file));
        }
    }
    Ok(())
}

/// Writes all pages.
pub fn write() -> Outcome {
    for page in PAGES {
        std::fs::write(page.path(), page.text()?).map_err(|e| format!("{}: {e}", page.file))?;
    }
    Ok(())
}

impl Page {
    fn path(&self) -> PathBuf {
        root().join("docs/reference").join(self.file)
    }

    fn text(&self) -> Result<String, String> {
        let mut text = format!("# {}\n\n{}\n", self.title, wrapped(self.about));
        for (heading, item, package) in self.tables {
            let item = Item::find(item, package)?;
            let _ = write!(text, "\n## {heading}\n\n");
            if !item.about.is_empty() && !item.about.starts_with("See ") {
                let _ = write!(text, "{}\n\n", wrapped(&item.about));
            }
            text.push_str(&item.table());
        }
        Ok(text)
    }
}

/// Text in lines of at most 100 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if !lines[last].is_empty() && lines[last].chars().count() + 1 + word.chars().count() > 100 {
            lines.push(word.to_owned());
        } else {
            let space = if lines[last].is_empty() { "" } else { " " };
            let _ = write!(lines[last], "{space}{word}");
        }
    }
    lines.join("\n")
}

/// A struct or an enum of settings.
struct Item {
    about: String,
    is_enum: bool,
    /// Name, type and documentation of every field or variant, and whether it may be left out.
    entries: Vec<(String, String, String, bool)>,
}

impl Item {
    /// Reads an item from the source of a crate.
    fn find(name: &str, package: &str) -> Result<Self, String> {
        let starts = ["pub struct", "pub enum", "enum"].map(|kind| format!("{kind} {name} {{"));
        // Choices of the model config are written by a macro: `choice! { /// … Name { … } }`.
        let in_macro = format!("    {name} {{");
        for file in rust_files(&root().join("crates").join(package).join("src")) {
            let text = read(&file)?;
            let lines: Vec<&str> = text.lines().collect();
            let chosen = |at: usize| lines[..at].iter().rev().find(|l| !is_doc(l)).is_some_and(|l| *l == "choice! {");
            let found = (0..lines.len())
                .find(|&at| starts.iter().any(|s| lines[at] == s) || (lines[at] == in_macro && chosen(at)));
            if let Some(at) = found {
                return Ok(Self::parse(&lines, at));
            }
        }
        Err(format!("{package} has no struct or enum {name}"))
    }

    fn parse(lines: &[&str], at: usize) -> Self {
        let indent = lines[at].len() - lines[at].trim_start().len();
        let end = (at + 1..lines.len()).find(|&i| lines[i].trim_end() == format!("{}}}", " ".repeat(indent)));
        let above: Vec<&str> = lines[..at].iter().rev().take_while(|l| is_attribute(l) || is_doc(l)).copied().collect();
        let optional = above.iter().any(|l| l.contains("serde(") && l.contains("default"));
        let about = above.iter().rev().filter(|l| is_doc(l)).map(|l| doc(l)).take_while(|l| !l.is_empty());
        let about = about.collect::<Vec<_>>().join(" ");
        let is_enum = !lines[at].contains("struct");
        let mut entries: Vec<(String, String, String, bool)> = Vec::new();
        let (mut docs, mut attributes) = (Vec::new(), String::new());
        let mut depth = 0;
        for line in &lines[at + 1..end.unwrap_or(lines.len())] {
            let plain = line.trim();
            // The fields of a variant are a level deeper.
            let is_listed = depth <= usize::from(is_enum);
            if is_listed && is_doc(line) {
                docs.push(doc(line));
            } else if is_listed && is_attribute(line) {
                attributes.push_str(plain);
            } else if is_listed && depth == 1 && plain.contains(": ") {
                let name = key_of(plain.split(": ").next().unwrap_or(plain), &attributes);
                if let Some((_, _, text, _)) = entries.last_mut() {
                    let _ = write!(text, " `{name}`: {}", links_removed(&docs.join(" ")));
                }
                docs.clear();
                attributes.clear();
            } else if depth == 0 && !plain.is_empty() {
                let field = plain.trim_start_matches("pub ").trim_end_matches([',', '{', ' ']);
                let (name, kind) =
                    field.split_once(": ").unwrap_or((field.split([' ', '(']).next().unwrap_or(field), ""));
                let key = key_of(name, &attributes);
                let may_lack = optional || attributes.contains("default") || kind.starts_with("Option<");
                let text = docs.join(" ");
                entries.push((key, kind.trim_end_matches(',').to_owned(), links_removed(&text), may_lack));
                docs.clear();
                attributes.clear();
            }
            depth += plain.matches('{').count();
            depth -= plain.matches('}').count().min(depth);
        }
        Item { about: links_removed(&about), is_enum, entries }
    }

    fn table(&self) -> String {
        let mut text = String::from(match self.is_enum {
            true => "| value | meaning |\n| --- | --- |\n",
            false => "| key | type | required | meaning |\n| --- | --- | --- | --- |\n",
        });
        for (key, kind, about, optional) in &self.entries {
            let _ = match self.is_enum {
                true => writeln!(text, "| `{key}` | {about} |"),
                false => {
                    let required = if *optional { "" } else { "yes" };
                    writeln!(text, "| `{key}` | {} | {required} | {about} |", readable(kind))
                }
            };
        }
        text
    }
}

fn is_doc(line: &str) -> bool {
    line.trim_start().starts_with("///")
}

fn is_attribute(line: &str) -> bool {
    line.trim_start().starts_with("#[")
}

fn doc(line: &str) -> String {
    line.trim_start().trim_start_matches("///").trim().to_owned()
}

/// `snake_case` or `CamelCase` as `kebab-case`.
fn kebab(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.extend(if c == '_' { '-' } else { c }.to_lowercase());
    }
    out
}

/// The key of a field or variant: its name in kebab case, unless an attribute renames it.
fn key_of(name: &str, attributes: &str) -> String {
    let renamed = attributes.split("rename = \"").nth(1).and_then(|r| r.split('"').next());
    renamed.map_or_else(|| kebab(name), str::to_owned)
}

/// A Rust type in words.
fn readable(kind: &str) -> String {
    let inner = kind.strip_prefix("Option<").and_then(|k| k.strip_suffix('>')).unwrap_or(kind);
    match inner {
        "u64" | "usize" => "integer".to_owned(),
        "f64" | "f32" => "number".to_owned(),
        "bool" => "true or false".to_owned(),
        "String" => "text".to_owned(),
        "IntRange" => "range".to_owned(),
        "[f64; 2]" => "two numbers".to_owned(),
        "Vec<usize>" | "[usize; 2]" => "list of integers".to_owned(),
        "toml::Table" => "table".to_owned(),
        other => match other.strip_prefix("Vec<").and_then(|o| o.strip_suffix('>')) {
            Some(one) => format!("list of {}", readable(one)),
            None => format!("`{}`", kebab(other)),
        },
    }
}

/// Rustdoc links as plain text.
fn links_removed(text: &str) -> String {
    let mut out = text.replace("[`", "`").replace("`]", "`");
    while let Some(start) = out.find("`(") {
        let Some(end) = out[start..].find(')') else { break };
        out.replace_range(start + 1..=start + end, "");
    }
    out.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_keys() {
        assert_eq!((kebab("set_size"), kebab("ConcatRelu")), ("set-size".to_owned(), "concat-relu".to_owned()));
    }

    #[test]
    fn every_page_can_be_made_and_documents_every_key_and_type() {
        /// Types of keys whose tables have another item: `[task]` by its kind, and the list of `append`.
        const ALIASES: &[&str] = &["Task", "Append"];
        let documented: Vec<&str> = PAGES.iter().flat_map(|p| p.tables).map(|(_, name, _)| *name).collect();
        for page in PAGES {
            for (_, name, package) in page.tables {
                let item = Item::find(name, package).unwrap();
                assert!(!item.entries.is_empty(), "{name} has no entries");
                for (key, kind, about, _) in &item.entries {
                    assert!(!about.trim().is_empty(), "{name}: {key} has no documentation");
                    let kind = kind.trim_start_matches("Option<").trim_start_matches("Vec<").trim_end_matches('>');
                    let is_listed = item.is_enum || documented.contains(&kind) || ALIASES.contains(&kind);
                    assert!(
                        is_listed || !readable(kind).starts_with('`'),
                        "{name}: {key} has type {kind}, which no page lists"
                    );
                }
            }
        }
    }
}
