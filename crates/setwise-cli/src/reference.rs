//! The reference page of all commands, generated from their definitions.

use std::fmt::Write;
use std::path::PathBuf;

use clap::{Arg, Command, CommandFactory};

use crate::Cli;

/// The Markdown text of the page.
fn page() -> String {
    let mut cli = Cli::command();
    cli.build();
    let mut text = String::from(
        "# Commands\n\n`setwise COMMAND -h` prints a summary, `--help` prints more. Every command takes `--threads N`.\n\
         Exit codes are 0 for success, 2 for bad usage or input, 130 for an interrupt, 1 for anything else.\n",
    );
    for command in cli.get_subcommands().filter(|c| c.get_name() != "help") {
        section(command, "##", &mut text);
        for nested in command.get_subcommands().filter(|c| c.get_name() != "help") {
            section(nested, "###", &mut text);
        }
    }
    text
}

fn section(command: &Command, level: &str, text: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    // The page is the same for all builds.
    let about = about.split(" (not in this build").next().unwrap_or_default();
    let _ = write!(text, "\n{level} {name}\n\n{about}.\n\n", about = about.trim_end_matches('.'));
    let usage = command.clone().render_usage().to_string();
    let _ = write!(text, "```text\n{}\n```\n", usage.trim_start_matches("Usage: ").trim());
    let arguments: Vec<&Arg> = command
        .get_arguments()
        .filter(|a| !a.is_hide_set() && !["help", "threads", "version"].contains(&a.get_id().as_str()))
        .collect();
    if !arguments.is_empty() {
        text.push_str("\n| argument | meaning |\n| --- | --- |\n");
        arguments.iter().for_each(|a| row(a, text));
    }
}

fn row(argument: &Arg, text: &mut String) {
    let value = argument.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
    let takes_value = argument.get_action().takes_values();
    let name = match (argument.get_short(), argument.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (None, Some(long)) => format!("--{long}"),
        _ => value.clone(),
    };
    let name = if takes_value && argument.get_long().is_some() { format!("{name} {value}") } else { name };
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut about = help.split_whitespace().collect::<Vec<_>>().join(" ");
    if !about.ends_with(['.', ']']) {
        about.push('.');
    }
    if takes_value {
        let values: Vec<String> = argument
            .get_possible_values()
            .iter()
            .filter(|v| !v.is_hide_set())
            .map(|v| match v.get_help() {
                Some(help) => format!("`{}` ({help})", v.get_name()),
                None => format!("`{}`", v.get_name()),
            })
            .collect();
        if !values.is_empty() {
            let _ = write!(about, " Values: {}.", values.join(", "));
        }
        let defaults: Vec<String> =
            argument.get_default_values().iter().map(|v| format!("`{}`", v.to_string_lossy())).collect();
        if !defaults.is_empty() {
            let _ = write!(about, " Default: {}.", defaults.join(", "));
        }
    }
    let _ = writeln!(text, "| `{name}` | {} |", about.replace('|', "\\|"));
}

#[test]
fn the_reference_page_matches_the_commands() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/commands.md");
    if std::env::var_os("SETWISE_WRITE_REFERENCE").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page(), "docs/reference/commands.md is stale; `cargo xtask write-reference` writes it");
}

#[test]
fn the_help_of_every_command_fits_a_screen_and_the_long_help_two() {
    let mut cli = Cli::command();
    cli.build();
    let commands = cli.get_subcommands().flat_map(|c| c.get_subcommands().chain([c]));
    let commands: Vec<Command> = commands.chain([&cli]).cloned().collect();
    for mut command in commands {
        let name = command.get_bin_name().unwrap_or_default().to_owned();
        let short = command.render_help().to_string();
        assert!(short.lines().count() <= 36, "{name} -h has {} lines", short.lines().count());
        let long = command.render_long_help().to_string();
        assert!(long.lines().count() <= 80, "{name} --help has {} lines", long.lines().count());
        let widest = short.lines().map(|l| l.chars().count()).max().unwrap_or(0);
        assert!(widest <= 100, "{name} -h has a line of {widest} columns");
    }
}
