//! The Unix socket of the API: made with the right owner, never taken from anybody, removed by nobody else.

use std::{
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, lchown},
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    sys::{
        socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket},
        stat::{Mode, fchmod},
    },
    unistd::Group,
};
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tracing::{debug, info, warn};

use crate::model::ApiSocket;

/// Longest path of a Unix socket, in bytes: `sun_path` of unix(7) less its closing zero.
pub const PATH_LIMIT: usize = 107;
/// Connections the kernel keeps for us while we accept others.
const BACKLOG: u32 = 128;

/// Why the socket of the API could not be made. Nothing was changed, except that missing folders may have been made.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The kernel has no room for the path.
    #[error(
        "the path of the API socket has {length} bytes, and Unix sockets allow {PATH_LIMIT}: {}; choose a shorter `api.socket.path`",
        path.display()
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// The path names no file.
    #[error("`{}` cannot be the path of the API socket: it names no file; set `api.socket.path`", path.display())]
    PathInvalid {
        /// The path.
        path: PathBuf,
    },
    /// Something else has that name.
    #[error(
        "{} exists and is {what}, not a socket, so it was left alone; move it away or choose another `api.socket.path`",
        path.display()
    )]
    NotASocket {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Somebody listens there.
    #[error(
        "another process answers on {}: tidegate is probably running already; see `tidegate status` and `ss -xlp`, stop it first or choose another `api.socket.path`",
        path.display()
    )]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// There is no such group.
    #[error(
        "the API socket is to belong to group `{group}`, which does not exist; make it with `groupadd --system {group}` or change `api.socket.group`"
    )]
    NoSuchGroup {
        /// Its name.
        group: String,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}; {}", path.display(), remedy(source))]
    System {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// The listening socket of the API. Its file is removed when this is dropped, if it is still the same file.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the file. While we listen the kernel keeps the inode, so nobody else can get its number.
    identity: (u64, u64),
}

impl Listener {
    /// Where it listens, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a client.
    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.socket.accept().await?.0)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        match fs::symlink_metadata(&self.path) {
            Ok(found) if identity(&found) == self.identity => {
                if let Err(error) = fs::remove_file(&self.path) {
                    warn!(path = %self.path.display(), %error, "cannot remove the API socket; the next start will");
                }
            }
            Ok(_) => {
                info!(path = %self.path.display(), "left the API socket alone: it is another process's by now")
            }
            Err(error) => debug!(path = %self.path.display(), %error, "the API socket is gone already"),
        }
    }
}

/// Makes the socket of the API and listens on it.
///
/// Missing folders are made, a socket that a dead process left behind is replaced; nothing else is ever removed. The
/// socket is reachable for nobody but the owner until its group and mode are set. Must be called within a tokio
/// runtime.
///
/// # Errors
/// See [`ApiError`]; each says what to do.
pub fn bind(wanted: &ApiSocket) -> Result<Listener, ApiError> {
    let path = checked_path(&wanted.path)?;
    let group = wanted.group.as_deref().map(find_group).transpose()?;
    if let Some(folder) = path.parent() {
        make_folder(folder)?;
    }
    remove_stale(&path)?;
    let socket = bind_private(&path)?;
    let finished = open_to_group(&path, group.as_ref(), wanted.mode).and_then(|()| {
        let identity = fs::symlink_metadata(&path)
            .map(|found| identity(&found))
            .map_err(|source| system("look at", &path, source))?;
        let socket = socket.listen(BACKLOG).map_err(|source| system("listen on", &path, source))?;
        Ok(Listener { socket, path: path.clone(), identity })
    });
    if finished.is_err() {
        // The file is ours: bind succeeded a moment ago.
        let _ = fs::remove_file(&path);
    }
    finished
}

fn checked_path(path: &Path) -> Result<PathBuf, ApiError> {
    let names_no_file = path.file_name().is_none() || path.as_os_str().as_bytes().contains(&0);
    if names_no_file {
        return Err(ApiError::PathInvalid { path: path.to_owned() });
    }
    let path = std::path::absolute(path).map_err(|source| system("resolve", path, source))?;
    match path.as_os_str().len() {
        length if length > PATH_LIMIT => Err(ApiError::PathTooLong { path, length }),
        _ => Ok(path),
    }
}

