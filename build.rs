//! Compiles `bpf/lb.bpf.c` and generates the Rust skeleton for it.
//!
//! Environment: `BPF_CLANG` (else `CLANG`, else `clang`) names the compiler; clang 14 or later is needed.

use std::{env, error::Error, path::PathBuf, process::Command};

use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "bpf/lb.bpf.c";
/// BPF bytecode produced with this instruction set loads on every kernel we support, whatever clang's default is.
const INSTRUCTION_SET: &str = "-mcpu=v3";
const OLDEST_CLANG: u32 = 14;

fn main() -> Result<(), Box<dyn Error>> {
    for input in ["bpf", "include", "vmlinux"] {
        println!("cargo::rerun-if-changed={input}");
    }
    for variable in ["BPF_CLANG", "CLANG"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let clang = env::var("BPF_CLANG").or_else(|_| env::var("CLANG")).unwrap_or_else(|_| "clang".into());
    check_clang(&clang)?;

    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let include = |folder: &str| format!("-I{}", root.join(folder).display());
    let skeleton = PathBuf::from(env::var("OUT_DIR")?).join("lb.skel.rs");
    SkeletonBuilder::new()
        .source(SOURCE)
        .clang(&clang)
        .clang_args([
            include("vmlinux"),
            include("include"),
            INSTRUCTION_SET.into(),
            "-Wall".into(),
            "-Wextra".into(),
            "-Werror".into(),
        ])
        .build_and_generate(&skeleton)
        .map_err(|error| format!("cannot compile {SOURCE} with {clang}: {error:#}"))?;
    Ok(())
}

/// Fails with a remedy where `clang` is missing or too old, before its own errors confuse anybody.
fn check_clang(clang: &str) -> Result<(), Box<dyn Error>> {
    let output = Command::new(clang).arg("--version").output().map_err(|error| {
        format!("cannot run {clang}: {error}; install clang (scripts/setup does), or name one in BPF_CLANG")
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let major = text
        .split("clang version ")
        .nth(1)
        .and_then(|rest| rest.split('.').next())
        .and_then(|major| major.parse::<u32>().ok());
    match major {
        Some(major) if major < OLDEST_CLANG => {
            Err(format!("{clang} is version {major}; version {OLDEST_CLANG} or later is needed").into())
        }
        _ => Ok(()),
    }
}
