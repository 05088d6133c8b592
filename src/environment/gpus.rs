//! Device files of NVIDIA's driver.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The driver's own helper, which has the right to load its modules.
const HELPER: &str = "nvidia-modprobe";
/// The minor number of `/dev/nvidiactl`; the GPUs' count from 0.
const CONTROL: u32 = 255;
/// Where the driver, once loaded, has a folder for each GPU.
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// Creates the files by which processes reach the GPUs, if the driver is installed and nobody has used it since the host started: the
/// driver's library runs its helper at the first use, and a process that may start no program would find no device. Blocks while modules
/// are loaded. What fails here fails again, with its reason, when the device is opened.
pub fn create_device_files() {
    // Below WSL the one device is the host's.
    if Path::new("/dev/dxg").exists() {
        return;
    }
    // The driver's module is loaded by the first call, if it is not yet; only then are the GPUs known.
    if !device(CONTROL).exists() && !ask(&["-c".to_owned(), CONTROL.to_string()]) {
        return;
    }
    let missing: Vec<u32> =
        minors(Path::new(GPUS)).into_iter().filter(|gpu| !device(*gpu).exists()).collect();
    if !missing.is_empty() {
        ask(&missing.iter().flat_map(|gpu| ["-c".to_owned(), gpu.to_string()]).collect::<Vec<_>>());
    }
    // Unified memory is a module of its own with two files, and those who ask for it get no others.
    if !Path::new("/dev/nvidia-uvm").exists() {
        ask(&["-u", "-c", "0", "-c", "1"].map(str::to_owned));
    }
}

fn device(minor: u32) -> PathBuf {
    match minor {
        CONTROL => "/dev/nvidiactl".into(),
        gpu => format!("/dev/nvidia{gpu}").into(),
    }
}

/// The minor numbers that the driver gave its GPUs.
fn minors(folder: &Path) -> Vec<u32> {
    let folders = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut minors: Vec<u32> = folders
        .filter_map(|gpu| {
            let text = std::fs::read_to_string(gpu.path().join("information")).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix("Device Minor:"))?;
            line.trim().parse().ok()
        })
        .collect();
    minors.sort_unstable();
    minors
}

/// Whether the helper ran and reported success.
fn ask(arguments: &[String]) -> bool {
    let helper = Command::new(HELPER)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match helper {
        Ok(status) => {
            tracing::info!(%status, ?arguments, "{HELPER} was asked for device files");
            status.success()
        }
        Err(error) => {
            tracing::debug!(%error, "{HELPER} cannot be run");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_those_that_the_driver_lists() {
        let folder = tempfile::tempdir().unwrap();
        for (bus, text) in [
            ("0000:04:00.0", "Model: \t\t NVIDIA H100\nIRQ:   \t\t 18\nDevice Minor: \t 3\n"),
            ("0000:03:00.0", "Model: \t\t NVIDIA H100\nDevice Minor: \t 0\nGPU Excluded:\t No\n"),
            ("0000:05:00.0", "Model: \t\t unknown\n"),
        ] {
            std::fs::create_dir(folder.path().join(bus)).unwrap();
            std::fs::write(folder.path().join(bus).join("information"), text).unwrap();
        }
        assert_eq!(minors(folder.path()), [0, 3]);
        assert_eq!(minors(&folder.path().join("none")), [0; 0]);
        assert_eq!(device(3), Path::new("/dev/nvidia3"));
        assert_eq!(device(CONTROL), Path::new("/dev/nvidiactl"));
    }
}
