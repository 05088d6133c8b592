//! One process measures on a device of this host at a time: times of two at once are worse by 1.8x and say nothing. The lock is a
//! file that all processes of the host see, named by the device itself and not by what a process calls it.

use crate::domain::{Device, DeviceKind};
use std::fs::{File, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

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
    /// Waits until no other process measures on the device, and awaits `waits` first if that takes time. `None` if it was told to
    /// stop, if the device is not known on this host, or if there can be no lock in the folder, which is logged.
    ///
    /// Who waits stands at a second lock, so that a process with many jobs lets others in between two of them.
    pub(super) async fn take(
        folder: &Path,
        device: &Device,
        stop: &CancellationToken,
        waits: impl Future<Output = ()> + Send,
    ) -> Option<Self> {
        let name = name(device)?;
        let files =
            ["next", "now"].map(|part| open(&folder.join(format!("sparsetune-{name}.{part}"))));
        let [Ok(next), Ok(now)] = files else {
            let error = files.into_iter().find_map(Result::err);
            tracing::warn!(folder = %folder.display(), ?error, "no lock for the device: another process may measure on it as well");
            return None;
        };
        let mut waits = Some(Box::pin(waits));
        for file in [&next, &now] {
            loop {
                match file.try_lock() {
                    Ok(()) => break,
                    Err(TryLockError::WouldBlock) => {
                        if let Some(waits) = waits.take() {
                            waits.await;
                        }
                        tokio::select! {
                            () = tokio::time::sleep(PAUSE) => {}
                            () = stop.cancelled() => return None,
                        }
                    }
                    Err(TryLockError::Error(error)) => {
                        tracing::warn!(folder = %folder.display(), %error, "no lock for the device: another process may measure on it as well");
                        return None;
                    }
                }
            }
        }
        Some(Self(now))
    }
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

    fn device(kind: DeviceKind, place: Option<&str>) -> Device {
        Device { kind, place: place.map(str::to_owned), ..Device::NONE }
    }

    #[tokio::test]
    async fn one_at_a_time_and_in_turn() {
        let folder = tempfile::tempdir().unwrap();
        let gpu = device(DeviceKind::Cuda, Some("0000:17:00.0"));
        let never = CancellationToken::new();
        let first =
            DeviceLock::take(folder.path(), &gpu, &never, async { panic!("nobody has it") });
        let first = first.await.unwrap();
        let (waited, path, same) =
            (Arc::new(AtomicU32::new(0)), folder.path().to_owned(), gpu.clone());
        let seen = waited.clone();
        let second = tokio::spawn(async move {
            let never = CancellationToken::new();
            DeviceLock::take(&path, &same, &never, async move {
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
        assert!(
            DeviceLock::take(folder.path(), &other, &never, async { panic!() }).await.is_some()
        );
        // Who had it cannot have it again before who waits, and gives up when told to.
        drop(first);
        let stop = CancellationToken::new();
        let again = DeviceLock::take(folder.path(), &gpu, &stop, async {});
        let (again, second) = tokio::join!(
            async { tokio::time::timeout(Duration::from_secs(1), again).await },
            async {
                let second = second.await.unwrap();
                tokio::time::sleep(Duration::from_millis(1500)).await;
                second
            }
        );
        assert!(second.is_some() && again.is_err());
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
        assert!(DeviceLock::take(folder.path(), &cpu, &never, async {}).await.is_none());
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
        // A device of a recording has no place on this host.
        let nowhere = device(DeviceKind::Cuda, None);
        assert!(DeviceLock::take(folder.path(), &nowhere, &never, async {}).await.is_none());
    }
}
