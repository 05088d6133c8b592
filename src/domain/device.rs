//! A device: one GPU or the host CPU, with the facts that decide speed.

use super::Digest;
use super::catalog::vendor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// How a client names a device of this host: `cpu`, `cuda:0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct DeviceId(pub String);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names one device among those of all hosts: a GPU's UUID (`GPU-...`), or where it has none a name with its host's (`cpu@node-7`). Whatever
/// process opens the device, and by whatever name, it has the same key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct DeviceKey(pub String);

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    Cpu,
    Cuda,
}

/// What a device is and can do, as its engine read it.
///
/// On a CPU the words map as follows: `multiprocessors` are the worker threads, `warp_size` is the f32 lanes of a
/// vector register, `registers_per_thread` the number of vector registers, `l2_bytes` the last-level cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    pub id: DeviceId,
    pub kind: DeviceKind,
    /// Marketing name, as the driver or the processor reports it.
    pub name: String,
    /// `9.0` on an H100; the instruction set on a CPU (`avx2`, `avx512`, `scalar`).
    pub compute_capability: String,
    pub multiprocessors: u32,
    pub warp_size: u32,
    pub max_threads_per_block: u32,
    pub max_threads_per_multiprocessor: u32,
    pub max_blocks_per_multiprocessor: u32,
    pub registers_per_thread: u32,
    pub registers_per_block: u32,
    pub registers_per_multiprocessor: u32,
    /// Largest dynamic shared memory of a block after opting in, bytes.
    pub shared_bytes_per_block: u64,
    pub shared_bytes_per_multiprocessor: u64,
    pub l2_bytes: u64,
    pub memory_bytes: u64,
    /// Measured copy bandwidth, bytes read + bytes written, in GB/s (1e9 bytes).
    pub copy_gbps: f64,
    /// Measured latency from one multiprocessor's store to another's dependent load, in nanoseconds: a lower bound for
    /// the time of a level of a triangular solve across multiprocessors. On a CPU, between two threads. 0 if not
    /// measured.
    #[serde(default)]
    pub hop_ns: f64,
    /// Driver version (`13.0/580.159.04`), or the operating system's release on a CPU.
    pub driver: String,
    /// `nvrtc 13.0`, or the compiler of this binary on a CPU.
    pub compiler: String,
    /// `cuSPARSE 12.6.3`, or `MKL 2026.2` on a CPU; absent if the vendor library is not installed. In devices stored by earlier
    /// versions, `sprs 0.11` on a CPU.
    pub vendor: Option<String>,
    /// The file that the vendor library was opened from; a host's own matter, which the API does not tell. Absent where the
    /// library is part of this binary, and in devices stored by earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_file: Option<LibraryFile>,
    /// Which of the host's GPUs it is, by its address on the bus; a host's own matter, too. Absent on CPUs, and in devices of
    /// recordings and of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Which GPU it is among all: `GPU-` and its UUID, as the vendor's tools write it. Absent as `place` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// `cuBLAS 13.1.0`: the library that multiplies densified matrices. A plan that it won is stale with another
    /// version.
    #[serde(default)]
    pub dense_vendor: Option<String>,
    /// Digest of each kernel family's source in this binary; a plan made with another source is stale.
    #[serde(default)]
    pub kernels: BTreeMap<String, Digest>,
}

/// A library as it lies on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LibraryFile {
    /// `12.9.4.2` if the file's name or package tells it, otherwise what the library reports: `12.9.4`.
    pub version: String,
    pub path: String,
}

/// Devices of one class share plans: the same hardware, independent of host and software.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct DeviceClass(pub String);

impl DeviceClass {
    /// The kind of device that the class is of; `None` for a class that [`Device::class`] did not name.
    pub fn kind(&self) -> Option<DeviceKind> {
        match self.0.split('/').next() {
            Some("cuda") => Some(DeviceKind::Cuda),
            Some("cpu") => Some(DeviceKind::Cpu),
            _ => None,
        }
    }

    /// How unlike another class's hardware is, for a model of that class that is to rank on this one; smaller is nearer.
    ///
    /// First by the difference of minor compute capabilities (of instruction sets on CPUs: 0 or 1), then by the difference of
    /// multiprocessors (threads on CPUs). `None` if it is no neighbour: another kind of device, another major compute
    /// capability, or a class whose text does not tell.
    pub fn distance(&self, other: &Self) -> Option<(u32, u32)> {
        let (here, there) = (self.hardware()?, other.hardware()?);
        let generation = match (here.kind, there.kind) {
            (DeviceKind::Cuda, DeviceKind::Cuda) => {
                let (major, minor) = capability(here.capability)?;
                let (of_other, minor_of_other) = capability(there.capability)?;
                (major == of_other).then_some(minor.abs_diff(minor_of_other))?
            }
            (DeviceKind::Cpu, DeviceKind::Cpu) => u32::from(here.capability != there.capability),
            _ => return None,
        };
        Some((generation, here.units.abs_diff(there.units)))
    }

    /// For people: `H100 80GB HBM3`, `Intel Xeon Processor, 16 threads`; the text itself if it does not tell.
    pub fn words(&self) -> String {
        let told = || {
            let (kind, rest) = self.0.split_once('/')?;
            let units = self.hardware()?.units;
            let name = rest.rsplitn(3, '/').nth(2)?.replace("(R)", "").replace("(TM)", "");
            let name = name.trim();
            Some(match kind {
                "cpu" => format!("{name}, {units} threads"),
                _ => name.strip_prefix("NVIDIA ").unwrap_or(name).to_owned(),
            })
        };
        told().unwrap_or_else(|| self.0.clone())
    }

