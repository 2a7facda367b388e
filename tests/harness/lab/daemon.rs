//! The compiled daemon, run inside a lab.

use std::{
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread::panicking,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;
use tidegate::model::status::Status;

use super::{Lab, get, wait::await_some};

/// How long the daemon may take to be ready or to end, on a machine that is busy with other tests.
const DEADLINE: Duration = Duration::from_secs(30);

/// A daemon with a folder for its files. Dropped, it is killed; what it pinned goes with the lab.
pub struct Daemon {
    folder: TempDir,
    pins: Option<PathBuf>,
    environment: Vec<(String, String)>,
    program: PathBuf,
    child: Option<Child>,
}

impl Daemon {
    /// Starts the daemon in the lab of the calling thread and waits until it is ready.
    ///
    /// Where the configuration does not say where the API listens, that is added: see [`Self::socket`].
    #[track_caller]
    pub fn start(lab: &Lab, configuration: &str) -> Self {
        let mut daemon = Self::prepare(lab, configuration);
        daemon.spawn();
        daemon.await_ready();
        daemon
    }

    /// Writes the configuration, but starts nothing: for tests of what happens before the daemon is ready.
    pub fn prepare(_lab: &Lab, configuration: &str) -> Self {
        Self::with_program(Path::new(env!("CARGO_BIN_EXE_tidegate")), configuration)
    }

    /// The same with another program in place of the daemon.
    pub(super) fn with_program(program: &Path, configuration: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("tidegate-test-").tempdir().expect("a temporary folder");
        let daemon =
            Self { folder, pins: None, environment: Vec::new(), program: program.into(), child: None };
        daemon.configure(configuration);
        daemon
    }

    /// Pins elsewhere than where the daemon does by default, from the next start on.
    pub fn set_pins(&mut self, pins: &Path) {
        self.pins = Some(pins.into());
    }

    /// Sets an environment variable, from the next start on.
    pub fn set_environment(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Starts the process, whose output goes to [`Self::log`]. It dies with the calling thread.
    #[track_caller]
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "the daemon is running already");
        let log = File::options().create(true).append(true).open(self.log_path()).expect("the log");
        let mut command = Command::new(&self.program);
        command.arg("run").arg("--config").arg(self.configuration_path());
        if let Some(pins) = &self.pins {
            command.arg("--pins").arg(pins);
        }
        command.envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("the log")).stderr(log);
        // SAFETY: prctl is async-signal-safe, and touches nothing of the parent.
        unsafe {
            command.pre_exec(|| {
                // Should the test be killed, nothing is left behind.
                match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            });
        }
        self.child = Some(command.spawn().expect("start the daemon"));
    }

    /// Waits until the API says that everything is programmed. Fails with the log where the daemon ends instead.
    #[track_caller]
    pub fn await_ready(&mut self) {
        let ready = await_some("the daemon to be ready or to end", DEADLINE, || {
            if let Some(status) = self.try_wait() {
                return Some(Err(status));
            }
            matches!(self.get("/readyz"), Ok((200, _))).then_some(Ok(()))
        });
        if let Err(status) = ready {
            self.child = None;
            panic!("the daemon ended ({status}) before it was ready:\n{}", self.log());
        }
    }

    /// Waits until the process has ended by itself.
    #[track_caller]
    pub fn await_end(&mut self) -> ExitStatus {
        let status = await_some("the daemon to end", DEADLINE, || self.try_wait());
        self.child = None;
        status
    }

    /// Replaces the configuration file, as an operator would before a reload.
    pub fn configure(&self, configuration: &str) {
        let names_api = configuration.lines().any(|line| line.starts_with("api:"));
        let api = format!("api: {{ socket: {{ path: {} }} }}\n", self.socket().display());
        let text = format!("{configuration}\n{}", if names_api { "" } else { &api });
        fs::write(self.configuration_path(), text).expect("write the configuration");
    }

    /// Asks for a reload (SIGHUP). What it leads to is seen in [`Self::status`].
    pub fn reload(&self) {
        self.signal(Signal::SIGHUP);
    }

    /// Asks the daemon to end (SIGTERM) and waits until it has.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.await_end()
    }

    /// Ends the daemon without warning (SIGKILL).
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again with the same files and waits until it is ready.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        // The socket of the one before must not be taken for that of the next.
        let _ = fs::remove_file(self.socket());
        self.spawn();
        self.await_ready();
    }

    /// Sends a signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).expect("signal the daemon");
    }

    /// Process id.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the daemon is running").id()
    }

    /// What runs, as the API serves it.
    #[track_caller]
    pub fn status(&self) -> Status {
        match self.get("/api/v1/status") {
            Ok((200, body)) => {
                serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error} in {body}"))
            }
            other => panic!("the status of the daemon: {other:?}\n{}", self.log()),
        }
    }

    /// Gets any path of the API: the HTTP status and the body.
    pub fn get(&self, path: &str) -> io::Result<(u16, String)> {
        get(&self.socket(), path)
    }

    /// Everything the daemon has printed, over all its runs.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Path of the API's Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("api.sock")
    }

    /// Path of the configuration file.
    pub fn configuration_path(&self) -> PathBuf {
        self.folder.path().join("tidegate.yaml")
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.as_mut().expect("the daemon is running").try_wait().expect("wait for the daemon")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        if panicking() {
            eprintln!("--- log of the daemon ---\n{}--- end ---", self.log());
        }
    }
}
