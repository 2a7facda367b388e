//! The command line: every verb and option, with its help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::exit;
use crate::{
    datapath::DEFAULT_PINS,
    model::{AttachMode, DEFAULT_SOCKET, GUE_PORT, ServiceName},
    telemetry::LogFormat,
};

/// tidegate: a layer-4 load balancer that forwards inside the kernel, at XDP
#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    after_help = exit::HELP,
    arg_required_else_help = true,
    subcommand_required = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon: load or adopt the programs, attach them, keep them programmed
    ///
    /// Stays in the foreground and logs to standard error. SIGHUP reads the configuration again: what is invalid is
    /// refused whole, and what ran goes on. SIGTERM and SIGINT end the daemon; forwarding goes on without it, from
    /// what is pinned, until `tidegate detach`.
    #[command(after_help = RUN_HELP)]
    Run(RunArgs),

    /// Check a configuration file without touching anything
    ///
    /// Reads the file as `run` would and prints every error with its line, or one line if there is none. Needs no
    /// privileges and no running daemon.
    #[command(after_help = exit::HELP)]
    Validate(ValidateArgs),

    /// Show whether it forwards, what is wrong, and every service
    ///
    /// Asks the running daemon. With the name of a service, shows that service and its backends instead.
    #[command(after_help = STATUS_HELP)]
    Status(StatusArgs),

    /// Stop forwarding: detach the programs and remove everything that is pinned
    ///
    /// Established connections through this node break. Stop the daemon first (`systemctl stop tidegate`).
    #[command(after_help = exit::HELP)]
    Detach(DetachArgs),

    /// Take tunnel headers off on a backend (the receiving end of modes ipip, gre and gue)
    ///
    /// Attaches a small XDP program to the interface that packets from the load balancer arrive on. It takes the outer
    /// header off packets sent to this host in IP-in-IP, GRE or GUE, if the inner destination is this host's too, and passes
    /// everything else untouched. The program is pinned and stays when the command ends.
    #[command(after_help = DECAP_HELP)]
    Decap(DecapArgs),

    /// Print the version
    Version(VersionArgs),
}

const RUN_HELP: &str = "\
Environment:
  TIDEGATE_LOG  what is logged: a level (error, warn, info, debug, trace) or target=level, separated
                by commas, such as info,tidegate::health=debug

Exit codes:
  0  ended by a signal
  1  failed; the log says why
  2  the command line makes no sense
  3  the configuration is invalid; nothing was changed
  6  an interface or the pins belong to somebody else; nothing was changed";

const STATUS_HELP: &str = "\
Exit codes:
  0  the daemon is ready and nothing is wrong; with SERVICE: every backend is up
  1  failed, or there is no such service
  2  the command line makes no sense
  4  no daemon answers on the socket
  5  not ready, or something is wrong; with SERVICE: a backend is down, or there is none

The codes are the same for both kinds of output.";

const DECAP_HELP: &str = "\
Examples:
  tidegate decap --interface eth0            attach, and leave it attached
  tidegate decap --interface eth0 --status   show the counters
  tidegate decap --interface eth0 --detach   take it away

Exit codes:
  0  done
  1  failed; standard error says why
  2  the command line makes no sense
  5  with --status: the program is not attached to the interface
  6  the interface or the pins belong to somebody else; nothing was changed";

/// Options of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Configuration file in YAML
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    pub config: PathBuf,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub pins: PinsArgs,

    /// How log lines are written to standard error
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub log_format: LogFormat,
}

/// Options of `validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// Configuration file in YAML
    #[arg(value_name = "FILE", env = "TIDEGATE_CONFIG")]
    pub file: PathBuf,
}

/// Options of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Show this service and its backends only
    #[arg(value_name = "SERVICE")]
    pub service: Option<ServiceName>,

    /// Text for people, or the API's JSON unchanged
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,

    /// Socket of the daemon's API
    #[arg(long, value_name = "PATH", env = "TIDEGATE_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
}

/// Options of `detach`.
#[derive(Debug, Args)]
pub struct DetachArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub pins: PinsArgs,
}

/// Options of `decap`.
#[derive(Debug, Args)]
pub struct DecapArgs {
    /// Interface that tunnelled packets arrive on
    #[arg(long, value_name = "IF")]
    pub interface: String,

