//! What a launch may request: geometry, shared memory, clusters, and blocks that must all be resident at the same time.

use super::context::Context;
use super::launch::{LoadedKernel, refused};
use crate::domain::recipe::Step;
use crate::engine::EngineError;
use cudarc::driver::sys::{
    CUdevice_attribute as Limit, CUlaunchAttribute, CUlaunchAttributeID_enum,
    CUlaunchAttributeValue, CUlaunchConfig,
};

/// Most blocks of a cluster, if the device has room (CUDA's own limit without its portable one of 8).
const MOST_CLUSTER: u32 = 16;

/// Checks the geometry against device and kernel; returns the threads per block.
pub(super) fn check(
    kernel: &LoadedKernel,
    context: &Context,
    step: &Step,
) -> Result<u32, EngineError> {
    let limit = |limit| context.driver.attribute(context.device, limit);
    let grid = [
        limit(Limit::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
        limit(Limit::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
        limit(Limit::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
    ];
    let block = [
        limit(Limit::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
        limit(Limit::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
        limit(Limit::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
    ];
    within("grid", step.grid, grid)?;
    within("block", step.block, block)?;
    let threads = step.block.iter().map(|&side| u64::from(side)).product::<u64>();
    if threads > u64::from(kernel.max_threads) {
        return Err(refused(format!(
            "a block of {threads} threads; this kernel takes at most {} ({} registers a thread)",
            kernel.max_threads, kernel.registers
        )));
    }
    let opt_in = limit(Limit::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    let shared = u64::from(kernel.static_shared) + u64::from(step.shared_bytes);
    if shared > u64::from(opt_in) {
        return Err(refused(format!(
            "a block asks for {shared} bytes of shared memory; the device has {opt_in}"
        )));
    }
    let has_clusters = limit(Limit::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)? != 0;
    check_cluster(step, has_clusters)?;
    if kernel.cluster != step.cluster {
        return Err(refused(format!(
            "clusters of {} blocks for a kernel compiled for {}",
            step.cluster, kernel.cluster
        )));
    }
    Ok(threads as u32)
}

/// Blocks that a multiprocessor holds at once. Refused if there are none, or if a grid that must be resident does not fit.
pub(super) fn residency(
    kernel: &LoadedKernel,
    context: &Context,
    step: &Step,
    threads: u32,
) -> Result<u32, EngineError> {
    let mut blocks = 0;
    let (occupancy, shared) = (context.driver.api.occupancy, step.shared_bytes as usize);
    // SAFETY: out-pointer to a local; the function's module is loaded.
    let code = unsafe { occupancy(&mut blocks, kernel.function, threads as i32, shared) };
    context.driver.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
    let each = format!(
        "{threads} threads ({} registers per thread, {} bytes of shared memory per block)",
        kernel.registers,
        kernel.static_shared + step.shared_bytes
    );
    if blocks < 1 {
        return Err(refused(format!("not one block of {each} fits a multiprocessor")));
    }
    let blocks = blocks.unsigned_abs();
    let room = if step.cluster > 1 {
        let clusters = active_clusters(kernel, context, step)?;
        if clusters == 0 {
            return Err(refused(format!(
                "not one cluster of {} blocks of {each} fits the device",
                step.cluster
            )));
        }
        u64::from(clusters) * u64::from(step.cluster)
    } else {
        let multiprocessors = Limit::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let count = context.driver.attribute(context.device, multiprocessors)?;
        u64::from(count) * u64::from(blocks)
    };
    check_resident(step, room, &each)?;
    Ok(blocks)
}

/// Clusters of the step that the device holds at once.
fn active_clusters(
    kernel: &LoadedKernel,
    context: &Context,
    step: &Step,
) -> Result<u32, EngineError> {
    let mut attribute = cluster_attribute(step.cluster);
    let configuration = CUlaunchConfig {
        gridDimX: step.grid[0],
        gridDimY: step.grid[1],
        gridDimZ: step.grid[2],
        blockDimX: step.block[0],
        blockDimY: step.block[1],
        blockDimZ: step.block[2],
        sharedMemBytes: step.shared_bytes,
        hStream: context.stream,
        attrs: &mut attribute,
        numAttrs: 1,
    };
    let mut clusters = 0;
    let active = context.driver.api.active_clusters;
    // SAFETY: out-pointer to a local; configuration and attribute outlive the call, the function's module is loaded.
    let code = unsafe { active(&mut clusters, kernel.function, &configuration) };
    context.driver.check("cuOccupancyMaxActiveClusters", code)?;
    Ok(clusters.unsigned_abs())
}

/// The attribute for clusters of `blocks` blocks along x. Launches have it compiled in; occupancy has to be told.
fn cluster_attribute(blocks: u32) -> CUlaunchAttribute {
    let mut value = CUlaunchAttributeValue { pad: [0; 64] };
    value.clusterDim.x = blocks;
    value.clusterDim.y = 1;
    value.clusterDim.z = 1;
    let id = CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    CUlaunchAttribute { id, pad: [0; 4], value }
}

fn check_cluster(step: &Step, has_clusters: bool) -> Result<(), EngineError> {
    let (cluster, blocks) = (step.cluster, step.grid[0]);
    if cluster == 0 || cluster > MOST_CLUSTER {
        return Err(refused(format!(
            "a cluster of {cluster} blocks; it must be 1 to {MOST_CLUSTER}"
        )));
    }
    if cluster > 1 && !has_clusters {
        return Err(refused("the device has no thread block clusters".to_owned()));
    }
    if !blocks.is_multiple_of(cluster) {
        return Err(refused(format!(
            "grid.x is {blocks}, which is no multiple of the cluster's {cluster} blocks"
        )));
    }
    Ok(())
}

/// Refuses a grid whose blocks wait for one another if the device holds only `room` of them: those would wait for blocks that
/// never start. Nothing else runs on the device at the time, so what fits is resident without a cooperative launch.
fn check_resident(step: &Step, room: u64, each: &str) -> Result<(), EngineError> {
    let blocks = step.grid.iter().map(|&side| u64::from(side)).product::<u64>();
    if step.resident && blocks > room {
        return Err(refused(format!(
            "{blocks} blocks that wait for one another; the device holds {room} of {each} at once"
        )));
    }
    Ok(())
}

fn within(what: &str, asked: [u32; 3], most: [u32; 3]) -> Result<(), EngineError> {
    match asked.iter().zip(&most).position(|(&asked, &most)| asked == 0 || asked > most) {
        None => Ok(()),
        Some(axis) => Err(refused(format!(
            "{what}.{} is {}; it must be 1 to {}",
            ["x", "y", "z"][axis],
            asked[axis],
            most[axis]
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_beyond_the_device_is_refused_by_name() {
        let most = [2_147_483_647, 65_535, 65_535];
        assert!(within("grid", [1, 65_535, 1], most).is_ok());
        let error = within("grid", [1, 65_536, 1], most).unwrap_err().to_string();
        assert_eq!(error, "grid.y is 65536; it must be 1 to 65535");
        assert!(within("grid", [0, 1, 1], most).is_err());
    }

    fn step(grid: u32, cluster: u32, resident: bool) -> Step {
        Step { cluster, resident, ..Step::of("k", grid, 128, Vec::new()) }
    }

    #[test]
    fn a_grid_is_whole_clusters_of_at_most_sixteen() {
        assert!(check_cluster(&step(7, 1, false), false).is_ok());
        assert!(check_cluster(&step(32, 16, false), true).is_ok());
        let why = |step: Step, has| check_cluster(&step, has).unwrap_err().to_string();
        assert_eq!(why(step(32, 8, false), false), "the device has no thread block clusters");
        assert_eq!(why(step(32, 17, false), true), "a cluster of 17 blocks; it must be 1 to 16");
        assert_eq!(why(step(32, 0, false), true), "a cluster of 0 blocks; it must be 1 to 16");
        let uneven = "grid.x is 12, which is no multiple of the cluster's 8 blocks";
        assert_eq!(why(step(12, 8, false), true), uneven);
    }

    #[test]
    fn a_cluster_is_described_as_the_driver_reads_it() {
        let attribute = cluster_attribute(16);
        // SAFETY: the union's field was written in this form.
        let dimension = unsafe { attribute.value.clusterDim };
        assert_eq!((dimension.x, dimension.y, dimension.z), (16, 1, 1));
    }

    #[test]
    fn only_blocks_that_wait_for_one_another_must_all_fit() {
        assert!(check_resident(&step(1000, 1, false), 264, "128 threads").is_ok());
        assert!(check_resident(&step(264, 1, true), 264, "128 threads").is_ok());
        let error = check_resident(&step(265, 1, true), 264, "128 threads").unwrap_err();
        let words =
            "265 blocks that wait for one another; the device holds 264 of 128 threads at once";
        assert_eq!(error.to_string(), words);
    }
}