fn find_group(name: &str) -> Result<Group, ApiError> {
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group),
        Ok(None) => Err(ApiError::NoSuchGroup { group: name.to_owned() }),
        Err(error) => Err(system("look up the group of", Path::new(name), error.into())),
    }
}

/// Makes `folder` and what is missing above it, for everybody to enter whatever the umask says.
fn make_folder(folder: &Path) -> Result<(), ApiError> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    if let Some(parent) = folder.parent() {
        make_folder(parent)?;
    }
    match fs::DirBuilder::new().mode(0o755).create(folder) {
        Ok(()) => set_mode(folder, 0o755),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        Err(source) => Err(system("make the folder", folder, source)),
    }
}

/// Removes a socket on which nobody listens any more.
fn remove_stale(path: &Path) -> Result<(), ApiError> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(system("look at", path, source)),
    };
    if !found.is_socket() {
        return Err(ApiError::NotASocket { path: path.to_owned(), what: describe(found) });
    }
    if answers(path)? {
        return Err(ApiError::InUse { path: path.to_owned() });
    }
    info!(path = %path.display(), "removing the API socket of a process that is gone");
    fs::remove_file(path).map_err(|source| system("remove the stale socket", path, source))
}

fn describe(kind: fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_symlink() => "a symbolic link",
        kind if kind.is_file() => "a regular file",
        _ => "a device or pipe",
    }
}

/// Whether somebody listens on `path`. Never blocks: a listener too busy to accept counts as one.
fn answers(path: &Path) -> Result<bool, ApiError> {
    let attempt = || -> nix::Result<()> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(std::os::fd::AsRawFd::as_raw_fd(&probe), &UnixAddr::new(path)?)
    };
    match attempt() {
        // EPROTOTYPE: alive, though of another type.
        Ok(()) | Err(Errno::EAGAIN | Errno::EINPROGRESS | Errno::EPROTOTYPE) => Ok(true),
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(false),
        Err(error) => Err(system("connect to", path, error.into())),
    }
}

/// Binds a socket whose file admits nobody but the owner from the moment it appears.
fn bind_private(path: &Path) -> Result<UnixSocket, ApiError> {
    let socket = UnixSocket::new_stream().map_err(|source| system("make a socket for", path, source))?;
    // Linux gives the file the permission bits of the unbound socket, less the umask.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR).map_err(|error| system("protect", path, error.into()))?;
    match socket.bind(path) {
        Ok(()) => Ok(socket),
        // It appeared after we looked.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Err(ApiError::InUse { path: path.to_owned() })
        }
        Err(source) => Err(system("make the API socket", path, source)),
    }
}

fn open_to_group(path: &Path, group: Option<&Group>, mode: u32) -> Result<(), ApiError> {
    if let Some(group) = group {
        lchown(path, None, Some(group.gid.as_raw()))
            .map_err(|source| system("change the group of the API socket", path, source))?;
    }
    set_mode(path, mode)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), ApiError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o777))
        .map_err(|source| system("set the permissions of", path, source))
}

fn identity(file: &fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn system(action: &'static str, path: &Path, source: io::Error) -> ApiError {
    ApiError::System { action, path: path.to_owned(), source }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "run the daemon as root, or give its user write access to the folder and membership in the group"
        }
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            "a part of the path is a file; choose another `api.socket.path`"
        }
        io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only; use a path under /run",
        io::ErrorKind::StorageFull => "the file system is full; free some room",
        _ => "check the path in `api.socket.path`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_but_the_owner_gets_in_before_the_mode_is_set() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        let _socket = bind_private(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777 & !0o600, 0);
        let again = bind_private(&path).unwrap_err();
        assert!(matches!(again, ApiError::InUse { .. }), "{again}");
    }
}