    /// Stay in the foreground after attaching and follow the addresses of this host, until interrupted
    ///
    /// Without it the addresses are those that the host has now. The program stays attached afterwards.
    #[arg(long, group = "action")]
    pub watch: bool,

    /// Take the program off the interface and remove its pins
    #[arg(long, group = "action")]
    pub detach: bool,

    /// Show whether the program is attached, and its counters
    #[arg(long, group = "action")]
    pub status: bool,

    /// How the program is attached
    #[arg(long, value_enum, default_value_t, conflicts_with_all = ["detach", "status"])]
    pub mode: XdpMode,

    /// UDP port that GUE arrives on: `encapsulation.gue-port` of the load balancer
    #[arg(long, value_name = "PORT", default_value_t = GUE_PORT, value_parser = clap::value_parser!(u16).range(1..),
        conflicts_with_all = ["detach", "status"])]
    pub gue_port: u16,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub pins: PinsArgs,

    /// Text for people, or JSON
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

/// Options of `version`.
#[derive(Debug, Args)]
pub struct VersionArgs {
    /// Text for people, or JSON
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

/// Where things are pinned.
#[derive(Debug, Args)]
pub struct PinsArgs {
    /// Folder of the pins, on a BPF file system
    #[arg(long = "pins", value_name = "DIR", default_value = DEFAULT_PINS)]
    pub folder: PathBuf,
}

/// What a verb prints on standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Text for people; its layout may change with any version
    #[default]
    Table,
    /// JSON for programs; members are only ever added
    Json,
}

/// How an XDP program is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum XdpMode {
    /// In the driver, or not at all
    #[default]
    Native,
    /// In the network stack: slow, and works with every driver
    Generic,
    /// Native where the driver can, else generic with a warning
    Auto,
}

impl From<XdpMode> for AttachMode {
    fn from(mode: XdpMode) -> Self {
        match mode {
            XdpMode::Native => Self::Native,
            XdpMode::Generic => Self::Generic,
            XdpMode::Auto => Self::Auto,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Cli::try_parse_from(line.split(' ')).map(|cli| cli.command)
    }

    #[test]
    fn the_definition_is_sound_and_documented() {
        Cli::command().debug_assert();
        for verb in Cli::command().get_subcommands() {
            for option in verb.get_arguments() {
                assert!(option.get_help().is_some(), "{} {}", verb.get_name(), option.get_id());
            }
        }
    }

    #[test]
    fn the_manual_has_every_verb_and_option() {
        let manual = include_str!("../../docs/reference/cli.md");
        for verb in Cli::command().get_subcommands() {
            let (_, section) = manual.split_once(&format!("\n## tidegate {}\n", verb.get_name())).unwrap();
            let section = section.split("\n## ").next().unwrap();
            for option in verb.get_arguments().filter_map(|option| option.get_long()) {
                assert!(section.contains(&format!("`--{option}")), "{} --{option}", verb.get_name());
            }
        }
    }

    #[test]
    fn defaults_are_those_of_the_manual() {
        let Ok(Command::Run(run)) = parse("tidegate run --config /etc/tidegate/tidegate.yaml") else {
            panic!()
        };
        assert_eq!(run.pins.folder, PathBuf::from("/sys/fs/bpf/tidegate"));
        assert_eq!(run.log_format, LogFormat::Text);
        let Ok(Command::Decap(decap)) = parse("tidegate decap --interface eth0") else { panic!() };
        assert_eq!(AttachMode::from(decap.mode), AttachMode::Native);
        assert!(!(decap.watch || decap.detach || decap.status));
    }

    #[test]
    fn decap_does_one_thing_at_a_time() {
        for line in ["--watch --detach", "--status --detach", "--detach --mode generic"] {
            let error = parse(&format!("tidegate decap --interface eth0 {line}")).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::ArgumentConflict, "{line}");
        }
        assert!(parse("tidegate decap --interface eth0 --watch --mode generic --output json").is_ok());
    }

    #[test]
    fn a_name_that_no_service_can_have_is_a_usage_error() {
        let error = parse("tidegate status web/6").unwrap_err();
        assert_eq!(error.kind(), clap::error::ErrorKind::ValueValidation);
        assert!(error.to_string().contains("is not a service name"), "{error}");
    }
}
