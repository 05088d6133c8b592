//! One process measures on a device of this host at a time: times of two at once are worse by 1.8x and say nothing. The lock is a
//! file that all processes of the host see, named by the device itself and not by what a process calls it.

use crate::domain::{Device, DeviceKind};
use std::fs::{File, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// What came of asking for a device.
#[derive(Debug)]
pub(super) enum Asked {
    Got(DeviceLock),
    /// Another process has held it for longer than this one waits: any user of the host can hold a lock for ever.
    Held,
    /// There is no lock: it was told to stop, the device is not known on this host, or there can be none in the folder, which is logged.
    Without,
}

/// How often a file may be replaced while it is being locked, before that is an error.
const MOST_REPLACEMENTS: u32 = 64;

/// A device that no other process measures on until this is dropped, or this process ends in any way.
#[derive(Debug)]
pub(super) struct DeviceLock(#[expect(dead_code, reason = "held, not read")] File);

/// The device among those of the host; `None` for one that is not known there, as those of a recording.
fn name(device: &Device) -> Option<String> {
    let text = match device.kind {
        DeviceKind::Cpu => "cpu".to_owned(),
        DeviceKind::Cuda => format!("cuda-{}", device.place.as_ref()?),
    };
    Some(text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect())
}

impl DeviceLock {
    /// Waits for up to `patience` until no other process measures on the device, and awaits `waits` first if that takes time.
    ///
    /// Who waits stands at a second lock, so that a process with many jobs lets others in between two of them.
    pub(super) async fn take(
        folder: &Path,
        device: &Device,
        patience: Duration,
        stop: &CancellationToken,
        waits: impl Future<Output = ()> + Send,
    ) -> Asked {
        let Some([next, now]) = paths(folder, device) else { return Asked::Without };
        let began = Instant::now();
        let mut waits = Some(Box::pin(waits));
        let mut at_the_door = None;
        loop {
            let path = if at_the_door.is_none() { &next } else { &now };
            match locked(path) {
                Ok(Some(file)) if at_the_door.is_some() => return Asked::Got(Self(file)),
                Ok(Some(file)) => at_the_door = Some(file),
                Ok(None) => {
                    if let Some(waits) = waits.take() {
                        waits.await;
                    }
                    if began.elapsed() >= patience {
                        return Asked::Held;
                    }
                    tokio::select! {
                        () = tokio::time::sleep(PAUSE) => {}
                        () = stop.cancelled() => return Asked::Without,
                    }
                }
                Err(error) => {
                    tracing::warn!(folder = %folder.display(), %error, "no lock for the device: another process may measure on it as well");
                    return Asked::Without;
                }
            }
        }
    }

    /// Whether no other process measures on the device at present, as far as locks tell.
    pub(super) fn is_free(folder: &Path, device: &Device) -> bool {
        let Some([_, now]) = paths(folder, device) else { return true };
        locked(&now).is_ok_and(|file| file.is_some())
    }
}

/// The files of a device: who waits holds the first, and who measures the second.
fn paths(folder: &Path, device: &Device) -> Option<[PathBuf; 2]> {
    let name = name(device)?;
    Some(["next", "now"].map(|part| folder.join(format!("sparsetune-{name}.{part}"))))
}

/// The file, if nobody else has it locked. A file that was removed or replaced before it was locked, as folders of temporary files are
/// cleaned, is a lock that others do not see, so what has the name now is opened again.
fn locked(path: &Path) -> io::Result<Option<File>> {
    let mut gone = io::Error::from(ErrorKind::NotFound);
    for _ in 0..MOST_REPLACEMENTS {
        let file = match open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                gone = error;
                continue;
            }
            Err(error) => return Err(error),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let ours = file.metadata()?;
        match std::fs::symlink_metadata(path) {
            Ok(named) if (named.dev(), named.ino()) == (ours.dev(), ours.ino()) => {
                return Ok(Some(file));
            }
            Ok(_) => {}
            Err(error) => gone = error,
        }
    }
    Err(gone)
}

/// Opens the file, or creates it. The folder is everybody's, so a link is not followed, and only a file is opened; reading is enough
/// for a lock, so nobody else needs to be able to write.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let there = || File::options().read(true).custom_flags(flags).open(path);
    let file = match there() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let made =
                File::options().read(true).write(true).create_new(true).mode(0o644).open(path);
            match made {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => there()?,
                made => {
                    let file = made?;
                    // Whatever the mask of this process: others cannot lock what they cannot open.
                    file.set_permissions(Permissions::from_mode(0o644))?;
                    file
                }
            }
        }
        opened => opened?,
    };
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    const LONG: Duration = Duration::from_secs(60);

    fn device(kind: DeviceKind, place: Option<&str>) -> Device {
        Device { kind, place: place.map(str::to_owned), ..Device::NONE }
    }

    #[tokio::test]
    async fn one_at_a_time_and_in_turn() {
        let folder = tempfile::tempdir().unwrap();
        let gpu = device(DeviceKind::Cuda, Some("0000:17:00.0"));
        let never = CancellationToken::new();
        let first =
            DeviceLock::take(folder.path(), &gpu, LONG, &never, async { panic!("nobody has it") });
        let Asked::Got(first) = first.await else { panic!("it is free") };
        assert!(!DeviceLock::is_free(folder.path(), &gpu));
        let (waited, path, same) =
            (Arc::new(AtomicU32::new(0)), folder.path().to_owned(), gpu.clone());
        let seen = waited.clone();
        let second = tokio::spawn(async move {
            let never = CancellationToken::new();
            DeviceLock::take(&path, &same, LONG, &never, async move {
                seen.fetch_add(1, Ordering::Relaxed);
            })
            .await
        });
        while waited.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Another device is free.
        let other = device(DeviceKind::Cpu, None);
        let never = CancellationToken::new();
        assert!(DeviceLock::is_free(folder.path(), &other));
        let free = DeviceLock::take(folder.path(), &other, LONG, &never, async { panic!() });
        assert!(matches!(free.await, Asked::Got(_)));
        // Who had it cannot have it again before who waits, and gives up when told to.
        drop(first);
        let stop = CancellationToken::new();
        let again = DeviceLock::take(folder.path(), &gpu, LONG, &stop, async {});
        let (again, second) = tokio::join!(
            async { tokio::time::timeout(Duration::from_secs(1), again).await },
            async {
                let second = second.await.unwrap();
                tokio::time::sleep(Duration::from_millis(1500)).await;
                second
            }
        );
        assert!(matches!(second, Asked::Got(_)) && again.is_err());
        stop.cancel();
        drop(second);
        assert_eq!(waited.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn what_is_put_in_the_way_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        std::fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, folder.path().join("sparsetune-cpu.next")).unwrap();
        let cpu = device(DeviceKind::Cpu, None);
        let never = CancellationToken::new();
        let linked = DeviceLock::take(folder.path(), &cpu, LONG, &never, async {});
        assert!(matches!(linked.await, Asked::Without));
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
        // A device of a recording has no place on this host.
        let nowhere = device(DeviceKind::Cuda, None);
        let unknown = DeviceLock::take(folder.path(), &nowhere, LONG, &never, async {});
        assert!(matches!(unknown.await, Asked::Without));
    }

    #[tokio::test]
    async fn nobody_is_waited_for_without_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let cpu = device(DeviceKind::Cpu, None);
        let never = CancellationToken::new();
        let first = DeviceLock::take(folder.path(), &cpu, LONG, &never, async {}).await;
        let second =
            DeviceLock::take(folder.path(), &cpu, Duration::from_millis(250), &never, async {});
        assert!(matches!(second.await, Asked::Held));
        drop(first);
    }

    #[tokio::test]
    async fn a_file_that_was_removed_is_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let cpu = device(DeviceKind::Cpu, None);
        let never = CancellationToken::new();
        let first = DeviceLock::take(folder.path(), &cpu, LONG, &never, async {}).await;
        std::fs::remove_file(folder.path().join("sparsetune-cpu.now")).unwrap();
        // Who comes next sees a new file; the first is on its own, as if it had finished.
        let second = DeviceLock::take(folder.path(), &cpu, LONG, &never, async {}).await;
        assert!(matches!(second, Asked::Got(_)));
        assert!(!DeviceLock::is_free(folder.path(), &cpu));
        drop(first);
        assert!(!DeviceLock::is_free(folder.path(), &cpu), "the second has the lock still");
    }

    #[test]
    fn a_file_that_is_replaced_while_it_is_opened_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = std::fs::remove_file(&path);
                }
            });
            // Asserted once the other thread has ended, which waits for the word.
            let taken: Vec<_> = (0..200).map(|_| locked(&path).map(drop)).collect();
            stop.store(true, Ordering::Relaxed);
            for error in taken.into_iter().filter_map(Result::err) {
                assert_eq!(error.kind(), ErrorKind::NotFound, "it was replaced each time");
            }
        });
    }
}
