//! The code behind a plan: its kernels as a module on the device, or the vendor's library.

use super::super::context::{Context, Module};
use super::super::cublas::{self, Cublas};
use super::super::cusparse::{self, Cusparse};
use super::super::launch::{LoadedKernel, refused};
use super::arrays::Gather;
use crate::domain::Digest;
use crate::domain::bundle::{CudaModule, Forward, Manifest, UpdateValues, VendorForward};
use crate::domain::candidate::is_dense_product;
use crate::engine::libraries::{LibraryError, Search};
use crate::engine::{EngineError, PlanFiles};
use std::sync::Arc;

/// What was opened for a plan; it serves the plan's later arrays too.
pub(super) struct Code {
    pub(super) forward: Opened,
    pub(super) gather: Option<Gather>,
}

pub(super) enum Opened {
    /// The module, and the digest of its machine code.
    Kernels(Arc<Module>, Digest),
    Sparse(Arc<cusparse::Handle>),
    Dense(Arc<cublas::Handle>),
}

impl Code {
    /// Opens what the plan needs and nothing else.
    pub(super) fn open(
        context: &Arc<Context>,
        search: &Search,
        manifest: &Manifest,
        files: &dyn PlanFiles,
        warnings: &mut Vec<String>,
    ) -> Result<Self, EngineError> {
        let forward = match &manifest.forward {
            Forward::Cuda(forward) => {
                let cubin = member(files, &forward.module.cubin)?;
                let module = module(context, &forward.module, files, warnings)?;
                Opened::Kernels(module, Digest::of(cubin))
            }
            Forward::Host(_) => {
                return Err(refused("This plan's kernel runs on a CPU.".to_owned()));
            }
            Forward::Vendor(vendor) => library(context, search, vendor, warnings)?,
        };
        let gather = match &manifest.update_values {
            UpdateValues::Gather(gather) if has_maps(manifest) => gather.kernel.as_ref(),
            _ => None,
        };
        let gather = match gather {
            None => None,
            Some(gather) => {
                let module = module(context, &gather.module, files, warnings)?;
                let block = gather.block;
                let kernel = |symbol: &str, words: usize| {
                    let kernel = LoadedKernel::of(context, &module, symbol)?;
                    if block == 0 || block > kernel.max_threads {
                        return Err(refused(format!("blocks of {block} threads for `{symbol}`")));
                    }
                    if kernel.parameter_sizes.as_ref().is_some_and(|sizes| *sizes != vec![8; words])
                    {
                        let words = format!("`{symbol}` does not take {words} words of 8 bytes");
                        return Err(refused(words));
                    }
                    Ok(Arc::new(kernel))
                };
                let quotients = gather.quotients.as_ref().map(|symbol| kernel(symbol, 5));
                let (kernel, quotients) = (kernel(&gather.symbol, 4)?, quotients.transpose()?);
                Some(Gather { kernel, quotients, block })
            }
        };
        Ok(Self { forward, gather })
    }

    /// Refuses arrays that were made for other kernels.
    pub(super) fn check_same(
        &self,
        manifest: &Manifest,
        files: &dyn PlanFiles,
    ) -> Result<(), EngineError> {
        match (&self.forward, &manifest.forward) {
            (Opened::Kernels(_, digest), Forward::Cuda(forward)) => {
                match files.member(&forward.module.cubin) {
                    Some(cubin) if Digest::of(cubin) != *digest => {
                        Err(refused("The new arrays belong to other kernels.".to_owned()))
                    }
                    _ => Ok(()),
                }
            }
            (Opened::Sparse(_) | Opened::Dense(_), Forward::Vendor(_)) => Ok(()),
            _ => Err(refused("The new arrays belong to a plan of another kind.".to_owned())),
        }
    }
}

fn has_maps(manifest: &Manifest) -> bool {
    let placed = manifest.arrays.iter().filter_map(|array| array.values.as_ref());
    placed.into_iter().any(|placed| placed.map.is_some())
}

