//! Logging: what the daemon says goes to standard error, as text for people or as JSON for collectors.

use std::{
    env,
    io::{self, IsTerminal},
    os::unix::fs::MetadataExt,
};

use tracing::{Subscriber, warn};
use tracing_subscriber::{
    EnvFilter, Layer,
    fmt::{self, MakeWriter},
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

/// Environment variable with the filter, such as `debug` or `info,tidegate::health=debug`.
pub const FILTER_VARIABLE: &str = "TIDEGATE_LOG";

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// A line of text; coloured on a terminal, without a time where the journal adds one.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

/// Logging was set up before.
#[derive(Debug, thiserror::Error)]
#[error("logging is set up already; this is a defect of tidegate")]
pub struct AlreadyInitialised;

/// Sends what the process logs to standard error from now on.
///
/// `TIDEGATE_LOG` says what is logged, else `default_filter`. A filter that makes no sense is not worth a daemon that
/// does not start: the default is used, and a warning says so.
///
/// # Errors
/// When called twice.
pub fn init(format: LogFormat, default_filter: &str) -> Result<(), AlreadyInitialised> {
    let (filter, complaint) = filter(env::var(FILTER_VARIABLE).ok().as_deref(), default_filter);
    let style = Style { format, colours: io::stderr().is_terminal(), times: !goes_to_journal() };
    tracing_subscriber::registry()
        .with(layer(style, io::stderr).with_filter(filter))
        .try_init()
        .map_err(|_| AlreadyInitialised)?;
    if let Some(complaint) = complaint {
        warn!("{complaint}");
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Style {
    format: LogFormat,
    colours: bool,
    times: bool,
}

/// The filter `wanted`, or the default and the reason why.
fn filter(wanted: Option<&str>, default: &str) -> (EnvFilter, Option<String>) {
    let wanted = wanted.map(str::trim).filter(|text| !text.is_empty());
    match wanted.map(EnvFilter::try_new) {
        None => (EnvFilter::new(default), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => {
            let complaint = format!(
                "{FILTER_VARIABLE} is not understood ({error}), so `{default}` is used; \
                 write a level (error, warn, info, debug, trace) or target=level, separated by commas"
            );
            (EnvFilter::new(default), Some(complaint))
        }
    }
}

fn layer<S, W>(style: Style, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let text = || fmt::layer().with_ansi(style.colours);
    match style.format {
        LogFormat::Json => fmt::layer().json().flatten_event(true).with_writer(writer).boxed(),
        LogFormat::Text if style.times => text().with_writer(writer).boxed(),
        LogFormat::Text => text().without_time().with_writer(writer).boxed(),
    }
}

/// Whether standard error is the journal, which keeps times itself (systemd.exec(5), `JOURNAL_STREAM`).
fn goes_to_journal() -> bool {
    let Ok(journal) = env::var("JOURNAL_STREAM") else { return false };
    // The metadata of what /dev/stderr leads to are those of the open file, whatever it is.
    std::fs::metadata("/dev/stderr").is_ok_and(|file| journal == format!("{}:{}", file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::{debug, info};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(style: Style, wanted: Option<&str>) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = layer(style, move || writer.clone()).with_filter(filter(wanted, "info").0);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            info!(service = "web", "published");
            debug!("a detail");
        });
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    const PLAIN: Style = Style { format: LogFormat::Text, colours: false, times: false };

    #[test]
    fn text_has_neither_colours_nor_times_unless_asked() {
        assert_eq!(logged(PLAIN, None), " INFO tidegate::telemetry::tests: published service=\"web\"\n");
        assert!(logged(Style { colours: true, ..PLAIN }, None).contains('\u{1b}'));
        assert!(logged(Style { times: true, ..PLAIN }, None).starts_with("20"));
    }

    #[test]
    fn json_is_an_object_a_line() {
        let line = logged(Style { format: LogFormat::Json, ..PLAIN }, None);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["message"], "published");
        assert_eq!(value["service"], "web");
        assert_eq!(value["level"], "INFO");
        assert!(value["timestamp"].is_string());
    }

    #[test]
    fn the_variable_decides_what_is_logged() {
        assert!(logged(PLAIN, Some("debug")).contains("a detail"));
        assert_eq!(logged(PLAIN, Some("error")), "");
        assert!(logged(PLAIN, Some("")).contains("published"));
    }

    #[test]
    fn a_filter_without_sense_falls_back_and_says_so() {
        let (_, complaint) = filter(Some("tidegate=loud"), "info");
        let complaint = complaint.unwrap();
        assert!(complaint.starts_with("TIDEGATE_LOG is not understood"), "{complaint}");
        assert!(complaint.contains("`info` is used"), "{complaint}");
        assert!(logged(PLAIN, Some("tidegate=loud")).contains("published"));
    }
}