    /// What [`Device::class`] wrote into the text. The device's name, which may contain slashes, stands between kind and
    /// capability.
    fn hardware(&self) -> Option<Hardware<'_>> {
        let kind = self.kind()?;
        let mut parts = self.0.rsplitn(3, '/');
        let (units, capability) = (parts.next()?, parts.next()?);
        let units = match kind {
            DeviceKind::Cuda => units.strip_suffix("sm")?,
            DeviceKind::Cpu => units.strip_suffix('t')?,
        };
        Some(Hardware { kind, capability, units: units.parse().ok()? })
    }
}

/// The part of a class that distances are computed from.
struct Hardware<'a> {
    kind: DeviceKind,
    /// `cc9.0`, or a CPU's instruction set.
    capability: &'a str,
    /// Multiprocessors, or threads of a CPU.
    units: u32,
}

/// Major and minor compute capability of `cc9.0`.
fn capability(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.strip_prefix("cc")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

impl fmt::Display for DeviceClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Device {
    /// The first number of a GPU's compute capability; `None` for a CPU.
    pub fn compute_major(&self) -> Option<u32> {
        self.compute_capability.split('.').next()?.parse().ok()
    }

    /// An empty device, for listing the names of features.
    pub const NONE: Self = Self {
        id: DeviceId(String::new()),
        kind: DeviceKind::Cpu,
        name: String::new(),
        compute_capability: String::new(),
        multiprocessors: 0,
        warp_size: 0,
        max_threads_per_block: 0,
        max_threads_per_multiprocessor: 0,
        max_blocks_per_multiprocessor: 0,
        registers_per_thread: 0,
        registers_per_block: 0,
        registers_per_multiprocessor: 0,
        shared_bytes_per_block: 0,
        shared_bytes_per_multiprocessor: 0,
        l2_bytes: 0,
        memory_bytes: 0,
        copy_gbps: 0.0,
        hop_ns: 0.0,
        driver: String::new(),
        compiler: String::new(),
        vendor: None,
        vendor_file: None,
        place: None,
        uuid: None,
        dense_vendor: None,
        kernels: BTreeMap::new(),
    };

    pub fn class(&self) -> DeviceClass {
        DeviceClass(match self.kind {
            DeviceKind::Cuda => format!(
                "cuda/{}/cc{}/{}sm",
                self.name, self.compute_capability, self.multiprocessors
            ),
            DeviceKind::Cpu => {
                format!("cpu/{}/{}/{}t", self.name, self.compute_capability, self.multiprocessors)
            }
        })
    }

    /// The device among those of all hosts, if it is one of this host's.
    pub fn key(&self, host: &str) -> DeviceKey {
        DeviceKey(match &self.uuid {
            Some(uuid) => uuid.clone(),
            None => format!("{}@{host}", self.id),
        })
    }

    /// Name and version of the library whose baseline the routine is; of a baseline that is part of this program, its name and this
    /// program's version.
    pub fn library_of(&self, routine: &str) -> (&str, &str) {
        if let Some(own) = vendor::routine(routine).and_then(|routine| routine.library.own_name()) {
            return (own, env!("CARGO_PKG_VERSION"));
        }
        let library = self.vendor.as_deref().unwrap_or("vendor");
        library.split_once(' ').unwrap_or((library, ""))
    }

    /// The software whose change makes a stored plan stale.
    pub fn environment(&self) -> String {
        let vendor = self.vendor.as_deref().unwrap_or("no vendor library");
        format!("{}; {}; {vendor}", self.driver, self.compiler)
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceClass;

    #[test]
    fn classes_have_words() {
        for (class, words) in [
            ("cuda/NVIDIA H100 80GB HBM3/cc9.0/132sm", "H100 80GB HBM3"),
            ("cpu/Intel(R) Xeon(R) Processor/avx512/16t", "Intel Xeon Processor, 16 threads"),
            ("cpu/a/b/avx2/2t", "a/b, 2 threads"),
            ("elsewhere", "elsewhere"),
        ] {
            assert_eq!(DeviceClass(class.to_owned()).words(), words);
        }
    }

    #[test]
    fn classes_are_near_by_generation_and_then_by_multiprocessors() {
        let class = |text: &str| DeviceClass(text.to_owned());
        let h200 = class("cuda/NVIDIA H200/cc9.0/132sm");
        let far = |other: &str| h200.distance(&class(other));
        assert_eq!(far("cuda/NVIDIA H100 80GB HBM3/cc9.0/132sm"), Some((0, 0)));
        assert_eq!(far("cuda/NVIDIA H100/PCIe/cc9.0/114sm"), Some((0, 18)));
        assert_eq!(far("cuda/a later one/cc9.2/132sm"), Some((2, 0)));
        for other in [
            "cuda/NVIDIA A100/cc8.0/108sm",
            "cpu/a CPU/avx512/132t",
            "cuda/NVIDIA H100/cc9.0/many",
            "cuda/NVIDIA H100/9.0/132sm",
            "cuda/132sm",
            "gpu/NVIDIA H100/cc9.0/132sm",
            "",
        ] {
            assert_eq!(far(other), None, "{other}");
        }
        let cpu = class("cpu/a CPU/avx512/16t");
        assert_eq!(cpu.distance(&class("cpu/another/avx512/64t")), Some((0, 48)));
        assert_eq!(cpu.distance(&class("cpu/another/scalar/16t")), Some((1, 0)));
        assert_eq!(cpu.distance(&h200), None);
    }
}
