//! Running the binary.

use assert_cmd::Command;

/// The binary, without arguments.
pub fn setwise() -> Command {
    Command::cargo_bin("setwise").unwrap()
}

/// Runs with arguments; returns the exit code, standard output and standard error.
pub fn run<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> (i32, String, String) {
    let out = setwise().args(args).output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
}

/// Runs with arguments that must fail with exit code 2; returns standard error.
pub fn refused<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let (code, out, error) = run(args);
    assert_eq!((code, out.as_str()), (2, ""), "{error}");
    assert!(!error.contains("panicked"), "{error}");
    error
}