fn member<'a>(files: &'a dyn PlanFiles, path: &str) -> Result<&'a [u8], EngineError> {
    files.member(path).ok_or_else(|| refused(format!("The bundle has no `{path}`.")))
}

/// Loads the machine code, or if the driver refuses it the text that it was made from.
fn module(
    context: &Arc<Context>,
    module: &CudaModule,
    files: &dyn PlanFiles,
    warnings: &mut Vec<String>,
) -> Result<Arc<Module>, EngineError> {
    let refusal = match machine_code(member(files, &module.cubin)?) {
        Ok(cubin) => match Module::load(context, cubin) {
            Err(EngineError::Refused(reason)) => reason,
            loaded => return loaded.map(Arc::new),
        },
        Err(reason) => reason,
    };
    let Some(path) = &module.ptx else {
        return Err(refused(format!("{refusal}; the plan has no PTX to fall back on")));
    };
    let text = terminated(member(files, path)?);
    match Module::load(context, &text) {
        Ok(loaded) => {
            warnings.push(format!(
                "The driver compiled the kernels from PTX, since it did not take the machine code: {refusal}."
            ));
            Ok(Arc::new(loaded))
        }
        Err(EngineError::Refused(reason)) => {
            Err(refused(format!("{refusal}; the PTX did not load either: {reason}")))
        }
        Err(error) => Err(error),
    }
}

/// The driver takes anything else for text up to the next zero byte, which there need not be.
fn machine_code(cubin: &[u8]) -> Result<&[u8], String> {
    const HEADER: usize = 64;
    match cubin.starts_with(b"\x7fELF") && cubin.len() >= HEADER {
        true => Ok(cubin),
        false => Err("loading the cubin: it is not an ELF file".to_owned()),
    }
}

fn terminated(text: &[u8]) -> Vec<u8> {
    let text = text.iter().copied().take_while(|&byte| byte != 0);
    text.chain(std::iter::once(0)).collect()
}

/// The vendor's library that the plan names.
fn library(
    context: &Arc<Context>,
    search: &Search,
    vendor: &VendorForward,
    warnings: &mut Vec<String>,
) -> Result<Opened, EngineError> {
    let missing = |error: LibraryError| {
        let (name, version) = (&vendor.library, &vendor.version);
        refused(format!("This plan calls {name} (measured with {version}): {error}."))
    };
    let (opened, installed) = if is_dense_product(&vendor.algorithm) {
        let library = Cublas::open(search).map_err(missing)?;
        let installed = library.version().map_err(missing)?;
        (Opened::Dense(Arc::new(cublas::Handle::new(library, context)?)), installed)
    } else if vendor.library == "cuSPARSE" {
        let library = Cusparse::open(search).map_err(missing)?;
        let installed = library.version().map_err(missing)?;
        (Opened::Sparse(Arc::new(cusparse::Handle::new(library, context)?)), installed)
    } else {
        let (function, library) = (&vendor.function, &vendor.library);
        return Err(refused(format!(
            "This plan calls {function} of {library}, which is not known."
        )));
    };
    if !vendor.version.ends_with(&installed) {
        warnings.push(format!(
            "This plan was measured with {} {}; {installed} is installed.",
            vendor.library, vendor.version
        ));
    }
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_terminated_once() {
        assert_eq!(terminated(b".version 7"), b".version 7\0");
        assert_eq!(terminated(b".version 7\0\0"), b".version 7\0");
    }

    #[test]
    fn what_is_no_machine_code_never_reaches_the_driver() {
        assert!(machine_code(b"text").is_err());
        assert!(machine_code(b"\x7fELF").is_err());
        let mut elf = vec![0; 64];
        elf[..4].copy_from_slice(b"\x7fELF");
        assert!(machine_code(&elf).is_ok());
    }
}
