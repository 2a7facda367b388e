//! The compiled command: what scripts see of it.

use std::process::{Command, Output, Stdio};

fn tidegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    for variable in ["TIDEGATE_SOCKET", "TIDEGATE_CONFIG", "TIDEGATE_LOG"] {
        command.env_remove(variable);
    }
    command
}

fn run(args: &[&str]) -> Output {
    tidegate().args(args).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn usage_errors_end_with_2_and_leave_standard_output_alone() {
    for args in [
        &[][..],
        &["frobnicate"],
        &["status", "--output", "xml"],
        &["status", "one", "two"],
        &["status", "not/a/name"],
        &["run"],
        &["validate"],
        &["decap"],
        &["decap", "--interface", "eth0", "--status", "--detach"],
        &["run", "--config", "x", "--log-format", "yaml"],
        &["version", "--verbose"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{args:?}");
        assert!(stderr(&output).contains("--help"), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn the_version_is_the_packages() {
    let version = env!("CARGO_PKG_VERSION");
    for args in [&["version"][..], &["--version"]] {
        let output = run(args);
        assert_eq!((stdout(&output), output.status.code()), (&*format!("tidegate {version}\n"), Some(0)));
    }
    let output = run(&["version", "--output", "json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["version"], version);
    assert_eq!(value["architecture"], std::env::consts::ARCH);
}

#[test]
fn help_fits_100_columns_and_names_exit_codes() {
    for args in [
        &["--help"][..],
        &["run", "--help"],
        &["validate", "--help"],
        &["status", "--help"],
        &["detach", "--help"],
        &["decap", "--help"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        let help = stdout(&output);
        assert!(help.contains("Exit codes:"), "{args:?}: {help}");
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "{args:?}: {line}");
        }
    }
}

#[test]
fn no_daemon_ends_with_4() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none.sock");
    let by_option = tidegate().arg("status").arg("--socket").arg(&socket).output().unwrap();
    let by_environment = tidegate().arg("status").env("TIDEGATE_SOCKET", &socket).output().unwrap();
    for output in [by_option, by_environment] {
        assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
        assert!(stderr(&output).starts_with("tidegate: there is no socket "), "{}", stderr(&output));
        assert!(stderr(&output).contains(socket.to_str().unwrap()), "{}", stderr(&output));
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = tidegate().arg("version").stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = tidegate().arg("version").stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot write to standard output"), "{}", stderr(&output));
}
