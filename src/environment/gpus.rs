//! Device files of NVIDIA's driver.

use std::path::Path;
use std::process::{Command, Stdio};

/// The driver's own helper, which has the right to load its modules.
const HELPER: &str = "nvidia-modprobe";

/// Creates the files by which processes reach the GPUs, if the driver is installed and nobody has used it since the host started: the
/// driver's library runs its helper at the first use, and a process that may start no program would find no device. Blocks while modules
/// are loaded. What fails here fails again, with its reason, when the device is opened.
pub fn create_device_files() {
    let missing =
        ["/dev/nvidiactl", "/dev/nvidia-uvm"].iter().any(|file| !Path::new(file).exists());
    // Without the driver's module, or below WSL, there is nothing to create.
    if !missing || !Path::new("/sys/module/nvidia").exists() {
        return;
    }
    let helper = Command::new(HELPER)
        .args(["-u", "-c", "0"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match helper {
        Ok(status) => tracing::info!(%status, "{HELPER} was asked for the device files"),
        Err(error) => tracing::debug!(%error, "{HELPER} cannot be run"),
    }
}
