//! CUDA kernels without a GPU: their source is compiled as C++, with threads as fibers and inline assembly replaced by
//! equivalent code (`kernels/cuda_fibers.h`). Results are compared with a double precision reference.
//!
//! Whether a GPU's instructions behave as assumed is tested by `setwise selftest --device cuda`.

#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Source without the functions that contain assembly.
fn without_assembly(source: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let mut function = vec![line];
        if line.starts_with("__device__") || (line.starts_with("template") && line.contains("__device__")) {
            let mut depth = braces(line);
            while depth > 0 || !function.iter().any(|l| l.contains('{')) {
                let next = lines.next().expect("functions end");
                depth += braces(next);
                function.push(next);
            }
            if function.iter().any(|l| l.contains("asm(") || l.contains("asm volatile(")) {
                kept.pop_if(|above| above.starts_with("template"));
                continue;
            }
        }
        kept.extend(function);
    }
    kept.into_iter().map(with_shared_memory).collect()
}

/// A line with its end. Dynamic shared memory is that of the running block.
fn with_shared_memory(line: &str) -> String {
    let declared =
        line.trim().strip_prefix("extern __shared__ __align__(16) float ").and_then(|l| l.strip_suffix("[];"));
    declared.map_or_else(|| format!("{line}\n"), |name| format!("float* {name} = ::shared;\n"))
}

fn braces(line: &str) -> i32 {
    line.chars().map(|c| i32::from(c == '{') - i32::from(c == '}')).sum()
}

/// Compiles a test with the kernels it covers, and runs it. Without a C++ compiler the test is skipped.
fn run(test: &str, kernels: &[&str]) {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    if Command::new(&compiler).arg("--version").output().is_err() {
        eprintln!("{compiler} was not found; the kernels are not tested");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    std::fs::create_dir_all(&folder).unwrap();
    let sources =
        kernels.iter().map(|k| std::fs::read_to_string(root.join(format!("src/cuda/kernels/{k}.cu"))).unwrap());
    let source: Vec<String> = sources.map(|s| without_assembly(&s)).collect();
    std::fs::write(folder.join("kernels.inc"), source.join("\n")).unwrap();
    let program = folder.join("test");
    let compiled = Command::new(&compiler)
        .args(["-std=c++17", "-O2", "-w", "-I"])
        .arg(&folder)
        .arg(root.join(format!("tests/kernels/{test}.cpp")))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new(&program).output().unwrap();
    let output = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{output}");
}

#[test]
fn attention_and_its_gradients_match_a_double_precision_reference() {
    run("attention", &["common", "attention", "clusters", "attention_single_block"]);
}

#[test]
fn row_kernels_match_a_double_precision_reference() {
    run("row_kernel", &["common", "row_kernel"]);
}

#[test]
fn layer_norm_and_its_gradients_match_a_double_precision_reference() {
    run("layer_norm", &["common", "layer_norm"]);
}

#[test]
fn the_epilogue_of_linear_maps_matches_a_double_precision_reference() {
    run("epilogue", &["common", "linear_tasks", "epilogue"]);
}
