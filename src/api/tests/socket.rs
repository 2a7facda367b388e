//! The socket file: who may use it, who may replace it, who removes it.

use std::{
    fs, io,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, symlink},
        net::{UnixDatagram, UnixListener as StdListener},
    },
    path::Path,
    time::{Duration, Instant},
};

use nix::unistd::{Gid, Group, getegid, geteuid};

use tokio::io::AsyncWriteExt;

use super::fixture::{Answer, Engine, Server, sample, wanted};
use crate::{
    api::{ApiError, bind, connections::GRACE},
    model::ApiSocket,
};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn missing_folders_are_made_for_everybody_to_enter() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run/tidegate/api.sock");
    let listener = bind(&ApiSocket { path: path.clone(), mode: 0o660, group: None }).unwrap();
    assert_eq!(mode(&folder.path().join("run")), 0o755);
    assert_eq!(mode(&folder.path().join("run/tidegate")), 0o755);
    assert_eq!(mode(&path), 0o660);
    drop(listener);
    assert!(!path.exists(), "a daemon that fails to start leaves no socket behind");
}

#[tokio::test]
async fn a_folder_that_exists_keeps_its_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let before = mode(folder.path());
    let _listener = bind(&wanted(&folder.path().join("api.sock"))).unwrap();
    assert_eq!(mode(folder.path()), before);
}

#[tokio::test]
async fn the_socket_belongs_to_the_group_asked_for() {
    // Only root may give a file to a group it is no member of.
    let group = match geteuid().is_root() {
        true => Group::from_gid(Gid::from_raw(1)).unwrap().unwrap(),
        false => Group::from_gid(getegid()).unwrap().unwrap(),
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    let socket = ApiSocket { path: path.clone(), mode: 0o660, group: Some(group.name) };
    let _listener = bind(&socket).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().gid(), group.gid.as_raw());
    assert_eq!(mode(&path), 0o660);
}

#[tokio::test]
async fn a_missing_group_is_named_and_nothing_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/api.sock");
    let group = Some("no-such-group-here".to_owned());
    let error = bind(&ApiSocket { path, mode: 0o660, group }).unwrap_err();
    assert!(matches!(error, ApiError::NoSuchGroup { .. }));
    assert!(error.to_string().contains("groupadd --system no-such-group-here"), "{error}");
    assert!(!folder.path().join("deep").exists());
}

#[tokio::test]
async fn a_stale_socket_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    drop(StdListener::bind(&path).unwrap());
    assert!(path.exists());
    let _listener = bind(&wanted(&path)).unwrap();
    tokio::net::UnixStream::connect(&path).await.unwrap();
}

#[tokio::test]
async fn a_second_daemon_is_refused_and_the_first_goes_on() {
    let server = Server::start(Engine::new(sample()));
    let error = bind(&wanted(&server.path())).unwrap_err();
    assert!(matches!(error, ApiError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("running already"), "{error}");
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_listener_too_busy_to_accept_counts_as_alive() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    let busy = tokio::net::UnixSocket::new_stream().unwrap();
    busy.bind(&path).unwrap();
    let _busy = busy.listen(1).unwrap();
    // Fills the backlog: with nobody accepting, a further client would block.
    let _clients: Vec<_> = (0..2).map(|_| std::os::unix::net::UnixStream::connect(&path).unwrap()).collect();
    assert!(matches!(bind(&wanted(&path)).unwrap_err(), ApiError::InUse { .. }));

    let datagrams = folder.path().join("datagram.sock");
    let _alive = UnixDatagram::bind(&datagrams).unwrap();
    assert!(matches!(bind(&wanted(&datagrams)).unwrap_err(), ApiError::InUse { .. }));
}

#[tokio::test]
async fn what_is_not_a_socket_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "precious").unwrap();
    let link = folder.path().join("link");
    symlink(&file, &link).unwrap();
    for (path, what) in
        [(file.as_path(), "a regular file"), (&link, "a symbolic link"), (folder.path(), "a folder")]
    {
        let error = bind(&wanted(path)).unwrap_err();
        assert!(matches!(error, ApiError::NotASocket { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[tokio::test]
async fn paths_that_no_socket_can_have_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let fill = 107 - folder.path().as_os_str().len() - 1;
    let longest = folder.path().join("s".repeat(fill));
    let _listener = bind(&wanted(&longest)).unwrap();
    let error = bind(&wanted(&folder.path().join("s".repeat(fill + 1)))).unwrap_err();
    assert!(
        error.to_string().starts_with("the path of the API socket has 108 bytes, and Unix sockets allow 107")
    );
    for path in ["", "/", "..", "/tmp/\0x"] {
        assert!(
            matches!(bind(&wanted(Path::new(path))).unwrap_err(), ApiError::PathInvalid { .. }),
            "{path:?}"
        );
    }
}

#[tokio::test]
async fn errors_of_the_system_say_where_and_what_to_try() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let error = bind(&wanted(&folder.path().join("file/x/api.sock"))).unwrap_err().to_string();
    assert!(error.starts_with("cannot make the folder "), "{error}");
    assert!(error.contains("a part of the path is a file"), "{error}");

    let source = io::Error::from(io::ErrorKind::PermissionDenied);
    let denied = ApiError::System { action: "make the folder", path: "/run/tidegate".into(), source };
    assert!(denied.to_string().ends_with(
        "run the daemon as root, or give its user write access to the folder and membership in the group"
    ));
}

#[tokio::test]
async fn the_end_of_the_server_removes_its_socket() {
    let mut server = Server::start(Engine::new(sample()));
    assert_eq!(server.get("/healthz").await.status, 200);
    let path = server.path();
    server.tell_to_stop();
    let _folder = server.stopped().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn the_end_of_the_server_leaves_the_socket_of_another_alone() {
    let mut server = Server::start(Engine::new(sample()));
    let path = server.path();
    fs::remove_file(&path).unwrap();
    let _other = StdListener::bind(&path).unwrap();
    server.tell_to_stop();
    let _folder = server.stopped().await;
    assert!(path.exists());
}

#[tokio::test]
async fn the_end_of_the_server_answers_what_was_asked_and_cuts_what_is_silent() {
    let (engine, mut entered, release) = super::hostile::Blocked::new();
    let mut server = Server::start(engine);
    let path = server.path();
    let silent = tokio::net::UnixStream::connect(&path).await.unwrap();
    let mut asking = tokio::net::UnixStream::connect(&path).await.unwrap();
    asking.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    entered.recv().await.unwrap();

    server.tell_to_stop();
    let began = Instant::now();
    while path.exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "the socket is still there");
        tokio::task::yield_now().await;
    }
    release.send(()).unwrap();
    let answer = Answer::read(&mut asking).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "ok\n"));
    let _folder = server.stopped().await;
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_server_does_not_wait_for_connections_that_are_idle() {
    let mut server = Server::start(Engine::new(sample()));
    let mut idle = tokio::net::UnixStream::connect(server.path()).await.unwrap();
    idle.write_all(b"GET /none HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    idle.readable().await.unwrap();
    let began = tokio::time::Instant::now();
    server.tell_to_stop();
    let _folder = server.stopped().await;
    assert!(began.elapsed() < GRACE);
    assert_eq!(Answer::read(&mut idle).await.status, 404);
}
