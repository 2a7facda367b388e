//! Accepts connections until told to stop.

use std::{future::Future, io, sync::Arc, time::Duration};

use tokio::time::sleep;
use tracing::{info, warn};

use super::{Listener, Observe, connections::Connections, routes};

/// Pause after a connection could not be accepted, for example because no file descriptor was free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers requests on `listener` until `shutdown` is ready.
///
/// Then the socket file goes (if it is still this listener's), requests in work are answered, and what takes longer
/// than two seconds is cut. A reading of `observe` that never returns is not waited for; it would still hold up the
/// end of the runtime, so end that with [`tokio::runtime::Runtime::shutdown_timeout`].
pub async fn serve(listener: Listener, observe: Arc<dyn Observe>, shutdown: impl Future<Output = ()>) {
    info!(path = %listener.path().display(), "the API answers");
    let mut connections = Connections::new(routes::router(observe));
    let mut failure = None;
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            () = connections.one_closed() => {}
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    failure = None;
                    connections.open(stream);
                }
                Err(error) => {
                    warn_once(&mut failure, &error);
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    // First the file, so that no client finds a socket on which nobody answers.
    drop(listener);
    connections.close().await;
}

/// Logs `error` unless it is the `last` one again: a shortage of descriptors would fill the log.
fn warn_once(last: &mut Option<io::ErrorKind>, error: &io::Error) {
    if last.replace(error.kind()) != Some(error.kind()) {
        warn!(%error, "the API cannot accept a connection; trying on");
    }
}
